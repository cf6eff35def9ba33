"""The provenance of a chart's numbers: how settings are grouped and named, and the small print."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tcbench.analysis.summary import CellSummary, Setting
from tcbench.core.errors import SelectionError
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, cell_settings
from tcbench.show.cells import busy_line, interval_over
from tcbench.show.charts.text import drawable, drawable_title
from tcbench.show.format import counted, libraries
from tcbench.show.naming import (
    emulation_lines,
    mark_simulated,
    project_name,
    simulation_lines,
    stack_name,
    tcbench_name,
)
from tcbench.show.sides import first_few

P = TypeVar("P")

MAX_PANELS = 12
"""The greatest number of panels in a picture. Its small print names the others."""

_INPUTS = {
    "generated": "generated JPEGs",
    "synthetic": "synthetic input, one batch in memory",
    "own": "the step's own input",
}

_FILES = "files"
"""The name of the fact that lists runs, shown if code differs only by uncommitted changes to one commit."""

_ALWAYS = ("device_name", "model", "image_size", "input")


@dataclass(frozen=True)
class Provenance:
    """The facts common to all settings of a chart, and a name for each setting, made of the facts that differ."""

    common: tuple[str, ...]
    names: dict[Setting, str]


def by_setting(summaries: Sequence[CellSummary]) -> dict[Setting, list[CellSummary]]:
    """Group summaries by setting. Raises SelectionError if there are none."""
    if not summaries:
        raise SelectionError("no results to plot; measure some with `tcbench run`")
    return grouped((summary.setting, summary) for summary in summaries)


def first_panels(
    panels: Sequence[P], name_of: Callable[[P], str], options: str, most: int = MAX_PANELS
) -> tuple[Sequence[P], list[str]]:
    """Return the first `most` panels, and a note that names the others; no note if there are none. `options` are the
    options that select panels, for the note."""
    names = list(dict.fromkeys(filter(None, map(name_of, panels[most:]))))
    note = f"{len(panels) - most} more are not drawn (choose with {options}): {first_few(names, 6)}"
    return panels[:most], [drawable(note)] * (len(panels) > most)


def provenance_of(settings: dict[Setting, list[CellSummary]]) -> Provenance:
    """Return the facts that a chart's settings share, and a name for each setting from the facts that differ.

    `settings` holds the summaries of each setting. A name is empty if there is only one setting."""
    facts = {setting: _facts(summaries) for setting, summaries in settings.items()}
    keys = dict.fromkeys(key for setting_facts in facts.values() for key in setting_facts)
    differing = [key for key in keys if len({f.get(key) for f in facts.values()}) > 1]
    common = tuple(f for key, f in next(iter(facts.values())).items() if f and key in _ALWAYS and key not in differing)
    # The device's name identifies machine and device, unless two settings share it.
    if len({f["device_name"] for f in facts.values()}) == len(facts):
        differing = [key for key in differing if key not in ("machine", "device", "threads")]
    if len({setting.codes for setting in settings}) == 1 or {"project", "tcbench", "beneath"} & {*differing}:
        differing = [key for key in differing if key != _FILES]  # commits distinguish them, or nothing does
    names = {setting: drawable(" · ".join(f[key] for key in differing if f.get(key))) for setting, f in facts.items()}
    return Provenance(common, names)


def titled(title: str, summaries: Sequence[CellSummary]) -> str:
    """Return a chart's title with a mark if results are simulated; the scenario's name if fonts cannot draw the
    title."""
    return drawable_title(
        mark_simulated(title, (summary.environment for summary in summaries)), summaries[0].cell.scenario
    )


def small_print(summaries: Sequence[CellSummary], common: Sequence[str], whiskers: bool) -> str:
    """Return the small print: common facts, trials per cell, libraries, runs and versions. It also explains how the
    chart shows uncertainty: by whiskers, or else by pale bars."""
    ok = [s for s in summaries if s.images_per_s is not None]
    words = [*common]
    trials = sorted({s.trials for s in summaries if s.status != "skipped"})
    if trials:
        count = f"{trials[0]}" if len(trials) == 1 else f"{trials[0]} to {trials[-1]}"
        words.append(f"{count} trial{'' if trials == [1] else 's'} per cell")
    if ok:
        units = {s.unit for s in ok}
        pale = "pale: the 95% confidence interval of the factor includes 1"
        if "steps" in units:
            pale = "pale: one trial each, not judged" + ", or the interval includes 1" * (len(units) > 1)
        words.append(f"whisker: 95% confidence interval of the mean {interval_over(units)}" if whiskers else pale)
    words += [f"computed by {name}" for name in libraries(s.environment for s in summaries if s.environment)]
    words += simulation_lines(s.environment for s in summaries)
    words += emulation_lines(s.cell for s in summaries)
    words += filter(None, [busy_line(ok)])
    runs = list(dict.fromkeys(run for s in summaries for run in s.runs))
    words.append(f"run {', '.join(runs)}" if len(runs) <= 2 else f"{len(runs)} runs, {runs[0]} to {runs[-1]}")
    codes = dict.fromkeys(code for s in summaries for code in s.codes)
    words += filter(None, [tcbench_name(codes), project_name(codes)])
    return drawable(" · ".join(words))


def _facts(summaries: Sequence[CellSummary]) -> dict[str, str]:
    """Return the facts of a setting by name, from its summaries. An unknown fact is an empty text. Charts show the
    facts in _ALWAYS, and the others where settings differ."""
    machine, cell, codes = summaries[0].setting
    devices = (s.environment.device_name for s in summaries if s.environment)
    facts = {
        "device_name": next(devices, f"unknown machine ({cell.device})"),
        "model": cell.model if cell.is_own else f"{cell.model} {cell.variant}",
        "image_size": "" if cell.is_own else f"{cell.image_size} × {cell.image_size} images",
        "input": _input_name(cell),
        "machine": machine or "unknown machine",
        "path": cell.input.path or "no folder",
        "project": project_name(codes),
        "tcbench": tcbench_name(codes),
        "beneath": stack_name(codes),
        _FILES: f"run {', '.join(summaries[0].runs)}",
    }
    for name, value in cell_settings(cell).items():
        if name == "ranks":
            facts[name] = counted(value, "rank")
        elif name.partition(".")[0] not in ("config", "rungs", "batch_size", "model", "variant", "image_size", "input"):
            facts[name] = f"{name.rpartition('.')[2].replace('_', ' ')} {value}"
    return facts


def _input_name(cell: Cell) -> str:
    """Name the input of a cell, such as "generated JPEGs"."""
    if cell.input.kind == "folder":
        return f"images of {Path(cell.input.path).name}" if cell.input.path else "images of a folder"
    if cell.input.images_per_s:
        return f"input {cell.input.label}"
    return _INPUTS[cell.input.kind]
