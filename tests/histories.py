"""Records of several commits: what the tests of histories share.

Imported as `import histories`: the suite's `pythonpath` is `tests`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from factories import make_environment, make_trials

from tcbench.core.record import Record


def commit(number: int) -> str:
    """A commit's name."""
    return f"{(number + 1) * 0x9E3779B97F4A:012x}"[-12:]


def over_commits(
    rates: Sequence[float],
    config: str = "fp32",
    batch_size: int = 4,
    trials: int = 8,
    *,
    spread: float = 0.005,
    environments: Sequence[dict[str, Any]] = (),
    **changes: Any,
) -> list[Record]:
    """A cell at one commit a day, each with a run of its own; `environments` hold changes of single days'."""
    records: list[Record] = []
    for day, images_per_s in enumerate(rates):
        facts = {"commit": commit(day), **(environments[day] if day < len(environments) else {})}
        fields = {
            "run_id": f"cpu-{20250101 + day}-000000",
            "started_at": f"2025-{1 + day // 28:02}-{1 + day % 28:02}T03:04:05.678+00:00",
            "environment": make_environment(**facts),
            **changes,
        }
        records += make_trials(config, batch_size, trials, images_per_s=images_per_s, spread=spread, seed=day, **fields)
    return records


def shuffled(records: Iterable[Record]) -> list[Record]:
    """Return the records in an order that is not chronological."""
    return sorted(records, key=lambda record: (record.trial, record.started_at[::-1]))
