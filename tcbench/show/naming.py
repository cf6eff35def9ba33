"""Names that distinguish cells, settings and code, and marks of results that are simulated or from another session."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tcbench.analysis.summary import CellSummary
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Code, Environment, cell_settings
from tcbench.core.timeline import Timeline
from tcbench.show.format import number

MachineCell = tuple[str | None, Cell]
"""A machine's name and a cell that ran on it."""

_IN_CELL_NAME = ("config", "rungs", "batch_size", "ranks", "backend", "unit", "base")


def rate_unit(cells: Iterable[Cell]) -> str:
    """Return the unit of a throughput: images/s, the unit of the user's own step, or items/s if units differ."""
    units = {cell.unit for cell in cells}
    return f"{units.pop() if len(units) == 1 else 'items'}/s"


_COMMIT = 13
"""Characters of a commit's name, including a `+` for local changes."""


def tcbench_name(codes: Iterable[Code]) -> str:
    """Name versions of tcbench with their commits: "tcbench 0.1.0 at 1a2b, 3c4d"."""
    versions: dict[str, dict[str, None]] = {}
    for code in codes:
        versions.setdefault(code.version, {}).update({code.commit[:_COMMIT]: None} if code.commit else {})
    names = (version + (f" at {', '.join(commits)}" if commits else "") for version, commits in versions.items())
    return f"tcbench {'; '.join(names)}" if versions else ""


def project_name(codes: Iterable[Code]) -> str:
    """Name the commits of a user's project: "project at 1a2b, 3c4d". Empty if no commit is recorded."""
    commits = dict.fromkeys(code.project[:_COMMIT] for code in codes if code.project)
    return f"project at {', '.join(commits)}" if commits else ""


def code_name(codes: Sequence[Code]) -> str:
    """Name code and its software stack: "tcbench 0.1.0 at 1a2b, project at 3c4d, numpy: 2.4.6"."""
    return ", ".join(filter(None, (tcbench_name(codes), project_name(codes), stack_name(codes))))


def stack_name(codes: Iterable[Code], most: int = 4) -> str:
    """Return at most `most` facts that distinguish the software stack from others on its machine, and how many more
    there are; empty if it is the only stack."""
    facts = list(dict.fromkeys(words for code in codes for words in code.beneath))
    return ", ".join(facts if len(facts) <= most else [*facts[:most], f"and {len(facts) - most} more"])


def distinguishing_settings(cells: Sequence[MachineCell], beneath: Sequence[tuple[str, ...]] = ()) -> tuple[str, ...]:
    """Return for each cell the settings that distinguish it from cells of the same config, batch size and ranks.

    A cell without namesakes gets an empty text. Cells that differ in no setting are numbered from the second on: "#2".
    `beneath` describes the software stack of each cell, as in `Code.beneath`."""
    stacks = [{"beneath": ", ".join(words)} for words in beneath] or [{}] * len(cells)
    namesakes = grouped((cell.name, place) for place, (_, cell) in enumerate(cells))
    suffixes = [""] * len(cells)
    for places in namesakes.values():
        if len(places) == 1:
            continue
        described = [_facts(*cells[place]) | stacks[place] for place in places]
        keys = dict.fromkeys(key for facts in described for key in facts)
        varying = [key for key in keys if len({facts.get(key) for facts in described}) > 1]
        for place, facts in zip(places, described, strict=True):
            suffixes[place] = ", ".join(facts[key] for key in varying if facts.get(key))
    # Cells that still look the same are numbered.
    alike = grouped(((cell.name, suffixes[place]), place) for place, (_, cell) in enumerate(cells))
    for (_, suffix), places in alike.items():
        for n, place in enumerate(places[1:], start=2):
            suffixes[place] = f"{suffix} #{n}".strip()
    return tuple(suffixes)


def setting_headings(summaries: Sequence[CellSummary]) -> tuple[str, ...]:
    """Return for each cell the heading of its setting, so that cells of the same name have different headings.

    A heading names machine, threads and code if they differ, and any other fact that is needed to distinguish cells.
    It leaves out network and ranks, which have columns. If there is only one setting, headings are empty."""
    all_facts = [_facts(s.machine, s.setting.cell) | {"code": code_name(s.codes)} for s in summaries]
    names = [(s.cell.model, s.cell.config, s.cell.batch_size, s.cell.ranks) for s in summaries]
    shown = [key for key in ("machine", "threads", "code") if len({facts.get(key) for facts in all_facts}) > 1]
    for key in dict.fromkeys(key for facts in all_facts for key in facts):
        alike = grouped(
            ((name, *map(facts.get, shown)), facts.get(key)) for name, facts in zip(names, all_facts, strict=True)
        )
        if any(len({*values}) > 1 for values in alike.values()):
            shown.append(key)
    return tuple(", ".join(facts[key] for key in shown if facts.get(key)) for facts in all_facts)


