"""The inputs of the corpus: each makes its files in a folder and names the commands that read them.

A command's pictures, pages and tables go to `out/`. Of the program itself only what a file holds is used here: records
and timelines are made by the tests' factories and written as `tcbench run` and `tcbench profile` write them.
"""

import contextlib
import functools
import hashlib
import importlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

import tcbench

CHECKOUT = Path(tcbench.__file__).parents[1]
sys.path.insert(0, str(CHECKOUT / "tests"))


@dataclass(frozen=True)
class Lines:
    """An entry that is no command's."""

    name: str
    lines: Sequence[str]


INTERNALS = {
    "Device": ("tcbench.engine.accelerators.device:Device",),
    "Trainer": ("tcbench.commands.numerics.runner:NumericsRunner", "tcbench.commands.numerics.runner:Runner"),
    "Runner": ("tcbench.run.runner:Runner",),
    "gpus": ("tcbench.hardware.gpus",),
    "plan": ("tcbench.run.plan",),
    "scenario": ("tcbench.run.scenario",),
    "trace": ("tcbench.engine.backends:trace_cell",),
}
"""The places of internals that no command reaches, older places first."""


def internal(name: str) -> Any:
    """Return one of INTERNALS, from the first of its places that exists."""
    for place in INTERNALS[name]:
        module, _, attribute = place.partition(":")
        with contextlib.suppress(ModuleNotFoundError):
            imported = importlib.import_module(module)
            return getattr(imported, attribute) if attribute else imported
    raise ModuleNotFoundError(f"{name}: not at {' or '.join(INTERNALS[name])}: name its new place in INTERNALS")


RUN = """
plot {} -o out/plot.svg
plot {} --kind ladder -o out/ladder.svg
plot {} --slide 33 -o out/slide.svg
plot {} --by machine -o out/machines.svg
explain {} --details
explain {} --json
claims {}
claims {} --format markdown
claims {} --json
history {} -o out/history.svg
roofline {} -o out/roofline.svg
export {}
export {} --per cell -o out/cells.json
export {} --per step --format csv
export {} --format bencher
export {} --format github-action-benchmark
"""
"""Commands that read one file or folder of records."""

KINDS = """
plot {} --kind networks -o out/networks.svg
plot {} --kind scaling -o out/scaling.svg
"""
"""Commands that read several networks, or several numbers of ranks."""

REPORT = """
report {} -o out/report.html
"""

SLIDES = """
roofline {} --layers --bs 4 --config fp16* --json
roofline {} --layers --bs 4 --config fp16* -o out/roofline.png
plot {} --slide 12 -o out/slide.svg
plot {} --slide 21 -o out/slide.svg
plot {} --slide 27 -o out/slide.svg
plot {} --slide 31 -o out/slide.svg
plot {} -o out/plot.png
plot {} -o out/plot.pdf
plot {} --config fp16* --kind ladder -o out/ladder.svg
"""

PAIR = """
compare {}
compare {} --format markdown
compare {} --format json
compare {} --format junit
compare {} --format github
compare {} --metric throughput,memory,energy --threshold 1% --strict
compare {} --allow all,missing -o out/comparison.svg
"""
"""Commands that read two files."""

DIFF = """
diff {} -o out/diff.svg
diff {} --json --top 3
"""


def command_lines(commands: str, *names: str) -> list[str]:
    """Return the commands for each of the files."""
    return [line.replace("{}", name) for name in names for line in commands.splitlines() if line]


def keep(path: Path, records: Iterable[Any]) -> None:
    """Write a file of records."""
    from tcbench.core import record

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(record.encode(stored) + b"\n" for stored in records))


def trace(path: Path, *timelines: Any, record: Any = None) -> None:
    """Write a file of timelines."""
    from tcbench.tracing import perfetto

    path.parent.mkdir(parents=True, exist_ok=True)
    perfetto.write(timelines, path, record) if record else perfetto.write(timelines, path)


def ceilings(folder: Path, *names: str, times: float = 1.0) -> None:
    """Write the machines' ceilings to the cache, so that `roofline` and `explain` do not measure them."""
    for name in names:
        path = folder.parent / "cache" / "ceilings-v2" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        rates = {"fp32": 1.1e11 * times, "bf16": 4e11 * times, "fp16": 1.2e11 * times}
        value = {"device_name": name, "flops_s": rates, "bandwidth_bytes_s": 2e10 * times, "says": "measured"}
        path.write_bytes(msgspec.json.encode(value))


