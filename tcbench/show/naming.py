"""Names of cells that stay different from each other, and of a profile beside a run of another session."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tcbench.analysis.summary import CellSummary
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Code, settings
from tcbench.show.format import number

Named = tuple[str | None, Cell]
"""A cell and the machine that it ran on."""

_NAMED_ALREADY = ("config", "rungs", "batch_size", "ranks", "backend", "unit", "base")


def rate_unit(cells: Iterable[Cell]) -> str:
    """ "images/s", or what steps of the user's own work on; "items/s" where these differ."""
    units = {cell.unit for cell in cells}
    return f"{units.pop() if len(units) == 1 else 'items'}/s"


_COMMIT = 13
"""A commit as records name it, with a `+`."""


def tcbench_name(codes: Iterable[Code]) -> str:
    """ "tcbench 0.1.0 at 1a2b, 3c4d": each version with its commits."""
    versions: dict[str, dict[str, None]] = {}
    for code in codes:
        versions.setdefault(code.version, {}).update({code.commit[:_COMMIT]: None} if code.commit else {})
    said = (version + (f" at {', '.join(commits)}" if commits else "") for version, commits in versions.items())
    return f"tcbench {'; '.join(said)}" if versions else ""


def project_name(codes: Iterable[Code]) -> str:
    """ "project at 1a2b, 3c4d"; empty where no commit of one is known."""
    commits = dict.fromkeys(code.project[:_COMMIT] for code in codes if code.project)
    return f"project at {', '.join(commits)}" if commits else ""


def code_name(codes: Sequence[Code]) -> str:
    """All that tells code and its stack from others: "tcbench 0.1.0 at 1a2b, project at 3c4d, numpy: 2.4.6"."""
    return ", ".join(filter(None, (tcbench_name(codes), project_name(codes), stack_name(codes))))


def stack_name(codes: Iterable[Code], most: int = 4) -> str:
    """What tells the stack beneath the code from others on its machine; empty where there is one."""
    facts = list(dict.fromkeys(words for code in codes for words in code.beneath))
    return ", ".join(facts if len(facts) <= most else [*facts[:most], f"and {len(facts) - most} more"])


def apart(cells: Sequence[Named], beneath: Sequence[tuple[str, ...]] = ()) -> tuple[str, ...]:
    """The settings that tell each cell from others of its config, batch size and ranks; empty where it is the only
    one. `beneath`: what tells each one's stack from others', as in `Code`."""
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
    # With a number where two of one name are still alike.
    alike = grouped(((cell.name, suffixes[place]), place) for place, (_, cell) in enumerate(cells))
    for (_, suffix), places in alike.items():
        for n, place in enumerate(places[1:], start=2):
            suffixes[place] = f"{suffix} #{n}".strip()
    return tuple(suffixes)


def settings_apart(summaries: Sequence[CellSummary]) -> tuple[str, ...]:
    """What stands above the cells of a setting, which tells those of one name apart: machine, threads and code where
    they differ, and what else it takes; empty of one setting alone. Networks and ranks have columns."""
    facts = [_facts(of.machine, of.setting.cell) | {"code": code_name(of.codes)} for of in summaries]
    names = [(of.cell.model, of.cell.config, of.cell.batch_size, of.cell.ranks) for of in summaries]
    telling = [key for key in ("machine", "threads", "code") if len({of.get(key) for of in facts}) > 1]
    for key in dict.fromkeys(key for of in facts for key in of):
        told = ([of.get(one) for one in telling] for of in facts)
        alike = grouped(((name, *those), of.get(key)) for name, those, of in zip(names, told, facts, strict=True))
        if any(len({*values}) > 1 for values in alike.values()):
            telling.append(key)
    return tuple(", ".join(of[key] for key in telling if of.get(key)) for of in facts)


def _facts(machine: str | None, cell: Cell) -> dict[str, str]:
    """Everything that may differ, in words, by name."""
    facts = ((name, value) for name, value in settings(cell).items() if name not in _NAMED_ALREADY)
    words = {name: str(value) if name in ("scenario", "device") else f"{name} {value}" for name, value in facts}
    return {"machine": machine or "unknown machine"} | words


def lasting(cells: Sequence[Named]) -> tuple[str, ...]:
    """A name for each cell that is the same in every run, whatever else was run: services follow a cell by it. Cells
    that it does not tell apart carry their keys."""
    names = [
        f"{cell.label}, {_trained(cell)}, {cell.device.partition(':')[0]}, {machine or 'unknown machine'}"
        for machine, cell in cells
    ]
    count = Counter(names)
    named = zip(names, cells, strict=True)
    return tuple(name if count[name] == 1 else f"{name}, {cell.key}" for name, (_, cell) in named)


def _trained(cell: Cell) -> str:
    if cell.is_own:
        return cell.model
    images = cell.input.label if cell.input.path is None else f"{cell.input.kind} {cell.input.path}"
    return f"{cell.model} {cell.variant}, {cell.image_size} px, {images}"


def another_session(taken_at: str | None, step_s: float, run: CellSummary) -> str | None:
    """The date and speed of a cell's profile and of the run beside it; None where both fit. `taken_at`: UTC, ISO 8601,
    None where that is not known; `step_s`: a step's time in the profile."""
    if run.step_time_s is None or run.images_per_s is None or not step_s:
        return None
    rate = run.cell.images_per_step / step_s
    unlike = abs(rate / run.images_per_s.value - 1) > 0.1  # that is said on one day too
    days = taken_at[:10] if taken_at else None, run.began_at[:10]
    if not unlike and days[0] in (None, days[1]):
        return None
    unit = rate_unit([run.cell])
    return (
        f"{run.cell.label}: profiled {days[0] or 'at an unknown time'} at {number(rate)} {unit}, another session than "
        f"the run beside it, of {days[1]} at {number(run.images_per_s.value)} {unit}"
    )


def alone_network(cells: Iterable[Cell]) -> str:
    """The network of cells of one alone, after a comma; empty of several, of which each has it in a column."""
    models = {cell.model for cell in cells}
    return f", {models.pop()}" if len(models) == 1 else ""
