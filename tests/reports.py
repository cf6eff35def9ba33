"""Results for tests of the report: a whole ladder with everything beside it, and the cases at the edges.

Imported as `import reports`: the suite's `pythonpath` is `tests`.
"""

from collections.abc import Iterable, Sequence

import factories
import msgspec
import timelines

from tcbench.analysis.claims import ScenarioClaims, scorecards
from tcbench.analysis.compare import compare
from tcbench.analysis.explanation import explain
from tcbench.commands.report.build import Compared, ReportInput
from tcbench.core import record
from tcbench.core.claim import Claim, ClaimSide
from tcbench.core.record import Cell, Record
from tcbench.core.text import plain

RATES = (30.0, 33.0, 32.6, 47.0, 52.0, 9.0, 9.1, 15.0, 25.0, 26.0)
"""Images/s of the ten configs at batch size 4."""

ALERT = "<script>alert(1)</script>"
HOSTILE = (ALERT, '"><img src=x onerror=alert(2)>', "a'b\"c</script></style><!--", "{{ 7 * 7 }}", "\u202ereversed\x00")
"""Names that would be markup, script or a template's if nobody looked."""

CLAIMS = (
    Claim("fp16 is slower than fp32", "slower", ClaimSide("fp16"), (4, 8), slide=12, right=ClaimSide("fp32")),
    Claim("+ DALI is faster", "faster", ClaimSide("fp32+dali"), (4, 8), slide=21, right=ClaimSide("fp32"), factor=1.5),
    Claim("fp32 runs", "runs", ClaimSide("fp32"), (4, 8), slide=14),
    Claim("fp16 trains like fp32", "trains like", ClaimSide("fp16"), (4,), slide=5, right=ClaimSide("fp32")),
)


def results(records: Iterable[Record], **changes) -> ReportInput:
    records = tuple(records)
    return ReportInput(records=records, explanations=explain(records), **changes)


def ladders(trials: int = 3, sizes: Sequence[int] = (4, 8), factor: float = 1.0, **changes) -> list[Record]:
    """The ten configs, each with its own throughput."""
    return [
        record
        for place, (config, rate) in enumerate(zip(factories.LADDERS, RATES, strict=True))
        for size in sizes
        for record in factories.make_trials(
            config, size, trials, images_per_s=factor * rate * (1 + size / 16), seed=place, **changes
        )
    ]


def full() -> ReportInput:
    """Everything a page can have: two ladders, failures, claims, timelines and a comparison."""
    bad = [
        factories.make_record("fp32+opencv", 4, status="skipped"),
        factories.make_record("fp32+opencv", 8, status="skipped"),
        factories.make_record("fp16+dynamic_scale", 4, status="failed"),
        factories.make_record("fp16+dynamic_scale", 8, status="oom"),
        factories.make_record("fp16+dali+batched", 8, status="timeout", trial=7),
    ]
    records = [*ladders(5), *bad]
    before = [*ladders(5, factor=1.005, run_id="before"), factories.make_record("tf32", 4, run_id="before")]
    slower = [r for r in before if r.cell.config != "fp16" or r.cell.batch_size != 8]
    slower += factories.make_trials("fp16", 8, 5, images_per_s=16.0, run_id="before")
    return results(
        records,
        cards=cards(records),
        timelines=tuple(timelines.talk().values()),
        compared=Compared(compare(slower, records), "baseline main"),
        notes=("results/cpu.jsonl: the last line is cut off and was left out; 105 records read",),
    )


def cards(records: Sequence[Record]):
    return scorecards(records, lambda cell: ScenarioClaims(cell.scenario, CLAIMS))


def single() -> ReportInput:
    return results([factories.make_record()])


def failed() -> ReportInput:
    """Nothing ran."""
    return results([factories.make_record("fp32", status="crashed"), factories.make_record("fp16", status="oom")])


def no_ladder() -> ReportInput:
    return results(factories.make_trials("fp32", 4, 3) + factories.make_trials("fp16", 4, 3))


def machines(trials: int = 3) -> ReportInput:
    """Four settings of ten configs at four batch sizes: 160 cells."""
    records = []
    for number in range(4):
        environment = factories.make_environment(f"machine-{number}", f"Processor {number}")
        records += ladders(trials, (32, 64, 128, 256), 1 + number, environment=environment, run_id=f"run-{number}")
    return results(records)


def many_configs(trials: int = 3) -> ReportInput:
    """Forty configs at four batch sizes: 160 cells."""
    extra = ("", "+opencv", "+dynamic_scale", "+convstats")
    configs = [config + rung for config in factories.LADDERS for rung in extra]
    return results(
        record
        for place, config in enumerate(configs)
        for size in (32, 64, 128, 256)
        for record in factories.make_trials(config, size, trials, images_per_s=200 + 9 * place + size, seed=place)
    )


def hostile() -> ReportInput:
    """Every text that a record may hold is somebody's script; what is not printable is cleaned as a file is read."""
    records = []
    for place, name in enumerate(HOSTILE):
        cell = hostile_cell(name)
        environment = factories.make_environment(
            name, name, cpu=name, os=name, kernel=name, python=name, blas=name, tcbench=name, commit=name,
            packages={name: name},
        )  # fmt: skip
        texts = {"environment": environment, "run_id": name, "started_at": name}
        records.append(factories.make_record(cell=cell, images_per_s=10.0 + place, **texts))
        other = msgspec.structs.replace(cell, batch_size=8)
        records.append(factories.make_record(cell=other, status="failed", reason=f"{name} failed", log=name, **texts))
    records = [record.decode(record.encode(trial)) for trial in records]
    again = [msgspec.structs.replace(trial, run_id="other") for trial in records]
    return results(
        records,
        timelines=(timelines.training(ALERT, timelines.HOST, {"forward": 52.0, "backward": 108.0, "update": 6.0}),),
        compared=Compared(compare(again, records), ALERT),
        notes=tuple(map(plain, HOSTILE)),
        title=ALERT,
    )


def hostile_cell(name: str) -> Cell:
    return factories.make_cell(name, 4, scenario=name, rungs=(name, "x"), model=name, variant=name)