def shipped(folder: Path) -> list[str]:
    """The results that come with tcbench."""
    from shipped import copy

    copy(folder, ".json", ".jsonl", ".txt", ".tsv", ".md")
    runs = sorted(folder.glob("results/*/*.jsonl"))
    for number, path in enumerate(sorted(folder.rglob("*.json*"))):
        os.utime(path, (1_790_000_000 + number,) * 2)
    for machine, threads in itertools.product(("amd-epyc-2cpu", "intel-xeon-2cpu"), (1, 2)):
        ceilings(folder, f"{machine}-{threads}")
    ids = [path.stem for path in runs]
    alike = (
        *("cpu-20261121-035658", "cpu-20261123-164014", "cpu-20261124-132901", "peers-20261121-110639"),
        "naruse2018-20261126-235859",
    )
    pairs = ("peers-20261121-110639 peers-20261123-040216", "cpu-20261123-025926 cpu-20261123-164014")
    documents = [str(path.relative_to(folder)) for path in sorted(folder.glob("results/*/numerics-*.json"))]
    return [
        *command_lines(RUN, *(name for name in ids if name not in alike)),
        *command_lines("plot {} -o out/plot.svg\nexplain {}\nexport {} --per cell", *alike),
        *command_lines(SLIDES, "cpu-20261123-025926"),
        *command_lines(PAIR, *pairs),
        *command_lines(KINDS + REPORT, *(name for name in ids if name.startswith(("networks", "scaling")))),
        *command_lines(DIFF, f"{pairs[0]} --bs 8", f"{pairs[1]} --bs 8 --config fp32*"),
        "diff cpu-20261123-025926 --config fp32 --to fp32+dali --bs 8 -o out/diff.svg",
        "compare cpu-20261123-025926 cpu-20261123-025926",
        "history",
        "history results",
        "history results --json",
        "history results --config fp32* --bs 8 --threshold 5% --allow all -o out/history.svg",
        "plot results --by machine --config fp32,best -o out/machines.svg",
        "report results -o out/report.html --title Everything",
        "export results --per cell --format csv",
        *(f"claims {ids[0]} {document}" for document in documents),
        *(f"report {ids[0]} {document} -o out/report.html" for document in documents),
        "report peers-20261123-040216 --compare peers-20261121-110639 -o out/report.html",
        "baseline set main cpu-20261123-164014",
        "baseline set main cpu-20261123-164014",
        "baseline set old peers-20261121-110639",
        "baseline list",
        "baseline list --json",
        "baseline show main",
        "baseline show old --json",
        "compare --baseline main cpu-20261123-025926 --allow all",
        "report cpu-20261123-025926 --baseline main -o out/report.html",
        "baseline remove old",
        "baseline remove old",
    ]


def ladders(folder: Path) -> list[str]:
    """Two whole ladders with failures, a comparison, claims, timelines and a document of `numerics`."""
    import factories
    import numerics_documents
    import reports

    results = reports.full()
    keep(folder / "run" / "run.jsonl", results.records)
    keep(
        folder / "before.jsonl", [*reports.ladders(5, factor=1.005, run_id="before"), factories.make_record("tf32", 4)]
    )
    for number, timeline in enumerate(results.timelines):
        path = folder / "run" / f"profile-fp32-bs{number}-20250102-03040{number}.json.gz"
        trace(path, timeline)
        os.utime(path, (1_800_000_000 - number,) * 2)
    document = numerics_documents.make_document()
    (folder / "run" / "numerics-20250102-030405.json").write_bytes(msgspec.json.encode(document))
    ceilings(folder, "amd-epyc-2cpu-2")
    profiles = sorted(str(path.relative_to(folder)) for path in folder.rglob("profile-*"))
    first, *_, last = profiles
    return [
        *command_lines(RUN + REPORT, "run/run.jsonl"),
        *command_lines("claims {}\nexplain {}", "run"),
        *command_lines(SLIDES, "run/run.jsonl"),
        *command_lines(PAIR, "before.jsonl run/run.jsonl"),
        *command_lines(DIFF, "before.jsonl run/run.jsonl --config fp16* --bs 8"),
        "report run/run.jsonl --compare before.jsonl -o out/report.html",
        *command_lines(TIMELINES, first, last, " ".join(profiles)),
        f"diff {first} {last} -o out/diff.svg",
        f"diff {first} {last} --json",
        f"claims run/run.jsonl {' '.join(profiles)}",
        f"roofline run/run.jsonl {first} --layers --config fp32 --bs 4 -o out/roofline.svg",
    ]


TIMELINES = """
timeline {} -o out/timeline.svg
timeline {} --zoom 20:60 -o out/timeline.svg
timeline {} --steps 1 --step 41 -o out/timeline.png
explain {}
explain {} --json
"""


