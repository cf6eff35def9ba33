"""Whether two sides measured the same thing: what differs beside what is being compared. Pure functions.

A facet is a kind of difference that a user may allow (`--allow gpu,driver`). The versions of tcbench, its commit and
the date are no facet: they are what is compared.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Environment, GpuState, Record, encode, settings
from tcbench.core.store import OF_GATE

FACETS: Mapping[str, str] = {
    "simulated": "whether the device was measured or simulated; the model of one that was, and its host's speed",
    "gpu": "the GPU, or the CPU where that is the device",
    "driver": "the GPU's driver",
    "clocks": "the GPU's power limit, locked clocks, ECC and MIG",
    "host": "the processor and its instruction sets, its usable cores and quota, and its memory",
    "os": "the system and its kernel",
    "python": "the version of Python",
    "libraries": "versions of frameworks and libraries",
    "accelerator": "the library that computes on a processor: oneDNN, or NumPy where that is missing",
    "variables": "environment variables by which libraries compute otherwise, or faster or slower",
    "ranks": "with many ranks: what reduces their gradients, on how many hosts, and how they share the cores",
    "settings": "the scenario's model, training and cuDNN settings, the seed and the threads",
    "measure": "how long and how often steps are timed",
    "input": "where images come from, and how they are decoded",
}
"""The facets, each with the facts that belong to it."""

_IDENTITY = ("scenario", "backend", "config", "rungs", "batch_size", "ranks", "unit", "base")
_FACET_OF = {"input": "input", "measure": "measure", "device": "gpu"}
_DECODING = ("input", "decoding")

FactValues = Mapping[tuple[str, str], str]
"""By facet and name of the fact."""

Values = Mapping[tuple[str, str], Mapping[str, None]]
"""The different values of each fact, by facet and name."""


@dataclass(frozen=True)
class Difference:
    """A fact in which the two sides differ. A side that mixes several has them all, joined by commas."""

    facet: str
    what: str
    base: str
    current: str

    @property
    def says(self) -> str:
        """`driver: 570.86 -> 580.12`."""
        return f"{self.what}: {self.base} -> {self.current}"


def differences(base: Values, current: Values) -> tuple[Difference, ...]:
    """Of what `values` says of both sides, in the order of FACETS. A fact that one side does not have at all is no
    difference: trials that were skipped know nothing of their machine."""
    differing = [
        Difference(facet, what, _shown(values), _shown(current[facet, what]))
        for (facet, what), values in base.items()
        if (facet, what) in current and set(current[facet, what]) != set(values)
    ]
    # A package that only one side has.
    for one, other in ((base, current), (current, base)):
        for facet, what in one:
            if facet == "libraries" and (facet, what) not in other and any(f == "libraries" for f, _ in other):
                versions = (_shown(one[facet, what]), "none")
                differing.append(Difference(facet, what, *(versions if one is base else reversed(versions))))
    order = list(FACETS)
    return tuple(sorted(differing, key=lambda difference: order.index(difference.facet)))


def mixtures(records: Sequence[Record], of: Values) -> tuple[str, ...]:
    """The facts that the trials of one side do not agree on, commits among it: `commit: a1b2c3, d4e5f6`. `of`: their
    `values`."""
    environments = [record.environment for record in records if record.environment]
    mixed = {what: values for (_, what), values in of.items() if len(values) > 1}
    commits = {
        "commit": dict.fromkeys(e.commit or e.tcbench for e in environments),
        "project's commit": dict.fromkeys(e.project_commit for e in environments if e.project_commit),
    }
    mixed |= {what: values for what, values in commits.items() if len(values) > 1}
    return tuple(f"{what}: {_shown(values)}" for what, values in mixed.items())


def shared(base: Iterable[Record], current: Iterable[Record]) -> int:
    """The number of trials on both sides: the same record, however its file is called."""
    trials, others = (
        {(record.run_id, record.cell.key, record.trial, record.started_at): record for record in side}
        for side in (base, current)
    )
    return sum(encode(trials[key]) == encode(others[key]) for key in trials.keys() & others)


def beneath(records: Iterable[Record], allow: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """How each run's software stack differs from those of the other runs on its machine, in words: `numpy: 2.4.6`.
    Facets that `allow` names do not count. The sides of a gate that do not differ have their run's name. Runs that know
    nothing of their machine are left out."""
    of_machine = grouped((r.environment.machine, (r.run_id, r)) for r in records if r.environment is not None)
    machines = [grouped(runs) for runs in of_machine.values()]
    words = {run: said for runs in machines for run, said in _stacks(runs, allow).items()}
    gates = ((run, OF_GATE.fullmatch(run), of_run) for runs in machines for run, of_run in runs.items())
    sides = grouped(
        ((gate[1], frozenset(r.environment.code for r in of_run if r.environment), words[run]), run)
        for run, gate, of_run in gates
        if gate
    )
    return words | {run: (*words[run], run) for alike in sides.values() if len(alike) > 1 for run in alike}


def _stacks(runs: Mapping[str, Sequence[Record]], allow: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The same of one machine. Runs have one stack unless they differ in a fact that both know. Packages are compared
    cell by cell, since each backend has its own."""
    stacks: list[dict[tuple[str, str], dict[str, None]]] = []
    place_of: dict[str, int] = {}
    for run, records in runs.items():
        of_cells = {key for cell in {id(r.cell): r.cell for r in records}.values() for key in _of_cell(cell)}
        of_cells.add(_DECODING)
        told = dict(values(records))
        if "libraries" not in allow:
            of_cell = ((r.cell.key, r.environment.packages) for r in records if r.environment)
            told |= {(_PACKAGES, key): {" ".join(packages): None} for key, packages in of_cell}
        facts = {key: dict(told[key]) for key in told if key not in of_cells and key[0] not in allow}
        alike = (
            n for n, stack in enumerate(stacks) if all(facts[key].keys() & stack[key] for key in facts.keys() & stack)
        )
        place_of[run] = next(alike, len(stacks))
        stacks += [{}] * (place_of[run] == len(stacks))
        stacks[place_of[run]] = facts | {key: facts.get(key, {}) | told for key, told in stacks[place_of[run]].items()}
    keys = dict.fromkeys(key for stack in stacks for key in stack)
    telling = [key for key in keys if len({tuple(stack[key]) for stack in stacks if key in stack}) > 1]
    words = [tuple(dict.fromkeys(_telling(stack, stacks, telling))) for stack in stacks]
    return {run: words[place] for run, place in place_of.items()}


