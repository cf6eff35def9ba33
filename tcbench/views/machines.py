"""Machines beside each other: bars of one config by batch size, a bar per machine (or other setting)."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from tcbench.analysis.summary import CellSummary, Setting, best
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.present.charts.bars import Bar, BarGroup, Panel, batch_sizes_of, cell_at, panel_chart
from tcbench.present.charts.palette import SERIES
from tcbench.present.charts.provenance import by_setting, provenance_of
from tcbench.present.charts.text import config_name, drawable

BASE, BEST = "fp32", "best"


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
        groups = tuple(
            BarGroup(str(batch_size), tuple(bar(setting, config, batch_size) for setting in settings))
            for batch_size in batch_sizes_of(there)
        )
        if groups:
            panels.append(Panel("the best config of each" if config == BEST else config_name(config), groups))
    if not panels:
        raise SelectionError(f"no results of {', '.join(configs)} to plot; `tcbench run` makes some")
    won = grouped(
        (
            "; ".join(f"{config} at {', '.join(map(str, sizes))}" for config, sizes in configs_won.items()),
            names[setting],
        )
        for setting, configs_won in winners.items()
    )
    notes = [drawable(f"best of {', '.join(where)}: {best_configs}") for best_configs, where in won.items()]
    rows = [[(str(place), name) for place, name in enumerate(names.values())]]
    scenarios = ", ".join(dict.fromkeys(s.cell.scenario for s in summaries))
    several_machines = len({setting.machine for setting in settings}) == len(settings)
    title = f"Throughput by {'machine' if several_machines else 'setting'}"
    subtitle = f"Scenario {scenarios}"
    return panel_chart(panels, rows, provenance.common, title, subtitle, notes, lambda place: SERIES[int(place)])