def edges(folder: Path) -> list[str]:
    """One trial; nothing that ran; configs that are no ladder."""
    import reports

    for name in ("single", "failed", "no_ladder"):
        keep(folder / f"{name}.jsonl", getattr(reports, name)().records)
    ceilings(folder, "amd-epyc-2cpu-2")
    return [
        *command_lines(RUN + REPORT, "single.jsonl", "failed.jsonl", "no_ladder.jsonl"),
        *command_lines(KINDS, "single.jsonl"),
        *command_lines(PAIR + DIFF, "single.jsonl no_ladder.jsonl"),
    ]


def many(folder: Path) -> list[str]:
    """Four machines; forty configs."""
    import reports

    keep(folder / "machines.jsonl", reports.machines(1).records)
    keep(folder / "configs.jsonl", reports.many_configs(1).records)
    ceilings(folder, *(f"machine-{number}-2" for number in range(4)))
    commands = "plot {} --kind ladder -o out/ladder.svg\nexplain {}\nclaims {} --json\nhistory {}\n" + REPORT
    return [
        *command_lines(commands, "machines.jsonl", "configs.jsonl"),
        "plot machines.jsonl --by machine -o out/machines.svg",
    ]


def ranks(folder: Path) -> list[str]:
    """Many ranks, on processors and on GPUs; one that is slow, a size that failed, two networks."""
    import factories

    def on(ranks: int, config: str, share: float, status: Any = "ok", device: str = "cpu", **changes: Any) -> Any:
        cell = factories.make_cell(config, 8, ranks=ranks, device=device)
        record = factories.make_record(cell=cell, images_per_s=30 * ranks * share, status=status, **changes)
        if record.measurement is not None and ranks > 1:
            slow = {1: 1.4} if config == "fp32+dali" else None
            measured = factories.make_measurement_of_ranks(
                record.measurement.step_times_s, ranks, allreduce=1 - share, slow=slow
            )
            record = msgspec.structs.replace(record, measurement=measured)
        return record

    gpu = factories.make_environment(
        "tesla-v100", "Tesla V100-DGXS-16GB", ranks=factories.make_ranks(engine="NCCL 2.20")
    )
    keep(
        folder / "ranks.jsonl",
        [
            msgspec.structs.replace(on(n, config, share), trial=trial)
            for config, shares in (("fp32", (1, 0.9, 0.7, 0.4)), ("fp32+dali", (1.2, 1.1, 0.9, 0.5)))
            for n, share in zip((1, 2, 4, 8), shares, strict=True)
            for trial in range(2)
        ]
        + [on(16, "fp32", 0.3, "failed"), on(16, "fp32+dali", 0.3, "skipped"), on(2, "bf16", 0.9)],
    )
    keep(
        folder / "gpus.jsonl",
        [on(n, "fp16", share, device="cuda:0", environment=gpu) for n, share in ((1, 1), (4, 0.9), (8, 0.8))],
    )
    ceilings(folder, "amd-epyc-2cpu-2", "tesla-v100")
    return [
        *command_lines(RUN + REPORT, "ranks.jsonl"),
        *command_lines(RUN, "gpus.jsonl")[:7],
        *command_lines(KINDS, "ranks.jsonl", "gpus.jsonl"),
        "compare ranks.jsonl gpus.jsonl --allow all,missing",
    ]


