"""The comparison as JSON, for programs: everything that is known, with units in the names."""

from __future__ import annotations

import json
import math
from typing import Any

from tcbench.analysis.comparability import Difference
from tcbench.analysis.compare import CellComparison, Comparison, PhaseChange, Side
from tcbench.analysis.stats import Interval
from tcbench.show.comparison import wording
from tcbench.show.comparison.wording import UNNAMED, Labels

SCHEMA = "tcbench-comparison"
SCHEMA_VERSION = 2
"""Of the JSON. History: 1, first form, throughput at the median step; 2, throughput over total time: `figure`,
`figures` and `ratio` of that metric; `median_step_images_per_s` is new."""


def to_json(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """One JSON object, with a line's end."""
    return json.dumps(to_value(comparison, labels), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_value(comparison: Comparison, labels: Labels = UNNAMED) -> dict[str, Any]:
    """The same as values that JSON knows. A limit that is not finite is None."""
    called = wording.names(comparison.cells)
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "base": labels.base,
        "current": labels.current,
        "threshold": comparison.rule.threshold,
        "level": comparison.rule.level,
        "failing": comparison.failing,
        "inconclusive": comparison.inconclusive,
        "paired_cells": comparison.paired,
        "verdicts": dict(comparison.verdicts),
        "geometric_means": [
            {"metric": mean.metric.name, "cells": mean.cells, "ratio": _interval(mean.ratio)}
            for mean in comparison.means
        ],
        "differences": [_difference(one) for one in comparison.differences],
        "notes": list(comparison.notes),
        "cells": [_cell(cell, name) for cell, name in zip(comparison.cells, called, strict=True)],
    }


def _cell(cell: CellComparison, name: str) -> dict[str, Any]:
    of = cell.cell
    metric = cell.metric
    return {
        "name": name,
        "config": of.config,
        "backend": of.backend,
        "scenario": of.scenario,
        "batch_size": of.batch_size,
        "image_size": of.image_size,
        "device": of.device,
        "input": {"kind": of.input.kind, "path": of.input.path},
        "metric": {"name": metric.name, "unit": metric.unit, "more_is_better": metric.more_is_better},
        "verdict": cell.verdict,
        "failing": cell.failing,
        "why": cell.why,
        "says": wording.sentence(cell),
        "ratio": _interval(cell.ratio),
        "ratio_by_round": cell.by_round,
        "more_trials_a_side": cell.more_trials,
        "phases_clock": cell.clock,
        "phases": [_phase(phase) for phase in cell.phases],
        "culprit": cell.culprit and cell.culprit.name,
        "differences": [_difference(one) for one in cell.differences],
        "base": _side(cell.base),
        "current": _side(cell.current),
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "machine": side.machine,
        "cell_key": side.cell.key,
        "status": side.status,
        "reason": side.reason,
        "trials": side.trials,
        "trials_ok": side.trials_ok,
        "figure": _finite(side.figure),
        "figures": [_finite(figure) for figure in side.figures],
        "total_time_images_per_s": _finite(side.images_per_s),
        "median_step_images_per_s": _finite(side.median_images_per_s),
        "spike_share": side.spikes,
        "notes": list(side.notes),
    }


def _phase(phase: PhaseChange) -> dict[str, Any]:
    return {
        "name": phase.name,
        "base_s": phase.base_s,
        "current_s": phase.current_s,
        "change_s": _interval(phase.change_s),
    }


def _difference(one: Difference) -> dict[str, str]:
    return {"facet": one.facet, "what": one.what, "base": one.base, "current": one.current}


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    if interval is None:
        return None
    return {name: _finite(getattr(interval, name)) for name in ("value", "low", "high")}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
