"""The comparison as JSON, for programs: everything that is known, with units in the names."""

from typing import Any

from tcbench.analysis.compare import CellComparison, Comparison, Side
from tcbench.present.document import document, fields
from tcbench.present.sides import UNNAMED, Labels
from tcbench.views.comparison import wording


def to_json(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """One JSON object, with a line's end. A limit that is not finite is null. In form 1 `figure`, `figures` and `ratio`
    of throughput were at the median step, which `median_step_images_per_s` is."""
    called = wording.names(comparison.cells)
    text = document(
        "tcbench-comparison",
        2,
        **fields(labels, "base current"),
        **fields(comparison, "threshold=rule.threshold level=rule.level failing inconclusive unsettled"),
        power={
            "slowdown": comparison.rule.slowdown,
            "seen": comparison.power,
            "seen_in_a_phase": comparison.phase_power,
        },
        paired_cells=comparison.paired,
        verdicts=dict(comparison.verdicts),
        geometric_means=[fields(mean, "metric=metric.name cells ratio") for mean in comparison.means],
        **fields(comparison, "differences notes"),
        cells=[_cell(cell, name) for cell, name in zip(comparison.cells, called, strict=True)],
    )
    return text + "\n"


def _cell(cell: CellComparison, name: str) -> dict[str, Any]:
    of, metric = cell.cell, cell.metric
    return {
        "name": name,
        **fields(of, "config backend scenario batch_size ranks"),
        "image_size": None if of.is_own else of.image_size,
        "device": of.device,
        "input": fields(of.input, "kind path"),
        "metric": {"name": metric.name, "unit": wording.unit(metric, [of]), "more_is_better": metric.more_is_better},
        **fields(cell, "verdict failing why"),
        "says": wording.sentence(cell),
        **fields(cell, "ratio ratio_by_round=by_round held_back more_trials_a_side=more_trials phases_clock=clock"),
        **fields(cell, "phases culprit=culprit.name moved differences"),
        "base": _side(cell.base),
        "current": _side(cell.current),
    }


def _side(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        **fields(side, "machine cell_key=cell.key status reason trials trials_ok figure figures"),
        **fields(side, "total_time_images_per_s=images_per_s median_step_images_per_s=median_images_per_s"),
        **fields(side, "spike_share=spikes notes"),
    }