def gpus(folder: Path) -> list[str]:
    """Ladders on a V100 with its state and samples, throttled at times, and on a simulated one; settings of cuDNN."""
    import factories

    from tcbench.core.record import GpuFacts, GpuSample, GpuSamples, GpuState, PhaseTimes, Simulated

    facts = GpuFacts(
        name="Tesla V100-SXM2-16GB",
        compute_capability=(7, 0),
        multiprocessors=80,
        memory_bytes=16 * 2**30,
        driver="570.86",
        driver_cuda="12.8",
    )
    v100 = factories.make_environment("tesla-v100-sxm2-16gb", "Tesla V100-SXM2-16GB", gpu=facts, commit="abc")
    simulated = Simulated(card="Tesla V100-SXM2-16GB", host="AMD EPYC", host_speed=0.5, attained="attained-0")
    virtual = factories.make_environment("virtual-v100", "simulated Tesla V100-SXM2-16GB", simulated=simulated)

    def trials(environment: Any, device: str, scale: float) -> Iterator[Any]:
        for (place, config), size in itertools.product(enumerate(factories.LADDERS), (32, 256)):
            host_s = {"io": 0.04 if "dali" not in config else 0.001, "forward": 0.02, "backward": 0.03, "update": 0.01}
            gpu_s = {"io": 0.0, "forward": 0.0004 * size, "backward": 0.0008 * size, "update": 0.004}
            if place >= 5:
                gpu_s = {name: value / 3 for name, value in gpu_s.items()}
            phases = tuple(
                PhaseTimes(name=name, host_s=(host_s[name],) * 5, device_s=(gpu_s[name],) * 5) for name in host_s
            )
            step_s = max(sum(host_s.values()), sum(gpu_s.values()) + host_s["io"] / 2) / scale
            for trial in range(3):
                times_s = factories.make_step_times(step_s, seed=trial + place)
                clocks = (1380, 1380, 900 if trial == 1 else 1380)
                samples = tuple(
                    GpuSample(float(s), mhz, 877, 250.0 + s, 60 + s, 4 * (mhz < 1000), 90, 8 * 2**30, 250.0 * s)
                    for s, mhz in enumerate(clocks)
                )
                watched = GpuSamples(
                    state=GpuState(power_limit_w=300.0, sm_clock_set_mhz=1380, ecc=True, mig=False),
                    samples=samples,
                    timed_from_s=0.0,
                    timed_to_s=3.0,
                )
                cell = factories.make_cell(config, size, scenario="naruse2018", device=device, image_size=224)
                measured = factories.make_measurement(
                    times_s, phases=phases, peak_memory_of="device", plans=(("conv", "eng1", 0, False, 1e-3, 2e-3),)
                )
                yield factories.make_record(
                    cell=cell,
                    trial=trial,
                    environment=environment,
                    measurement=measured,
                    gpu=watched,
                    run_id=device[:4],
                )

    ablations = [factories.make_record(cell=factories.make_ablation("fp16", size)) for size in (4, 8)]
    torch = [
        factories.make_record(cell=factories.make_peer_cell(f"torch/{config}")) for config in ("fp32", "fp32+dali")
    ]
    keep(folder / "v100.jsonl", trials(v100, "cuda:0", 1.0))
    keep(folder / "slower.jsonl", trials(v100, "cuda:0", 0.95))
    keep(folder / "virtual.jsonl", trials(virtual, "virtual:V100", 1.1))
    keep(folder / "others.jsonl", [*ablations, *torch, factories.make_record(), factories.make_record("fp16")])
    ceilings(folder, "tesla-v100-sxm2-16gb", "amd-epyc-2cpu-2")
    allowed = "v100.jsonl virtual.jsonl --allow all"
    return [
        *command_lines(RUN + REPORT, "v100.jsonl", "others.jsonl"),
        *command_lines(RUN, "virtual.jsonl")[:10],
        "report virtual.jsonl -o out/report.html",
        *command_lines(PAIR, "slower.jsonl v100.jsonl"),
        *command_lines(DIFF, "slower.jsonl v100.jsonl --bs 32 --config fp16*"),
        *command_lines(PAIR, allowed),
        "compare v100.jsonl virtual.jsonl",
    ]


def verdicts(folder: Path) -> list[str]:
    """Comparisons with every verdict, and with every text that a format could trip over."""
    import comparisons

    with mock.patch.object(comparisons, "compare", lambda base, current, *_: (base, current)):
        base, current = comparisons.one_of_each()
        sides = {
            "each": (base, [msgspec.structs.replace(current_record, run_id="after") for current_record in current])
        }
        # Those are records as they were read.
        sides |= {f"nasty{n}": comparisons.nasty(text) for n, text in enumerate(comparisons.NASTY)}
    for name, both in sides.items():
        for side, records in zip(("base", "current"), both, strict=True):
            keep(folder / f"{name}-{side}.jsonl", records)
    files = {name: f"{name}-base.jsonl {name}-current.jsonl" for name in sides}
    # A text of control characters is all that the form of JSON could trip over.
    plain = "\n".join(line for line in PAIR.splitlines() if "--metric" not in line and "--allow" not in line)
    nasty = [
        line
        for name in files
        for line in command_lines(plain, f"{files[name]} --allow all")
        if name != "each" and ("json" not in line.rpartition("--format")[2] or name == "nasty4")
    ]
    return [
        *command_lines(PAIR, files["each"]),
        "compare each-base.jsonl each-current.jsonl --threshold 20% --allow missing",
        "report each-current.jsonl --compare each-base.jsonl -o out/report.html",
        *nasty,
        *(line for name in files if name != "each" for line in command_lines(DIFF, files[name])[:1]),
        f"compare {files['nasty0']}",
        "report nasty0-current.jsonl --compare nasty0-base.jsonl -o out/report.html",
    ]