_PACKAGES = "packages"
"""In place of a facet: the names of the packages of a cell."""


def _telling(stack: Values, stacks: Sequence[Values], telling: Iterable[tuple[str, str]]) -> Iterator[str]:
    """A stack's facts among those in which stacks differ; a package that it alone lacks is `none`."""
    for facet, what in telling:
        if (facet, what) not in stack:
            continue
        if facet != _PACKAGES:
            yield f"{what}: {_shown(stack[facet, what])}"
            continue
        here, *others = (
            {*" ".join(other[facet, what]).split()} for other in (stack, *stacks) if (facet, what) in other
        )
        for name in sorted(here.union(*others) - here.intersection(*others)):
            yield f"{name}: {_shown(stack['libraries', name] if name in here else ())}"


def distance(one: Cell, other: Cell) -> int:
    """The number of facts in which two cells differ, the names that bring them together aside."""
    ours, theirs = _of_cell(one), _of_cell(other)
    return sum(ours.get(key) != theirs.get(key) for key in ours.keys() | theirs.keys())


def alike(cell: Cell) -> frozenset[tuple[tuple[str, str], str]]:
    """A key that two cells share where their `distance` is 0."""
    return frozenset(_of_cell(cell).items())


def values(records: Iterable[Record]) -> Values:
    """Each fact's different values in some records, in order. What records share is read once."""
    collected: dict[tuple[str, str], dict[str, None]] = {}
    seen: set[int] = set()
    for record in records:
        parts: tuple[tuple[Any, Callable[[Any], FactValues]], ...] = (
            (record.cell, _of_cell),
            (record.environment, _of_environment),
            (record.gpu and record.gpu.state, _of_state),
            # Trials on a GPU from before this was recorded interpolated chroma, as every decoder on the host does.
            (record.measurement, lambda measured: {_DECODING: measured.decoding or "as on the host"}),
        )
        for part, facts_of in parts:
            if part is not None and id(part) not in seen:
                seen.add(id(part))
                for key, value in facts_of(part).items():
                    collected.setdefault(key, {})[value] = None
    return collected


@functools.lru_cache(4096)
def _of_cell(cell: Cell) -> FactValues:
    facts: dict[tuple[str, str], str] = {}
    for name, value in settings(cell).items():
        if name == "device":
            value = value.partition(":")[0]  # which of several like GPUs does not matter
        if name not in _IDENTITY:
            facts[_FACET_OF.get(name.partition(".")[0], "settings"), name] = str(value)
    return facts


def _of_environment(environment: Environment) -> FactValues:
    simulated = environment.simulated
    facts: dict[tuple[str, str], str] = {
        ("simulated", "device"): "measured" if simulated is None else "simulated",
        ("gpu", "device name"): environment.device_name,
        ("host", "cpu"): environment.cpu,
        ("host", "cpus"): str(environment.cpus),
        # The kernel keeps some for itself, and not the same from boot to boot.
        ("host", "memory"): f"{environment.memory_bytes / 2**30:.0f} GiB",
        ("os", "os"): environment.os,
        ("os", "kernel"): environment.kernel,
        ("python", "python"): environment.python,
        ("libraries", "blas"): environment.blas,
    }
    if environment.processor:
        facts["host", "processor"] = environment.processor
    if environment.cpu_quota is not None:
        facts["host", "CPU quota"] = f"{environment.cpu_quota:.2f} CPUs" if environment.cpu_quota else "none"
    facts |= {("libraries", name): version for name, version in environment.packages.items()}
    if environment.accelerator is not None:
        facts["accelerator", "computed by"] = environment.accelerator
    if environment.variables is not None:
        set_here = (f"{name}={value}" for name, value in sorted(environment.variables.items()))
        facts["variables", "variables"] = " ".join(set_here) or "none"
    if environment.ranks is not None:
        facts["ranks", "engine"] = environment.ranks.engine
        facts["ranks", "hosts"] = str(len(environment.ranks.hosts))
        facts["ranks", "binding"] = environment.ranks.binding
    if simulated is not None:
        facts["simulated", "host speed"] = f"{simulated.host_speed:g}"
        facts["simulated", "attained fractions"] = simulated.attained
    if environment.gpu is not None:
        gpu = environment.gpu
        facts["gpu", "multiprocessors"] = str(gpu.multiprocessors)
        facts["gpu", "memory of the GPU"] = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        if gpu.driver is not None:
            facts["driver", "driver"] = gpu.driver
    return facts


def _of_state(state: GpuState) -> FactValues:
    names = ("power_limit_w", "sm_clock_set_mhz", "memory_clock_set_mhz", "ecc", "mig")
    values: dict[str, Any] = {name: getattr(state, name) for name in names}
    return {("clocks", name): str(value) for name, value in values.items() if value is not None}


def _shown(values: Iterable[str]) -> str:
    return ", ".join(values) or "none"
