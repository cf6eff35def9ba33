"""Standard output of `tcbench run`, the parts that other commands share, and their JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import BASE, CellSummary, base_config
from tcbench.core.record import TAKE_ENOUGH, Cell
from tcbench.run.plan import Plan
from tcbench.run.rounds import Rounds
from tcbench.show.busy import busy_line
from tcbench.show.document import encoded
from tcbench.show.format import counted, duration, factor, milliseconds, plus_minus, rate, size
from tcbench.show.naming import rate_unit
from tcbench.show.simulated import emulated, is_simulated
from tcbench.show.terminal import harmless

JSON_SCHEMA_VERSION = 1
"""Version of everything printed under --json."""

_PLAIN_WIDTH = 132
"""Columns where there is no terminal to ask."""


class _Harmless(Console):
    """Colours are its own; a text is never markup, and its characters that a terminal would act on are shown as their
    escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(harmless(segment.text), segment.style)


def make_console(*, stderr: bool = False, least: int = 80) -> Console:
    """A console as wide as the terminal, or wide enough for a table in a file or pipe.

    A table is never squeezed below `least` columns: a narrower terminal wraps its lines, which loses nothing.
    """
    console = _Harmless(stderr=stderr)
    if stderr and console.is_terminal:
        return console
    return _Harmless(stderr=stderr, width=max(console.width, least) if console.is_terminal else _PLAIN_WIDTH)


