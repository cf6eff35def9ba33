"""The comparisons of the talk, slide by slide, from one's own results: the configs of each, and what it said of
them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from tcbench.analysis.summary import CellSummary, best, speedups
from tcbench.core.errors import SelectionError
from tcbench.present.charts.bars import Bar, BarGroup, Panel, batch_sizes_of, cell_at, panel_chart
from tcbench.present.charts.palette import legend_rows
from tcbench.present.charts.provenance import by_setting, provenance_of
from tcbench.present.charts.text import config_name, drawable
from tcbench.present.format import factor


@dataclass(frozen=True)
class _Slide:
    title: str
    talk: str
    stages: tuple[str, ...]


_SLIDES: dict[int, _Slide] = {
    12: _Slide(
        "fp32 and fp16",
        "In the talk (V100): fp16 is faster from batch size 128 on, slower up to 64; 256 fits in fp16 only.",
        ("fp32", "fp16"),
    ),
    21: _Slide(
        "fp16 with DALI",
        "In the talk (V100): faster than fp32 from batch size 64 on; 128 about as fast as 256; slower at 32.",
        ("fp32", "fp16", "fp16+dali"),
    ),
    27: _Slide(
        "fp16 with fewer GPU operations: batched, NHWC, fused",
        "In the talk (V100): faster than fp32 at every batch size; 32 gets about a third of 256.",
        ("fp32", "fp16", "fp16+dali", "fp16+dali+batched+nhwc+fused"),
    ),
    31: _Slide(
        "fp16 with static_graph",
        "In the talk (V100): faster at batch sizes 32 and 64; does not run from 128 on.",
        ("fp32", "fp16", "fp16+dali", "fp16+dali+batched+nhwc+fused", "fp16+dali+batched+nhwc+fused+static_graph"),
    ),
    33: _Slide(
        "fp32, fp16, and the best of all",
        "In the talk (V100): the best is up to 3 times as fast as fp32.",
        ("fp32", "fp16"),
    ),
}

SLIDES = tuple(_SLIDES)
"""The slides of the talk that compare configs."""


def slide_chart(summaries: Sequence[CellSummary], slide: int) -> Figure:
    """One comparison of the talk. "Best" (slide 33) is the fastest config that is ok, whatever its dtype. Configs are
    known by their rungs, in whatever order; cells that were never run say so in their place and are named below. Raises
    SelectionError for another slide, or when none of the slide's configs was run."""
    if slide not in _SLIDES:
        raise SelectionError(f"--slide {slide}: expected one of {', '.join(map(str, SLIDES))}")
    spec = _SLIDES[slide]
    summaries = [s for s in summaries if "/" not in s.cell.config]  # the talk had no other backend
    stages = [_named_here(stage, summaries) for stage in spec.stages]
    chosen = [s for s in summaries if s.cell.config in stages]
    if not chosen:
        raise SelectionError(f"--slide {slide}: no results of {', '.join(stages)}; `tcbench run` makes some")
    keep = {s.setting for s in chosen}
    settings = by_setting([s for s in summaries if s.setting in keep])
    winners: dict[str, list[int]] = {}
    not_run: list[str] = []

    def groups_of(here: Sequence[CellSummary]) -> Iterable[BarGroup]:
        shown = here if slide == 33 else [s for s in here if s.cell.config in stages]
        for batch_size in batch_sizes_of(shown):
            bars = [Bar(config, cell_at(here, config, batch_size)) for config in stages]
            not_run.extend(f"{b.config} at {batch_size}" for b in bars if b.summary is None)
            if slide == 33:
                bars.append(best_bar(here, batch_size))
            yield BarGroup(str(batch_size), tuple(bars))

    def best_bar(here: Sequence[CellSummary], batch_size: int) -> Bar:
        winner = best(s for s in here if s.cell.batch_size == batch_size)
        if winner is None:
            return Bar("best", None)
        winners.setdefault(winner.cell.config, []).append(batch_size)
        ratio = next(r for s, r in zip(here, speedups(here), strict=True) if s is winner)
        return Bar(winner.cell.config, winner, f"best\n{factor(ratio.value)}" if ratio else "best")

    provenance = provenance_of(settings)
    panels = [Panel(provenance.names[setting], tuple(groups_of(here))) for setting, here in settings.items()]
    rows = legend_rows(stages)
    if slide == 33:
        rows = [[(config, config) for config in stages]]
        for config, sizes in winners.items():
            at = f" at {', '.join(map(str, sorted(sizes)))}" if len(settings) == 1 else ""
            rows.append([(config, f"best{at}: {config_name(config)}")])
    notes = [drawable(f"not run: {', '.join(not_run)}")] if not_run else []
    if slide == 33 and winners:
        notes.insert(0, "best: the fastest config of all that were run, and how many times as fast as fp32")
    return panel_chart(panels, rows, provenance.common, f"Slide {slide}: {spec.title}", spec.talk, notes)


def _named_here(stage: str, summaries: Sequence[CellSummary]) -> str:
    """The config of the results that has a stage's rungs, in whatever order; the stage itself when none has."""
    wanted = frozenset(stage.split("+"))
    return next((s.cell.config for s in summaries if frozenset(s.cell.rungs) == wanted), stage)