def commits(folder: Path) -> list[str]:
    """A cell over commits: losses, gains, other machines, gaps."""
    import histories

    steady = histories.over_commits([40] * 6)
    other = [{}, {}, {}, {"os": "another"}, {"os": "another"}, {"packages": {"numpy": "3"}}]
    keep(folder / "steady.jsonl", steady)
    keep(
        folder / "loss.jsonl", histories.shuffled(histories.over_commits([40, 40.2, 36, 36.1, 39.9, 44], batch_size=8))
    )
    keep(folder / "others.jsonl", histories.over_commits([40, 40, 40, 30, 30, 41], "fp16", environments=other))
    keep(folder / "one.jsonl", histories.over_commits([40], trials=1))
    names = "steady.jsonl loss.jsonl others.jsonl"
    return [
        f"history {names} -o out/history.svg",
        f"history {names} --json",
        "history loss.jsonl --threshold 15%",
        "history others.jsonl --allow os,libraries -o out/history.svg",
        "history one.jsonl -o out/history.svg",
        *command_lines(RUN, "loss.jsonl")[:7],
        "report loss.jsonl -o out/report.html",
    ]


def hostile_records(folder: Path) -> list[str]:
    """Records and traces by someone who wants tcbench to fall over."""
    import audited
    import hostile
    import reports

    (folder / "out").rmdir()
    hostile.prepare(folder)
    shutil.copytree(folder / "cache", folder.parent / "cache", dirs_exist_ok=True)
    valid, draw = hostile.valid(), random.Random(0)
    places = [[(place, draw.choice(hostile.THINGS))] for place in hostile.PLACES]
    hostile.write(folder / "places.jsonl", [valid, *(hostile.changed(valid, change) for change in places)])
    readable = [
        line
        for place in hostile.PLACES
        for thing in draw.sample(hostile.THINGS, 3)
        for line in [hostile.changed(valid, [(place, thing)])]
        if _is_read(line)
    ]
    files = dict(audited.files(folder))
    files[hostile.write(folder / "readable.jsonl", readable)] = hostile.RECORDS
    keep(folder / "markup.jsonl", reports.hostile().records)
    files[folder / "markup.jsonl"] = hostile.RECORDS
    commands = [[word.replace("{}", file.name) for word in line] for file, lines in files.items() for line in lines]
    return ["explain places.jsonl", *(" ".join(words).replace(".png", ".svg") for words in commands)]


def _is_read(line: dict[str, Any]) -> bool:
    from tcbench.core import record

    try:
        record.decode(json.dumps(line))
    except record.RecordError:
        return False
    return True


def shown(folder: Path) -> list[str]:
    """Help of every command, what there is, plans, forecasts; mistakes."""
    names = "run profile numerics submit plot explain report claims timeline roofline compare diff gate history export "
    names += "forecast list doctor data baseline"
    (folder / "quick.toml").write_text(QUICK, "utf-8")
    (folder / "bad.toml").write_text(QUICK.replace("rungs", "rung"), "utf-8")
    (folder / "bad.jsonl").write_text("no JSON\n", "utf-8")
    (folder / "empty.json").touch()
    plans = [f"run {name} --dry-run --device cpu" for name in ("cpu", "networks", "peers", "scaling", "./quick.toml")]
    plans += [f"run {name} --dry-run --device virtual:H100 --bs 32,64" for name in ("beyond", "naruse2018", "settings")]
    return [
        *(f"{name} --help" for name in ("", *names.split(), "baseline list", "baseline set", "baseline show")),
        *(f"{name} --help" for name in ("baseline remove", "data make")),
        "list",
        "list --json",
        "list --gpus",
        "list --gpus --json",
        *plans,
        "run cpu --dry-run --device cpu --json --config fp32,fp16+dali --trials 3 --budget 90s",
        "run naruse2018 --dry-run --device virtual:V100 --bs 32 --json",
        "forecast quick.toml --gpu V100 --details -q",
        "forecast quick.toml --gpu V100 --json -q",
        "forecast quick.toml --gpu B200 --bs 2 -q",
        *MISTAKES.strip().splitlines(),
    ]


QUICK = """
schema = 1
title = "A quick one"
[model]
image_size = 32
classes = 20
[measure]
batch_sizes = [2, 4]
[[config]]
rungs = ["fp16"]
[[config]]
rungs = ["tf32"]
"""

