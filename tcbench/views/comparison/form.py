"""The comparison as JSON, for programs: everything that is known, with units in the names."""

from __future__ import annotations

from typing import Any

from tcbench.analysis.compare import CellComparison, Comparison, Side
from tcbench.present.document import encoded
from tcbench.present.sides import UNNAMED, Labels
from tcbench.views.comparison import wording

SCHEMA = "tcbench-comparison"
SCHEMA_VERSION = 2
"""Of the JSON. History: 1, first form, throughput at the median step; 2, throughput over total time: `figure`,
`figures` and `ratio` of that metric; `median_step_images_per_s` is new."""


def to_json(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """One JSON object, with a line's end. A limit that is not finite is null."""
    called = wording.names(comparison.cells)
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "base": labels.base,
        "current": labels.current,
        "threshold": comparison.rule.threshold,
        "level": comparison.rule.level,
        "failing": comparison.failing,
        "inconclusive": comparison.inconclusive,
        "unsettled": comparison.unsettled,
        "power": {"slowdown": comparison.rule.slowdown, "seen": comparison.power},
        "paired_cells": comparison.paired,
        "verdicts": dict(comparison.verdicts),
        "geometric_means": [
            {"metric": mean.metric.name, "cells": mean.cells, "ratio": mean.ratio} for mean in comparison.means
        ],
        "differences": comparison.differences,
        "notes": comparison.notes,
        "cells": [_cell(cell, name) for cell, name in zip(comparison.cells, called, strict=True)],
    }
    return encoded(value) + "\n"


def _cell(cell: CellComparison, name: str) -> dict[str, Any]:
    of = cell.cell
    metric = cell.metric
    return {
        "name": name,
        "config": of.config,
        "backend": of.backend,
        "scenario": of.scenario,
        "batch_size": of.batch_size,
        "ranks": of.ranks,
        "image_size": None if of.is_own else of.image_size,
        "device": of.device,
        "input": {"kind": of.input.kind, "path": of.input.path},
        "metric": {"name": metric.name, "unit": wording.unit(metric, [of]), "more_is_better": metric.more_is_better},
        "verdict": cell.verdict,
        "failing": cell.failing,
        "why": cell.why,
        "says": wording.sentence(cell),
        "ratio": cell.ratio,
        "ratio_by_round": cell.by_round,
        "held_back": cell.held_back,
        "more_trials_a_side": cell.more_trials,
        "phases_clock": cell.clock,
        "phases": cell.phases,
        "culprit": cell.culprit and cell.culprit.name,
        "differences": cell.differences,
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
        "figure": side.figure,
        "figures": side.figures,
        "total_time_images_per_s": side.images_per_s,
        "median_step_images_per_s": side.median_images_per_s,
        "spike_share": side.spikes,
        "notes": side.notes,
    }
