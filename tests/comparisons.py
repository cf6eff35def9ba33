"""Comparisons for the tests of every format."""

from typing import Any

import factories
import msgspec

from tcbench.analysis.compare import Comparison, compare
from tcbench.commands.compare.cell_report import ComparisonReport, comparison_report
from tcbench.core import record
from tcbench.core.record import Record


def reported(*sides: Any, **how: Any) -> ComparisonReport:
    """The report of a comparison."""
    return comparison_report(compare(*sides, **how))


NASTY = (
    *("<script>alert(1)</script>", "a|b", "`code` ``` and *stars* __under__", "line\nbreak\r\nand\ttab"),
    *("\x1b[31mred\x07\x00\x0b", "::error::injected%0A", "]]> & &amp; \"quoted\" 'single'"),
    *("@team #12 https://example.org www.example.org ![x](http://example.org/x)", "\u202eright to left\u2066"),
    *("<!-- --> <details>", "=cmd()", "\ufffe\uffff\U0010ffff"),
)


def sides(configs: dict[str, float], trials: int = 8, spread: float = 0.01) -> tuple[list[Record], list[Record]]:
    """Base at 40 images/s, current at its share of that, config by config."""
    base = [r for config in configs for r in factories.make_trials(config, trials=trials, spread=spread)]
    current = [
        record
        for config, share in configs.items()
        for record in factories.make_trials(config, trials=trials, images_per_s=40 * share, spread=spread, seed=1)
    ]
    return base, current


def one_of_each(metrics: tuple[str, ...] = ("throughput",)) -> Comparison:
    """Every verdict there is."""
    base, current = sides({"slower": 0.9, "same": 1.0, "faster": 1.1, "lost": 1.0})
    current = [record for record in current if record.cell.config != "lost"]
    base += factories.make_trials("vague", trials=3, spread=0.1)
    current += factories.make_trials("vague", trials=3, spread=0.1, seed=1, images_per_s=39)
    base += [
        factories.make_record("single"),
        *factories.make_trials("broken"),
        factories.make_record("sick", status="oom"),
    ]
    current += [
        factories.make_record("single"),
        factories.make_record("broken", status="oom"),
        *factories.make_trials("sick"),
        *factories.make_trials("added"),
    ]
    for side in (base, current):
        side.append(factories.make_record("never", status="skipped"))
    return compare(base, current, metrics)


def nasty(text: str) -> Comparison:
    """A regression, a failure, a machine, a note and a difference that all say `text`, read as from files."""
    base, current = sides({text: 0.9})
    base += factories.make_trials(f"x {text}")
    current.append(factories.make_record(f"x {text}", status="failed", reason=text))

    def renamed(original: Record, **changes: Any) -> Record:
        phases = tuple(msgspec.structs.replace(p, name=p.name + text) for p in original.measurement.phases)
        return factories.remeasured(original, phases=phases, **changes)

    other = factories.make_environment(machine=text, os=text, packages={text: text})
    current = [msgspec.structs.replace(trial, environment=other) for trial in current]
    measured = [renamed(trial, warmup_settled=False) if trial.measurement else trial for trial in current]
    read = [[record.decode(record.encode(trial)) for trial in side] for side in (map(renamed, base), measured)]
    return compare(*read, ("throughput", "memory"))