MISTAKES = """
nothing
run nowhere
run cpu --device tpu
run cpu --bs 0 --device cpu
run cpu --config fp17 --device cpu
run cpu --trials many --device cpu
run cpu --ranks 2 --device cpu --dry-run
run bad.toml --device cpu
run quick.toml --image-size 31 --device cpu
run cpu --label a/b --device cpu
run cpu --budget soon --device cpu
run cpu --model vgg --device cpu --dry-run
profile nothing --device cpu
profile fp32 --bs 4,8 --device cpu
profile fp32 --tool py-spy --device cpu
profile fp32 --tool cupti --device cpu
numerics --scale 1000 --device cpu
numerics --rungs --seeds 3 --device cpu
numerics --device virtual:V100
plot
plot nowhere
plot bad.jsonl
plot bad.jsonl -o out/x.gif
plot --by colour
explain empty.json
claims bad.jsonl --format nonsense
claims --scenario nowhere
history nowhere
history --threshold 3
timeline
timeline empty.json --zoom 5
timeline empty.json --steps 0
roofline
roofline empty.json
compare
compare nowhere nowhere
compare bad.jsonl bad.jsonl --metric speed
compare bad.jsonl bad.jsonl --allow nothing
compare bad.jsonl bad.jsonl --threshold 0
compare --baseline nobody
diff nowhere
diff bad.jsonl bad.jsonl
export bad.jsonl --per nothing
export --format nonsense
report nowhere
report bad.jsonl -o out/x.txt
report bad.jsonl --compare a --baseline b
gate
gate --base HEAD --base-python python
gate --base HEAD --looks 8,3
gate --base HEAD --strict --lenient
gate --bisect nonsense
forecast
forecast --gpu H2000
forecast --gpu V100 --ranks 8
baseline list
baseline list --json
baseline show nobody
baseline set ../x
baseline remove nobody
submit cpu
data
"""


STEP = """
PLANTED_S = 0.0

def open_session(cell):
    raise AssertionError("trials have stand-ins")
"""


TIMELESS = mock.patch("time.monotonic", lambda: 1000.0)
"""A stopped clock, because estimates of the remaining time depend on the time passed."""


def stand_in(runner: Any, jobs: Iterable[Any]) -> Iterator[Any]:
    """Yield made-up records in place of `Runner.run`; their speed depends on config, side and step."""
    import factories
    import recordings

    for planned, trial in jobs:
        cell, launch = planned.cell, runner.launch
        side = "current" in runner.run_id
        draw = random.Random(f"{cell.config} {cell.batch_size} {trial} {side}")
        rate = 30 * len(cell.rungs) ** 0.3 * cell.batch_size**0.2 * draw.gauss(1, 0.01)
        rate *= 0.9 if side and cell.rungs == ("fp16",) else 1
        step = (launch.folder or Path()) / "my_step.py"
        if "my_step" in cell.config and step.exists():
            rate /= 1 + 50 * float(step.read_text("utf-8").partition("PLANTED_S = ")[2].split()[0])
        status = "skipped" if planned.skip_reason else "ok"
        status = {("fp16+dali", 4): "failed", ("fp32+dali", 8): "oom"}.get((cell.config, cell.batch_size), status)
        record = factories.make_record(
            cell=cell,
            trial=trial,
            status=status,
            run_id=runner.run_id,
            images_per_s=rate,
            environment=factories.make_environment("a-2cpu", "A Processor", commit="0123456789ab"),
            **({"reason": planned.skip_reason} if planned.skip_reason else {}),
        )
        if launch.request is not None:
            Path(launch.request.path).write_bytes(msgspec.json.encode(recordings.recording(activities=(), calls=())))
        yield msgspec.structs.replace(record, plan=runner.plan, place=planned.place)


def stand_ins(runner: Any, other: Any, planned: Any, trials: Sequence[int]) -> Iterator[Any]:
    """Yield made-up records of both sides in place of `Runner.in_turns`."""
    for place, of_side in enumerate((runner, other)):
        yield place, next(of_side.run([(planned, trials[place])]))


def run_group(runner: Any, group: Any, *_: Any) -> Iterator[Any]:
    """Yield made-up records in place of `Runner.run_group`."""
    return runner.run(group)


def _dated(run: Callable[..., Any], *words: Any, env: dict[str, str], **options: Any) -> Any:
    """git whose commits have the same ids each time."""
    return run(
        *words, env=env | dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2030-01-01T00:00Z"), **options
    )