def _facts(machine: str | None, cell: Cell) -> dict[str, str]:
    """Return the facts, by name and in words, by which cells of the same config, batch size and ranks may differ."""
    facts = ((name, value) for name, value in cell_settings(cell).items() if name not in _IN_CELL_NAME)
    words = {name: str(value) if name in ("scenario", "device") else f"{name} {value}" for name, value in facts}
    return {"machine": machine or "unknown machine"} | words


def stable_names(cells: Sequence[MachineCell]) -> tuple[str, ...]:
    """Return a name for each cell that is the same in every run, so that services can follow a cell by it. Cells that
    would have the same name get their key added."""
    names = [
        f"{cell.label}, {_trained(cell)}, {cell.device.partition(':')[0]}, {machine or 'unknown machine'}"
        for machine, cell in cells
    ]
    count = Counter(names)
    pairs = zip(names, cells, strict=True)
    return tuple(name if count[name] == 1 else f"{name}, {cell.key}" for name, (_, cell) in pairs)


def _trained(cell: Cell) -> str:
    """Name what a cell trains on: network, image size and input, or a user's own step."""
    if cell.is_own:
        return cell.model
    images = cell.input.label if cell.input.path is None else f"{cell.input.kind} {cell.input.path}"
    return f"{cell.model} {cell.variant}, {cell.image_size} px, {images}"


def another_session(taken_at: str | None, step_s: float, run: CellSummary) -> str | None:
    """Return a note if a profile seems to be from another session than its run: its date differs, or its throughput by
    more than 10%. None if both agree, or if a step time is unknown.

    `taken_at` is when the profile was taken (ISO 8601, UTC; None if unknown), and `step_s` its mean step time."""
    if run.step_time_s is None or run.images_per_s is None or not step_s:
        return None
    rate = run.images_per_s.value * run.step_time_s.value / step_s
    unlike = abs(rate / run.images_per_s.value - 1) > 0.1  # reason enough on the same day too
    days = taken_at[:10] if taken_at else None, run.began_at[:10]
    if not unlike and days[0] in (None, days[1]):
        return None
    unit = rate_unit([run.cell])
    return (
        f"{run.cell.label}: profiled {days[0] or 'at an unknown time'} at {number(rate)} {unit}, in another "
        f"session than the run ({days[1]}, {number(run.images_per_s.value)} {unit})"
    )


def network_suffix(cells: Iterable[Cell]) -> str:
    """Return ", NETWORK" if all cells have the same network; empty otherwise, since it has a column then."""
    models = {cell.model for cell in cells}
    return f", {models.pop()}" if len(models) == 1 else ""


def mark_simulated(title: str, results: Iterable[Environment | Timeline | None]) -> str:
    """Append to a title "(simulated)" or "(in part simulated)" if all or some of its results are."""
    word = measured_or_simulated(results)
    return title if word == "measured" else f"{title} ({word})"


def measured_or_simulated(results: Iterable[Environment | Timeline | None]) -> str:
    """Return "measured", "simulated" or "in part simulated" for the results with these environments or timelines."""
    answers = {r.source == "simulated" if isinstance(r, Timeline) else is_simulated(r) for r in results}
    return "measured" if True not in answers else "in part simulated" if False in answers else "simulated"


def simulation_lines(environments: Iterable[Environment | None]) -> list[str]:
    """Return a line for each simulation among results; an empty list if all were measured."""
    return list(dict.fromkeys(e.simulated.says for e in environments if e is not None and e.simulated is not None))


def is_simulated(environment: Environment | None) -> bool | None:
    """Return whether a cell's device was simulated; None if its environment was not recorded."""
    return None if environment is None else environment.simulated is not None


def emulation_lines(cells: Iterable[Cell]) -> list[str]:
    """Return a line if a CPU computed fp16 in a higher precision; otherwise an empty list."""
    line = "on the CPU, fp16 stores 16 bits but computes in fp32: the rung runs, but its gain does not show"
    return [line] * any(cell.device == "cpu" and "fp16" in cell.rungs for cell in cells)