def results_table(summaries: Sequence[CellSummary], speedups: Sequence[Interval | None]) -> Table:
    """One row per cell, batch size by batch size; a config that adds rungs to the one above shows what it adds.

    `speedups` holds each cell's ratio over the base, in the order of `summaries`.
    """
    table = ladder_table([summary.cell for summary in summaries], gap=1, min_width=16)
    table.add_column(rate_unit(summary.cell for summary in summaries), justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column(f"vs {base_config(summaries)}", justify="right")
    table.add_column("trials", justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    add_by_batch(
        table, ((summary.cell, _figures(summary, ratio)) for summary, ratio in zip(summaries, speedups, strict=True))
    )
    return table


def open_table(gap: int = 2, **options: Any) -> Table:
    """A table without lines, its columns `gap` apart."""
    return Table(**{"box": None, "pad_edge": False, "header_style": "bold", "padding": (0, gap, 0, 0)} | options)


def ladder_table(cells: Sequence[Cell], gap: int = 2, min_width: int = 18) -> Table:
    """A table for `add_by_batch` of these cells, with its columns of model and ranks where there are several, batch
    size, and config."""
    table = open_table(gap)
    for heading, justify, _ in heads_of(cells):
        table.add_column(heading, justify=justify)
    table.add_column("config", overflow="fold", min_width=min_width)
    return table


Head = tuple[str, Literal["left", "right"], Callable[[Cell], str]]


def heads_of(cells: Iterable[Cell]) -> list[Head]:
    """Columns before a config's: model where there are several, batch size, ranks where a cell has several. Of each its
    heading, side, and words of a cell."""
    cells = list(cells)
    heads: list[Head] = [("batch", "right", _batch_size)]
    if len({cell.model for cell in cells}) > 1:
        heads.insert(0, ("model", "left", _model))
    if many_ranks(cells):
        heads.append(("ranks", "right", _ranks))
    return heads


def _model(cell: Cell) -> str:
    return cell.model


def _batch_size(cell: Cell) -> str:
    return str(cell.batch_size)


def _ranks(cell: Cell) -> str:
    return str(cell.ranks)


def add_by_batch(table: Table, rows: Iterable[tuple[Cell, Iterable[RenderableType]]]) -> None:
    """A row per cell with its figures, model by model, batch size by batch size and ranks by ranks, an empty row
    between; a config that adds rungs to the one above shows what it adds."""
    rows = list(rows)
    heads = heads_of(cell for cell, _ in rows)
    blocks: dict[tuple[str, ...], list[tuple[Cell, Iterable[RenderableType]]]] = {}
    for cell, figures in rows:
        blocks.setdefault(tuple(of(cell) for _, _, of in heads), []).append((cell, figures))
    for head, group in blocks.items():
        if table.row_count:
            table.add_row()
        above = None
        for cell, figures in group:
            table.add_row(*([""] * len(head) if above else head), Text(config_in_ladder(cell, above)), *figures)
            above = cell


def many_ranks(cells: Iterable[Cell]) -> bool:
    """Whether a table of these cells has a column of ranks."""
    return any(cell.ranks > 1 for cell in cells)


def config_in_ladder(cell: Cell, above: Cell | None) -> str:
    """A config's name below another's: what it adds, where it adds rungs to that one, or what it changes."""
    base, _, ablation = cell.config.partition(":")
    if above and ablation and above.config.partition(":")[0] == base:
        return f"  : {ablation}"
    if above and cell.config.startswith(above.config + "+"):
        return "  + " + " + ".join(cell.config.removeprefix(above.config + "+").split("+"))
    return cell.config


def _figures(summary: CellSummary, speedup: Interval | None) -> tuple[Text, ...]:
    if summary.images_per_s is None or summary.step_time_s is None:
        return (Text(summary.status, style="yellow"),)
    return (
        Text(rate(summary.images_per_s) + ("" if summary.settled else " *") + (" †" if summary.busy else "")),
        Text(milliseconds(summary.step_time_s.value)),
        _factor(speedup, summary),
        Text(str(summary.trials_ok)),
        Text("" if summary.peak_memory_bytes is None else size(summary.peak_memory_bytes)),
    )


def _factor(speedup: Interval | None, of: CellSummary) -> Text:
    """A speed-up with its interval; pale where that includes 1, or is over the steps of one trial, and so may be
    none."""
    if speedup is None:
        return Text("")
    if speedup.low == speedup.high:  # the base over itself
        return Text(factor(speedup.value))
    pale = speedup.holds(1.0) or of.unit == "steps"
    return Text(f"{factor(speedup.value)} {plus_minus(speedup)}", style="dim" if pale else "")


def reasons(summaries: Sequence[CellSummary]) -> list[str]:
    """Why a cell has no number, or only some of its trials succeeded: a line each."""
    lines = [f"{s.cell.label}: {s.status}: {s.reason or ''}" for s in summaries if s.images_per_s is None]
    lines += [
        f"{s.cell.label}: only {s.trials_ok} of {s.trials} trials succeeded"
        for s in summaries
        if s.images_per_s is not None and s.trials_ok < s.trials
    ]
    return lines


def footnotes(summaries: Sequence[CellSummary]) -> list[str]:
    """Notes on how to read the table of results."""
    lines = []
    units = {summary.unit for summary in summaries if summary.images_per_s}
    if units == {"steps"}:
        lines.append(f"±: 95% interval over the steps of one trial; {TAKE_ENOUGH}.")
    elif units:
        alone = "; of a cell with one trial, over its steps" if "steps" in units else ""
        lines.append(f"±: 95% interval over trials{alone}.")
    if any(summary.images_per_s and not summary.settled for summary in summaries):
        lines.append("*: step times had not settled when the warm-up ended.")
    if busy := busy_line([summary for summary in summaries if summary.images_per_s]):
        lines.append(f"†: {busy}; stop it and measure again.")
    return lines + [f"{line[:1].upper()}{line[1:]}." for line in emulated(summary.cell for summary in summaries)]


def summary_json(
    run_id: str,
    path: Path,
    summaries: Sequence[CellSummary],
    speedups: Sequence[Interval | None],
    scaling: Sequence[dict[str, Any]] = (),
) -> str:
    """The table as JSON. `scaling`: the curves, as `tcbench.show.scaling` writes them."""
    base = base_config(summaries)
    cells = [
        {
            "config": summary.cell.config,
            "backend": summary.cell.backend,
            "batch_size": summary.cell.batch_size,
            "ranks": summary.cell.ranks,
            "model": summary.cell.model,
            "image_size": summary.cell.image_size,
            "device": summary.cell.device,
            "simulated": is_simulated(summary.environment),
            "status": summary.status,
            "reason": summary.reason,
            "trials": summary.trials,
            "trials_ok": summary.trials_ok,
            "unit": summary.cell.unit,
            "images_per_s": summary.images_per_s,
            "step_time_s": summary.step_time_s,
            "speedup_over_fp32": speedup if base == BASE else None,
            "speedup": None if speedup is None else {"over": base, "ratio": speedup},
            "peak_memory_bytes": summary.peak_memory_bytes,
            "processor_time_lost": summary.lost,
            "phase_host_s": dict(summary.phase_host_s),
        }
        for summary, speedup in zip(summaries, speedups, strict=True)
    ]
    return versioned(run_id=run_id, results=str(path), cells=cells, **({"scaling": scaling} if scaling else {}))


def plan_table(plan: Plan, rounds: Rounds) -> Table:
    """The cells that a run would measure, how often by what it expects them to cost, and those it would skip."""
    table = open_table()
    heads = heads_of(planned.cell for planned in plan.cells)
    for heading, justify, _ in heads:
        table.add_column(heading, justify=justify)
    table.add_column("config", overflow="fold")
    table.add_column("will run")
    trials = _trials_ahead(rounds)
    for planned in plan.cells:
        about = "" if plan.budget_s is None else "about "
        will = Text(about + counted(trials[planned.place], "trial"))
        if planned.skip_reason:
            will = Text(f"skipped: {planned.skip_reason}", style="yellow")
        table.add_row(*(of(planned.cell) for _, _, of in heads), Text(planned.cell.config), will)
    return table


def rounds_line(rounds: Rounds) -> str:
    """The trials and the time that are ahead, as far as is known before they begin."""
    trials = _trials_ahead(rounds).values()
    if not trials:
        skipped = all(planned.skip_reason for planned in rounds.cells)
        return "nothing to measure: every cell is skipped" if skipped else "nothing is missing: all trials are there"
    least, most, needed_s = min(trials), max(trials), rounds.ahead_s()
    each = f"{counted(most, 'trial')} each" if least == most else f"{least} to {counted(most, 'trial')} each"
    if rounds.budget_s is None:
        return f"{each}, about {duration(needed_s)}"
    until = f"rounds over all cells within {duration(rounds.budget_s)}"
    if rounds.spent_s + needed_s > rounds.budget_s:
        return f"{until}: the first, which is always completed, takes longer: about {duration(needed_s)}"
    at_most = "" if rounds.trials is None else f", at most {counted(rounds.trials, 'trial')} each"
    return f"{until}{at_most}: about {each}, about {duration(needed_s)}"


def _trials_ahead(rounds: Rounds) -> Counter[int | None]:
    """The number of trials to come of the cells that will run, by their places in the plan."""
    return Counter(planned.place for planned, _ in rounds.ahead() if planned.skip_reason is None)


def plan_line(plan: Plan) -> str:
    """A run in one line, before it starts."""
    skipped = sum(planned.skip_reason is not None for planned in plan.cells)
    cell = plan.cells[0].cell
    cells = counted(len(plan.cells) - skipped, "cell")
    network = f"{cell.model}, " if len({planned.cell.model for planned in plan.cells}) == 1 else ""
    what = {"generated": "generated JPEGs", "synthetic": "synthetic images", "modelled": f"input {cell.input.label}"}
    return (
        f"{plan.scenario.name} on {plan.device.name} ({plan.device.title}): {cells}"
        + (f" ({skipped} skipped)" if skipped else "")
        + (
            ""
            if cell.input.kind == "own"
            else f", {network}{cell.image_size}x{cell.image_size} pixels, {what.get(cell.input.kind, cell.input.path)}"
        )
        + f", {counted(cell.threads, 'thread')}"
        + (" per rank" if any(p.cell.ranks > 1 for p in plan.cells) else "")
    )


def plan_json(plan: Plan, rounds: Rounds) -> str:
    """The plan as JSON."""
    trials = _trials_ahead(rounds)
    cells = [
        {
            "config": p.cell.config,
            "model": p.cell.model,
            "batch_size": p.cell.batch_size,
            "ranks": p.cell.ranks,
            "key": p.cell.key,
            "expected_trials": trials[p.place],
            "skip_reason": p.skip_reason,
        }
        for p in plan.cells
    ]
    return versioned(
        scenario=plan.scenario.name,
        device=plan.device.name,
        device_title=plan.device.title,
        machine=plan.device.machine,
        trials=plan.trials,
        budget_s=plan.budget_s,
        expected_s=rounds.ahead_s(),
        timeout_s=plan.timeout_s,
        cells=cells,
    )


def tally(summaries: Sequence[CellSummary]) -> str:
    """`18 cells ok, 2 skipped`."""
    counts = Counter(summary.status for summary in summaries)
    ok = counts.pop("ok", 0)
    return ", ".join([f"{counted(ok, 'cell')} ok", *(f"{n} {status}" for status, n in counts.items())])


def versioned(**values: Any) -> str:
    """The JSON that --json prints, with the version of its form."""
    return encoded({"schema_version": JSON_SCHEMA_VERSION, **values})