def trials(folder: Path) -> Iterator[str]:
    """Runs, gates, bisections and profiles whose trials have stand-ins, and what reads the newest of them."""
    import projects

    python, newest = (
        Path(sys.executable),
        ("explain", "claims", "history", "report", "plot", "roofline", "export", "timeline"),
    )
    ceilings(folder, "a-2cpu-2", times=10)  # none is beaten, so that none is measured anew
    runner = internal("Runner")
    run_beside = mock.patch.object(runner, "in_turns", stand_ins, create=True)
    run_in_groups = mock.patch.object(runner, "run_group", run_group, create=True)
    with mock.patch.object(runner, "run", stand_in), run_beside, run_in_groups, TIMELESS:
        run = "run cpu --device cpu --data synthetic"
        yield f"{run} --config fp32,fp32+dali --trials 2"
        yield from newest
        yield "baseline set main"
        yield f"{run} --config fp32,fp32+dali --trials 3 --resume"
        yield f"{run} --config fp* --trials 1 --label all"
        yield f"{run} --config fp32 --trials 1 --json -q"
        yield f"{run} --config fp32 --budget 1m --out elsewhere"
        yield "run networks --device cpu --trials 1 --config fp32"
        yield "compare --baseline main"
        yield "compare --baseline main --allow missing --strict"
        yield "profile fp32 --bs 4 --device cpu --data synthetic --tool ranges"
        yield "profile fp32+dali --bs 8 --device cpu --data synthetic --tool ranges"
        yield from newest
        gate = f"gate cpu --device cpu --data synthetic --base-python {python} --bs 4"
        yield f"{gate} --config fp32,fp16 --dry-run"
        yield f"{gate} --config fp32,fp16 -o out/gate.svg"
        yield f"{gate} --config fp32 --format json --looks 3,6"
        yield f"{gate} --config fp16+dali --format markdown"
        yield f"{gate} --config fp32,bf16 --resume -q --metric throughput,memory"
        for path in sorted(folder.rglob("gate-*-current.jsonl"))[:1]:
            yield f"compare {path.relative_to(folder)} {path.relative_to(folder)}".replace("current", "base", 1)
            yield f"report {path.relative_to(folder)} -o out/report.html"
        with mock.patch("subprocess.run", functools.partial(_dated, subprocess.run)):
            projects.make(folder / "mine")
            for number in range(1, 7):
                step = STEP.replace("0.0", "0.002" if number > 3 else "0.0")
                projects.commit(folder / "mine", my_step__py=f"{step}# {number}\n")
                projects.git(folder / "mine", "tag", f"c{number}")
        with contextlib.chdir(folder / "mine"):
            yield "gate ./my_step.toml --base c3 --current c6 --setup '' --dry-run"
            yield "gate ./my_step.toml --base c1 --current c2 --config deep"
            yield "gate ./my_step.toml --base c3 --format github"
            yield "gate ./my_step.toml --bisect c1..c6 --config deep"
            yield "gate ./my_step.toml --bisect c1..c3 --config deep --json"
            yield "gate ./my_step.toml --bisect c1..c6 --config deep --budget 0.001 --looks 3"
            yield "history"


def training(_: Path) -> Iterator[str]:
    """`tcbench numerics` whose runs have stand-ins."""
    import numerics_documents as documents

    from tcbench.core import numerics

    def train(_: Any, jobs: Iterable[Any]) -> Iterator[Any]:
        import factories

        environment = factories.make_environment("a-2cpu", "A Processor")
        for job in jobs:
            if isinstance(job, numerics.ParityJob):
                yield (
                    job,
                    numerics.ParityFinished(tuple(map(_parity, job.cells)), environment=environment),
                )
                continue
            amounts = {"neither": 0.3, "scaling": 0.1, "masters": 0.2, "no-warm-up": 0.4, "unscaled": 0.2}
            worse = amounts.get(job.technique.name, 0.0)
            run = documents.make_run(job.technique.name, job.cell.seed, worse)
            if job.technique.name == "masters" and job.cell.seed == 1:
                run = numerics.Run(
                    technique="masters", seed=1, status="diverged", reason="diverged at step 3: the loss is nan"
                )
            losses = tuple(itertools.islice(itertools.cycle(run.losses), job.setting.steps)) if run.losses else ()
            gradients = documents.make_gradients() if job.observe_at else None
            yield job, numerics.TrainingFinished(msgspec.structs.replace(run, losses=losses), gradients, environment)

    with mock.patch.object(internal("Trainer"), "run", train), TIMELESS:
        yield "numerics --device cpu --steps 48 --seeds 3"
        yield "numerics --device cpu --steps 48 --seeds 2 --scale 2^12 --json --margin 0.1"
        yield "numerics --device cpu --steps 48 --seeds 1 --global-batch 32"
        yield "numerics --device cpu --steps 48 --seeds 3 --ranks 4"
        yield "numerics --device cpu --second-order --steps 24"
        yield "numerics --device cpu --second-order --steps 24 --json"
        yield "numerics --device cpu --rungs --config fp32*"
        yield "numerics --device cpu --rungs"
        yield "numerics --device cpu --rungs --config fp32+nhwc,bf16 --json"


