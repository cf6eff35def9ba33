"""Does the model of a step's time hold? Cells that it has never seen, each predicted and then run.

    uv run python benchmarks/step_times.py [--cells 40] [--seed 1] [--trials 2]

Draws cells of the CPU's ladders (fp32 and bf16, batch size 4, 8, 16, 64 and 224 pixels, four networks) by a seed. Each
is predicted by `tcbench forecast --device cpu --fresh` and run by `tcbench run` right after, on JPEGs that its feed
decodes, and then once more, as a yardstick: how far one run of a cell predicts the next on this machine. Prints
predicted over measured images/s, the median error, and the error that nine of ten stay under. Nothing is fitted. Needs
quiet cores, and about 40 minutes on two.
"""

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CPU = Path(__file__).parents[1] / "scenarios" / "cpu.toml"
STEPS = ("dali", "batched", "nhwc+fused", "static_graph")
CONFIGS = ["+".join((dtype, *STEPS[:number])) for dtype in ("fp32", "bf16") for number in range(len(STEPS) + 1)]
NETWORKS, BATCH_SIZES, SIZES = ("resnet18", "resnet50", "vgg16", "googlenet"), (4, 8, 16), (64, 224)


def ask(*words: str) -> tuple[dict[str, Any], float]:
    """Run a command; return its JSON output and its duration in seconds."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "tcbench", *words, "--json", "-q"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout), time.perf_counter() - begin


def main() -> None:
    """Predict and run, one cell after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=2)
    chosen = parser.parse_args()
    candidates = list(itertools.product(NETWORKS, SIZES, BATCH_SIZES, CONFIGS))
    ratios: list[float] = []
    again: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        # Networks without batch normalisation overflow at the ladder's learning rate.
        scenario = Path(folder) / "cpu.toml"
        scenario.write_text(CPU.read_text("utf-8").replace("learning_rate = 0.01", "learning_rate = 1e-5"), "utf-8")
        print("predicted over measured  predicted  measured  again images/s  seconds to predict  cell", flush=True)
        for model, size, batch_size, config in random.Random(chosen.seed).sample(candidates, chosen.cells):
            cell = [
                f"{scenario}",
                "--model",
                model,
                "--image-size",
                f"{size}",
                "--bs",
                f"{batch_size}",
                "--config",
                config,
            ]
            foreseen, seconds = ask("forecast", *cell, "--device", "cpu", "--fresh")
            runs = [ask("run", *cell, "--trials", f"{chosen.trials}", "--out", folder)[0] for _ in range(2)]
            expected = foreseen["cells"][0]["images_per_s_expected"]
            measured, once_more = (ran["cells"][0]["images_per_s"]["value"] for ran in runs)
            ratios.append(expected / measured)
            again.append(once_more / measured)
            name = f"{model}, {size}x{size}, {config}, batch size {batch_size}"
            rates = f"{expected:9.2f} {measured:9.2f} {once_more:9.2f}"
            print(f"{ratios[-1]:.3f} {rates} {seconds:5.1f}  {name}", flush=True)
    print(f"{len(ratios)} cells, seed {chosen.seed}: predicted over measured {statistics.median(ratios):.3f} (median);")
    for name, values in (("error", ratios), ("of the same cell run again: difference", again)):
        errors = sorted(abs(ratio - 1) for ratio in values)
        ninth = errors[max(0, -(-9 * len(errors) // 10) - 1)]
        middle, most = statistics.median(errors), errors[-1]
        print(f"{name} {middle:.1%} (median), nine of ten within {ninth:.1%}, worst {most:.1%}")


if __name__ == "__main__":
    main()
