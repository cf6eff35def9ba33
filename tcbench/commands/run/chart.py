"""Bar charts of throughput: all cells by batch size, machines side by side, and the slides of the talk."""

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
    """Draw images/s by batch size, with a panel per setting and a colour per config.

    Without a title, title and subtitle are those of a whole run. Raises SelectionError if there is nothing to draw."""
    configs = list(dict.fromkeys(summary.cell.config for summary in summaries))
    settings = by_setting(summaries)
    provenance = provenance_of(settings)

    def groups(cells: Sequence[CellSummary]) -> Iterator[BarGroup]:
        for n in batch_sizes_of(cells):
            yield str(n), [Bar(config, cell_at(cells, config, n)) for config in configs]

    panels = [(provenance.names[setting], [*groups(cells)]) for setting, cells in settings.items()]
    if not title:
        scenarios = dict.fromkeys(summary.cell.scenario for summary in summaries)
        title, subtitle = "Training throughput", f"Scenario {', '.join(scenarios)}"
    return panel_chart(panels, legend_rows(configs), provenance.common, title, subtitle)


Speedups = Mapping[CellKey, Interval | None]
"""The speed-up of each cell over the base at the same batch size."""


def throughput_section(settings: Settings, over_base: Speedups, swatches: Swatches) -> Section:
    """Return the page's section on throughput, with a chart and a table for each setting."""

    def figure(part: SettingCells) -> AnyBlock:
        """Return the chart and table of one setting."""
        per_second = f"{part.setting.cell.unit.capitalize()} per second"
        title, groups = part.titled(per_second), [*part.by_batch_size.values()]
        notes = [*left_out({"configs": len(part.configs), "batch sizes": len(groups)}), *footnotes(part.summaries)]
        if any(len(group) > 1 and best(group) for group in groups):
            base = base_config(part.summaries)
            notes.append(
                f"Bold in the table: the fastest at its batch size. Factors are relative to {base} at that batch size."
            )
        winner_ids = {id(best(group)) for group in groups if len(group) > 1}
        heads = (
            Column[Row]("batch", lambda row: row.summary.cell.batch_size, COUNT),
            Column[Row](
                "config", lambda row: swatches.config(row.summary.cell.config, strong=id(row.summary) in winner_ids)
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
    """Draw machines (or other settings) side by side: a panel per config, a group per batch size, a colour per machine.

    The config "best" stands for each machine's fastest config at each batch size. Raises SelectionError if there is
    nothing to draw, or if there are more settings than colours."""
    settings = by_setting(summaries)
    if len(settings) > len(SERIES):
        raise SelectionError(
            f"results of {len(settings)} different settings (machine, device, input, commit, ...) do not fit side "
            f"by side (at most {len(SERIES)}); name fewer files"
        )
    provenance = provenance_of(settings)
    fills = dict(zip(settings, SERIES, strict=False))
    device = next((s.environment.device_name for s in summaries if s.environment), "unknown machine")
    names = {setting: name or device for setting, name in provenance.names.items()}  # a single setting has no name
    winners: dict[Setting, dict[str, list[int]]] = {}

    def bar(setting: Setting, config: str, batch_size: int) -> Bar:
        """Return the bar of a config in a setting, or for BEST of the setting's fastest config, which is also added to
        `winners`."""
        if config != BEST:
            return Bar(config, cell_at(settings[setting], config, batch_size), fill=fills[setting])
        candidates = [s for s in settings[setting] if s.cell.batch_size == batch_size]
        winner = best(candidates)
        if winner is not None:
            winners.setdefault(setting, {}).setdefault(winner.cell.config, []).append(batch_size)
        # If no cell is ok, the first one says why.
        return Bar(BEST, winner or next(iter(candidates), None), fill=fills[setting])

    panels = []
    for config in configs:
        config_cells = [s for s in summaries if config in (BEST, s.cell.config)]
        groups = [(str(n), [bar(setting, config, n) for setting in settings]) for n in batch_sizes_of(config_cells)]
        if groups:
            panels.append(("the best config of each" if config == BEST else config_name(config), groups))
    if not panels:
        raise SelectionError(f"no results of {', '.join(configs)} to plot; measure some with `tcbench run`")
    settings_by_winners = grouped(
        ("; ".join(f"{config} at {', '.join(map(str, sizes))}" for config, sizes in configs.items()), names[setting])
        for setting, configs in winners.items()
    )
    notes = [drawable(f"best of {', '.join(where)}: {words}") for words, where in settings_by_winners.items()]
    rows = [[(str(place), name) for place, name in enumerate(names.values())]]  # indices of SERIES as configs
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
"""The slides of the talk that compare configs: title, result in the talk, and configs."""


def slide_chart(summaries: Sequence[CellSummary], slide: int) -> Figure:
    """Draw one comparison of the talk.

    "best" on slide 33 is the fastest config of any dtype. Configs match by their rungs in any order. Cells that did not
    run are marked. Raises SelectionError for an unknown slide, or if none of its configs was run."""
    if slide not in SLIDES:
        raise SelectionError(f"--slide {slide}: expected one of {', '.join(map(str, SLIDES))}")
    title, talk, slide_configs = SLIDES[slide]
    summaries = [s for s in summaries if "/" not in s.cell.config]  # the talk had no other backend
    by_rungs = {frozenset(s.cell.rungs): s.cell.config for s in reversed(summaries)}
    stages = [by_rungs.get(frozenset(config.split("+")), config) for config in slide_configs]
    slide_settings = {s.setting for s in summaries if s.cell.config in stages}
    if not slide_settings:
        raise SelectionError(f"--slide {slide}: no results of {', '.join(stages)}; measure some with `tcbench run`")
    settings = by_setting([s for s in summaries if s.setting in slide_settings])
    winners: dict[str, list[int]] = {}
    not_run: list[str] = []

    def groups_of(cells: Sequence[CellSummary]) -> Iterable[BarGroup]:
        """Yield the bars of each batch size in the order of the slide, and add configs not run to `not_run`."""
        shown = cells if slide == 33 else [s for s in cells if s.cell.config in stages]
        for batch_size in batch_sizes_of(shown):
            bars = [Bar(config, cell_at(cells, config, batch_size)) for config in stages]
            not_run.extend(f"{b.config} at {batch_size}" for b in bars if b.summary is None)
            if slide == 33:
                bars.append(best_bar(cells, batch_size))
            yield str(batch_size), bars

    def best_bar(cells: Sequence[CellSummary], batch_size: int) -> Bar:
        """Return the bar of the fastest config at a batch size, with its speed-up, and add the config to `winners`. If
        no cell has a result, the bar is empty."""
        winner = best(s for s in cells if s.cell.batch_size == batch_size)
        if winner is None:
            return Bar("best", None)
        winners.setdefault(winner.cell.config, []).append(batch_size)
        ratio = next(r for s, r in zip(cells, speedups(cells), strict=True) if s is winner)
        return Bar(winner.cell.config, winner, f"best\n{factor(ratio.value)}" if ratio else "best")

    provenance = provenance_of(settings)
    panels = [(provenance.names[setting], [*groups_of(cells)]) for setting, cells in settings.items()]
    rows = legend_rows(stages)
    if slide == 33:
        rows = [[(config, config) for config in stages]]
        for config, sizes in winners.items():
            size_words = f" at {', '.join(map(str, sorted(sizes)))}" if len(settings) == 1 else ""
            rows.append([(config, f"best{size_words}: {config_name(config)}")])
    notes = [drawable(f"not run: {', '.join(not_run)}")] if not_run else []
    if slide == 33 and winners:
        notes.insert(0, "best: the fastest of all measured configs, and its speed-up over fp32")
    return panel_chart(panels, rows, provenance.common, f"Slide {slide}: {title}", talk, notes)