def _parity(cell: Any) -> Any:
    from tcbench.core.numerics import Distance, ParityRun

    off = 100.0 if cell.rung == "static_graph" else 1.0
    to = Distance(loss=1e-7, update=1e-3, gradient=3e-6 * off, gradient_of="stem.w", length=1e-6, length_of="gamma")
    return ParityRun(
        config=cell.cell.config,
        rung=cell.rung,
        without=cell.without,
        in_scenario=cell.in_scenario,
        to_without=to if cell.rung != "batched" else None,
        to_fp32=to,
        optimizer_distance=1e-6,
        optimizer_parameter="head.w",
        reason="it broke" if cell.rung == "batched" else None,
    )


def traced(_: Path) -> Iterator[Lines]:
    """The works of a step, in order, of every config of every scenario at one small batch size."""
    plan, scenario, gpu = internal("plan"), internal("scenario"), internal("gpus").load("H200")
    device = internal("Device")("cuda:0", gpu.device_name, gpu.memory_bytes, divmod(gpu.sm, 10))
    done: dict[str, str] = {}
    for name in scenario.shipped():
        selection = plan.Selection(batch_sizes=(2,), image_size=64)
        for planned in plan.make(scenario.load(name), selection, device, remote=True).cells:
            cell = planned.cell
            if planned.skip_reason or cell.backend != "chainer" or cell.ranks > 1:
                continue
            key = repr((cell.model, cell.rungs, cell.cudnn.fast_batch_norm))
            if key not in done:
                step_trace = internal("trace")(cell, gpu.properties())
                phases = [f"{phase.name}: {len(phase.events)}" for phase in step_trace.step]
                works = [f"{work!r}" for work in step_trace.works]
                done[key] = f"{name} {cell.model} {cell.config}"
                head = [done[key], f"peak {step_trace.peak_bytes} bytes; {', '.join(phases)}", f"{len(works)} works"]
                yield Lines(f"{cell.model}-{cell.config}".replace(":", "-"), [*head, *works])


def arithmetic(_: Path) -> Iterator[Lines]:
    """Short trainings: in float64 to ten digits and, in `bits`, to the last. In other precisions the digits depend on
    the processor's kernels: there, whether the losses are float64's."""
    import training
    from networks import THIN

    bits: list[str] = []
    exact_losses: Sequence[float] = ()
    exact = ["fp64", "fp64+nhwc", "fp64+nhwc+fused", "fp64+static_graph", "fp64+im2col", "fp64+kfac", "fp64+convstats"]
    low = [f"{dtype}{rest}" for dtype in ("fp32", "fp16", "bf16") for rest in ("", "+batched+nhwc+fused+static_graph")]
    cases = [(config, "smooth", (training.SMOOTH, 32)) for config in (*exact, "fp64+nhwc+fused+convstats", *low)]
    cases += [("fp64+nhwc", name, network) for name, network in THIN.items()]
    lines = []
    for config, name, (geometry, size) in cases:
        ended = training.train(config, 3, geometry=geometry, image_size=size)
        exact_losses = ended.losses if config == "fp64" else exact_losses
        losses = " ".join(f"{loss:.10g}" for loss in ended.losses)
        change = f"{(ended.change**2).sum() ** 0.5:.9g}"
        if "fp64" not in config:
            distance = max(abs(loss / exact - 1) for loss, exact in zip(ended.losses, exact_losses, strict=True))
            losses, change = ("within 2% of fp64's" if distance < 0.02 else losses), "not compared"
        lines.append(f"{name} {config}: losses {losses}; change {change}; {len(ended.running)} statistics")
        if "fp64" in config:
            arrays = (ended.losses, ended.change, *(ended.running[name] for name in sorted(ended.running)))
            digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
            bits.append(f"{name} {config}: {digest}")
    yield Lines("trained", lines)
    yield Lines("bits", bits)


_SLOW = (shipped, ladders, hostile_records, trials, many, gpus, traced)
INPUTS: dict[str, Callable[[Path], Iterable[str | Lines]]] = {
    make.__name__: make for make in (*_SLOW, training, arithmetic, shown, ranks, commits, edges, verdicts)
}
"""The groups of inputs by name, in the order in which they are started: the slowest first."""
