"""Throughput in bars: the talk's chart of all cells by batch size, with the section of the page and its table; machines
beside each other; and the comparisons of the talk, slide by slide."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from matplotlib.figure import Figure

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import BASE, CellKey, CellSummary, Setting, base_config, best, speedups
from tcbench.commands.run.table import footnotes
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.show import cells
from tcbench.show.cells import Row
from tcbench.show.charts.bars import Bar, BarGroup, batch_sizes_of, cell_at, panel_chart
from tcbench.show.charts.palette import SERIES, legend_rows
from tcbench.show.charts.provenance import by_setting, provenance_of
from tcbench.show.charts.text import config_name, drawable
from tcbench.show.format import factor
from tcbench.show.page import drawings
from tcbench.show.page.drawings import Swatches
from tcbench.show.page.page import AnyBlock, Section
from tcbench.show.page.settings import SettingCells, Settings, left_out
from tcbench.show.tables import COUNT, Column, Table
from tcbench.show.verdicts import STATUS_BADGES


def throughput_chart(summaries: Sequence[CellSummary], *, title: str = "", subtitle: str = "") -> Figure:
    """A panel per setting: images/s by batch size, a colour per config. Without a title it has that of whole runs.
    Raises SelectionError for nothing to draw."""
    configs = list(dict.fromkeys(summary.cell.config for summary in summaries))
    settings = by_setting(summaries)
    provenance = provenance_of(settings)

    def groups(here: Sequence[CellSummary]) -> Iterator[BarGroup]:
        for n in batch_sizes_of(here):
            yield str(n), [Bar(config, cell_at(here, config, n)) for config in configs]

    panels = [(provenance.names[setting], [*groups(here)]) for setting, here in settings.items()]
    if not title:
        scenarios = dict.fromkeys(summary.cell.scenario for summary in summaries)
        title, subtitle = "Training throughput", f"Scenario {', '.join(scenarios)}"
    return panel_chart(panels, legend_rows(configs), provenance.common, title, subtitle)


Speedups = Mapping[CellKey, Interval | None]
"""Each cell's images/s over the base's."""


def throughput_section(settings: Settings, over_base: Speedups, swatches: Swatches) -> Section:
    """Setting by setting."""

    def figure(part: SettingCells) -> AnyBlock:
        per_second = f"{part.setting.cell.unit.capitalize()} per second"
        title, groups = part.titled(per_second), [*part.by_batch_size.values()]
        notes = [*left_out({"configs": len(part.configs), "batch sizes": len(groups)}), *footnotes(part.summaries)]
        if any(len(group) > 1 and best(group) for group in groups):
            base = base_config(part.summaries)
            notes.append(
                f"Bold in the table: the fastest at its batch size. Factors are over {base} at the same batch size."
            )
        best_of = {id(best(group)) for group in groups if len(group) > 1}
        heads = (
            Column[Row]("batch", lambda row: row.summary.cell.batch_size, COUNT),
            Column[Row](
                "config", lambda row: swatches.config(row.summary.cell.config, strong=id(row.summary) in best_of)
            ),
            Column[Row]("status", lambda row: STATUS_BADGES[row.summary.status]),
        )
        rows = [Row(summary, over_base[summary.key]) for group in groups for summary in group]
        table = Table((*heads, *cells.columns(part.summaries)), rows, title)
        chart = functools.partial(throughput_chart, part.drawn, title=per_second)
        return drawings.setting_block(part, chart, title, "throughput", table, notes)

    return Section("throughput", "Throughput", settings.blocks(figure))


BEST = "best"


def machines_chart(summaries: Sequence[CellSummary], configs: Sequence[str] = (BASE, BEST)) -> Figure:
    """A panel per config with a group per batch size, in which each machine (or other setting) has a bar of its own
    colour. "best" is the fastest config of each machine at each batch size, whatever its dtype. Raises SelectionError
    when there is nothing to draw or there are more settings than colours."""
    settings = by_setting(summaries)
    if len(settings) > len(SERIES):
        raise SelectionError(
            f"results of {len(settings)} different settings (machine, device, input, commit, ...) do not fit beside "
            f"each other (at most {len(SERIES)}); name fewer files"
        )
    provenance = provenance_of(settings)
    fills = dict(zip(settings, SERIES, strict=False))
    device = next((s.environment.device_name for s in summaries if s.environment), "unknown machine")
    names = {setting: name or device for setting, name in provenance.names.items()}  # an only setting has no name
    winners: dict[Setting, dict[str, list[int]]] = {}

    def bar(setting: Setting, config: str, batch_size: int) -> Bar:
        here = settings[setting]
        if config != BEST:
            return Bar(config, cell_at(here, config, batch_size), fill=fills[setting])
        there = [s for s in here if s.cell.batch_size == batch_size]
        winner = best(there)
        if winner is not None:
            winners.setdefault(setting, {}).setdefault(winner.cell.config, []).append(batch_size)
        # Where nothing is ok, one of those that were run says why.
        return Bar(BEST, winner or next(iter(there), None), fill=fills[setting])

    panels = []
    for config in configs:
        there = [s for s in summaries if config in (BEST, s.cell.config)]
        groups = [(str(n), [bar(setting, config, n) for setting in settings]) for n in batch_sizes_of(there)]
        if groups:
            panels.append(("the best config of each" if config == BEST else config_name(config), groups))
    if not panels:
        raise SelectionError(f"no results of {', '.join(configs)} to plot; `tcbench run` makes some")
    best_of = grouped(
        ("; ".join(f"{config} at {', '.join(map(str, sizes))}" for config, sizes in won.items()), names[setting])
        for setting, won in winners.items()
    )
    notes = [drawable(f"best of {', '.join(where)}: {won}") for won, where in best_of.items()]
    rows = [[(str(place), name) for place, name in enumerate(names.values())]]
    several_machines = len({setting.machine for setting in settings}) == len(settings)
    title = f"Throughput by {'machine' if several_machines else 'setting'}"
    subtitle = f"Scenario {', '.join(dict.fromkeys(s.cell.scenario for s in summaries))}"
    return panel_chart(panels, rows, provenance.common, title, subtitle, notes, lambda place: SERIES[int(place)])


SLIDES: dict[int, tuple[str, str, tuple[str, ...]]] = {
    12: (
        "fp32 and fp16",
        "In the talk (V100): fp16 is faster from batch size 128 on, slower up to 64; 256 fits in fp16 only.",
        ("fp32", "fp16"),
    ),
    21: (
        "fp16 with DALI",
        "In the talk (V100): faster than fp32 from batch size 64 on; 128 about as fast as 256; slower at 32.",
        ("fp32", "fp16", "fp16+dali"),
    ),
    27: (
        "fp16 with fewer GPU operations: batched, NHWC, fused",
        "In the talk (V100): faster than fp32 at every batch size; 32 gets about a third of 256.",
        ("fp32", "fp16", "fp16+dali", "fp16+dali+batched+nhwc+fused"),
    ),
    31: (
        "fp16 with static_graph",
        "In the talk (V100): faster at batch sizes 32 and 64; does not run from 128 on.",
        ("fp32", "fp16", "fp16+dali", "fp16+dali+batched+nhwc+fused", "fp16+dali+batched+nhwc+fused+static_graph"),
    ),
    33: (
        "fp32, fp16, and the best of all",
        "In the talk (V100): the best is up to 3 times as fast as fp32.",
        ("fp32", "fp16"),
    ),
}
"""The slides of the talk that compare configs: a title, what the talk said, and the configs."""


def slide_chart(summaries: Sequence[CellSummary], slide: int) -> Figure:
    """One comparison of the talk. "Best" (slide 33) is the fastest config that is ok, whatever its dtype. Configs are
    known by their rungs, in whatever order; cells that were never run say so in their place and are named below. Raises
    SelectionError for another slide, or when none of the slide's configs was run."""
    if slide not in SLIDES:
        raise SelectionError(f"--slide {slide}: expected one of {', '.join(map(str, SLIDES))}")
    title, talk, wanted = SLIDES[slide]
    summaries = [s for s in summaries if "/" not in s.cell.config]  # the talk had no other backend
    named = {frozenset(s.cell.rungs): s.cell.config for s in reversed(summaries)}
    stages = [named.get(frozenset(stage.split("+")), stage) for stage in wanted]
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
            yield str(batch_size), bars

    def best_bar(here: Sequence[CellSummary], batch_size: int) -> Bar:
        winner = best(s for s in here if s.cell.batch_size == batch_size)
        if winner is None:
            return Bar("best", None)
        winners.setdefault(winner.cell.config, []).append(batch_size)
        ratio = next(r for s, r in zip(here, speedups(here), strict=True) if s is winner)
        return Bar(winner.cell.config, winner, f"best\n{factor(ratio.value)}" if ratio else "best")

    provenance = provenance_of(settings)
    panels = [(provenance.names[setting], [*groups_of(here)]) for setting, here in settings.items()]
    rows = legend_rows(stages)
    if slide == 33:
        rows = [[(config, config) for config in stages]]
        for config, sizes in winners.items():
            at = f" at {', '.join(map(str, sorted(sizes)))}" if len(settings) == 1 else ""
            rows.append([(config, f"best{at}: {config_name(config)}")])
    notes = [drawable(f"not run: {', '.join(not_run)}")] if not_run else []
    if slide == 33 and winners:
        notes.insert(0, "best: the fastest config of all that were run, and how many times as fast as fp32")
    return panel_chart(panels, rows, provenance.common, f"Slide {slide}: {title}", talk, notes)
