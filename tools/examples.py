"""Draw the committed examples anew: the pictures and the report under results/ that pages show.

    uv run python tools/examples.py            # write all examples, after a change of what commands draw or print
    uv run python tools/examples.py FOLDER     # write them to FOLDER/results/... instead, to compare

Each is made by a command from committed records alone. tests/docs/test_examples.py fails when one is out of date.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

COMMANDS: dict[str, tuple[str, ...]] = {
    "amd-epyc-2cpu/cpu-20261123-025926.png": ("plot", "amd-epyc-2cpu/cpu-20261123-025926.jsonl"),
    "amd-epyc-2cpu/cpu-20261123-025926-ladder.png": (
        *("plot", "amd-epyc-2cpu/cpu-20261123-025926.jsonl"),
        *("--kind", "ladder"),
    ),
    "amd-epyc-2cpu/cpu-20261123-033953_kfac.png": ("plot", "amd-epyc-2cpu/cpu-20261123-033953_kfac.jsonl"),
    "amd-epyc-2cpu/cpu-20261123-164014.png": ("plot", "amd-epyc-2cpu/cpu-20261123-164014.jsonl"),
    "amd-epyc-2cpu/cpu-20261124-132901.png": ("plot", "amd-epyc-2cpu/cpu-20261124-132901.jsonl"),
    "amd-epyc-2cpu/diff-fp32-fused.png": (
        *("diff", "amd-epyc-2cpu/cpu-20261123-164014.jsonl", "--bs", "8"),
        *("--config", "fp32", "--to", "fp32+dali+batched+nhwc+fused"),
    ),
    "amd-epyc-2cpu/networks-20261123-034519.png": ("plot", "amd-epyc-2cpu/networks-20261123-034519.jsonl"),
    "amd-epyc-2cpu/peers-20261123-040216.png": ("plot", "amd-epyc-2cpu/peers-20261123-040216.jsonl"),
    "amd-epyc-2cpu/report.html": ("report", "amd-epyc-2cpu/cpu-20261123-025926.jsonl"),
    "h200/ladder.png": ("plot", "h200/naruse2018-20261127-000756_ladder.jsonl"),
    "intel-xeon-2cpu/scaling-20261122-171003-scaling.png": (
        *("plot", "intel-xeon-2cpu/scaling-20261122-171003.jsonl"),
        *("--kind", "scaling"),
    ),
    "intel-xeon-2cpu/timeline-fp32-dali.png": (
        *("timeline", "intel-xeon-2cpu/profile-fp32.json.gz", "intel-xeon-2cpu/profile-fp32+dali.json.gz"),
        *("--steps", "2"),
    ),
    "pytorch/adamw-timeline.png": ("timeline", "pytorch/adamw.json.gz", "pytorch/adamw-fused.json.gz"),
}
"""The words of the command that makes an example, but for `-o FILE`. Paths are relative to results/."""

NUMERICS: dict[str, str] = {
    "amd-epyc-2cpu/numerics-20261121-145202-gradients.png": "gradients",
    "amd-epyc-2cpu/numerics-20261121-145202-training.png": "training",
    "intel-xeon-2cpu/numerics-ranks-20261122-162143-training.png": "training",
}
"""The charts that `tcbench numerics` draws when it ends. The document beside the picture holds what they show."""

EXAMPLES = (*COMMANDS, *NUMERICS)

NOT_REMADE = {
    "h200/profile-fp16+dali.png": "its trace is too large to commit",
    "intel-xeon-2cpu/kfac-steps.png": "its document was not kept",
    "virtual-tesla-v100-sxm2-16gb/slide-31-host-speed-0.2.png": "its records were not kept",
}
"""Pictures that no command can draw anew, with the reason."""


def numerics_chart(example: str, target: Path) -> None:
    """Draw a chart of `tcbench numerics` from its document."""
    from tcbench.commands.numerics import table
    from tcbench.commands.numerics.gradients_chart import gradients_chart
    from tcbench.commands.numerics.judgement import margins_or_default
    from tcbench.commands.numerics.training_chart import training_chart
    from tcbench.core.numerics import read
    from tcbench.show.charts.files import save

    document = read(ROOT / "results" / f"{example.rpartition('-')[0]}.json")
    facts = table.about(document)
    if NUMERICS[example] == "gradients":
        save(gradients_chart(document, facts), target)
    else:
        save(training_chart(document, margins_or_default(document, None), facts), target)


def main() -> None:
    """Write all examples."""
    import contextlib

    from tcbench import commands

    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).absolute() / "results"
    for example in EXAMPLES:
        target = folder / example
        target.parent.mkdir(parents=True, exist_ok=True)
        if example in NUMERICS:
            numerics_chart(example, target)
            continue
        sys.argv = ["tcbench", *COMMANDS[example], "-o", str(target)]
        with contextlib.chdir(ROOT / "results"), contextlib.suppress(SystemExit):
            commands.main()


if __name__ == "__main__":
    main()
