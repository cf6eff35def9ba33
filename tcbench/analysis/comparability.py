"""Whether two sides measured the same thing: the differences between them other than the code under comparison. Pure
functions.

A facet is a kind of difference that a user may allow (`--allow gpu,driver`). The version of tcbench, its commit and the
date are no facets, since these are what is compared."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Environment, GpuState, Record, cell_settings, encode
from tcbench.core.store import GATE_RUN_ID

FACETS: Mapping[str, str] = {
    "simulated": "whether the device was measured or simulated; for a simulated one, its model and its host's speed",
    "gpu": "the GPU, or the CPU if that is the device",
    "driver": "the GPU's driver",
    "clocks": "the GPU's power limit, locked clocks, ECC and MIG",
    "host": "the processor and its instruction sets, its usable cores and quota, and its memory",
    "os": "the operating system and its kernel",
    "python": "the version of Python",
    "libraries": "versions of frameworks and libraries",
    "accelerator": "the library that computes on a processor: oneDNN, or NumPy without it",
    "variables": "environment variables that change how libraries compute, or how fast",
    "ranks": "with many ranks: the library that reduces gradients, the number of hosts, and how ranks share cores",
    "settings": "the scenario's model, training and cuDNN settings, the seed and the threads",
    "measure": "how long and how often steps are timed",
    "input": "where images come from, and how they are decoded",
}
"""The facets by name, each with a description of the facts that belong to it."""

_IDENTITY = ("scenario", "backend", "config", "rungs", "batch_size", "ranks", "unit", "base")
_FACET_OF = {"input": "input", "measure": "measure", "device": "gpu"}
_DECODING = ("input", "decoding")
_STEP = ("measure", "a step is")

FactValues = Mapping[tuple[str, str], str]
"""The value of each fact, by facet and name of the fact."""

Values = Mapping[tuple[str, str], Mapping[str, None]]
"""The different values of each fact, by facet and name of the fact, as keys of a dictionary, which keeps their
order."""


class Difference(msgspec.Struct, frozen=True):
    """A fact in which the two sides differ. If a side mixes several values, they are joined by commas."""

    facet: str
    fact: str = msgspec.field(name="what")
    base: str
    current: str

    @property
    def says(self) -> str:
        """The difference in words: `driver: 570.86 -> 580.12`."""
        return f"{self.fact}: {self.base} -> {self.current}"


def differences(base: Values, current: Values) -> tuple[Difference, ...]:
    """Return the differences between the facts of both sides (as returned by `values`), in the order of FACETS. A fact
    that one side lacks is no difference: skipped trials record nothing about their machine."""
    differing = [
        Difference(facet, fact, _joined(values), _joined(current[facet, fact]))
        for (facet, fact), values in base.items()
        if (facet, fact) in current and set(current[facet, fact]) != set(values)
    ]
    # Packages that only one side has. A side without any packages did not record them.
    packages, other_packages = ([key for key in side if key[0] == "libraries"] for side in (base, current))
    if packages and other_packages:
        differing += [Difference(*key, _joined(base[key]), "none") for key in packages if key not in current]
        differing += [Difference(*key, "none", _joined(current[key])) for key in other_packages if key not in base]
    order = list(FACETS)
    return tuple(sorted(differing, key=lambda difference: order.index(difference.facet)))


def mixtures(records: Sequence[Record], facts: Values) -> tuple[str, ...]:
    """Return the facts on which the trials of one side disagree, in words, including commits: `commit: a1b2c3, d4e5f6`.
    `records` are the trials, and `facts` is `values(records)`."""
    environments = [record.environment for record in records if record.environment]
    mixed = {fact: values for (_, fact), values in facts.items() if len(values) > 1}
    commits = {
        "commit": dict.fromkeys(e.commit or e.tcbench for e in environments),
        "project's commit": dict.fromkeys(e.project_commit for e in environments if e.project_commit),
    }
    mixed |= {fact: values for fact, values in commits.items() if len(values) > 1}
    return tuple(f"{fact}: {_joined(values)}" for fact, values in mixed.items())


def shared(base: Iterable[Record], current: Iterable[Record]) -> int:
    """Return the number of trials whose records are on both sides and equal."""
    base_trials, current_trials = (
        {(record.run_id, record.cell.key, record.trial, record.started_at): record for record in side}
        for side in (base, current)
    )
    common = base_trials.keys() & current_trials
    return sum(encode(base_trials[key]) == encode(current_trials[key]) for key in common)


def stack_differences(records: Iterable[Record], allow: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return for each run how its software stack differs from the other runs on its machine, in words: `numpy: 2.4.6`.

    Facets in `allow` do not count. If the sides of one gate have the same code and the same stack, the words of each
    also contain its run id, so that they stay apart. Runs that recorded nothing about their machine are left out."""
    of_machine = grouped((r.environment.machine, (r.run_id, r)) for r in records if r.environment is not None)
    machines = [grouped(runs) for runs in of_machine.values()]
    facts = {run: stack for runs in machines for run, stack in _stacks(runs, allow).items()}
    gates = ((run, GATE_RUN_ID.fullmatch(run), group) for runs in machines for run, group in runs.items())
    sides = grouped(
        ((gate[1], frozenset(r.environment.code for r in group if r.environment), facts[run]), run)
        for run, gate, group in gates
        if gate
    )
    return facts | {run: (*facts[run], run) for equal in sides.values() if len(equal) > 1 for run in equal}


def _stacks(runs: Mapping[str, Sequence[Record]], allow: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return, for each run of one machine, how its software stack differs from the other runs' stacks, in words.

    `runs` holds the records of each run; facets in `allow` do not count. Two runs have the same stack unless they
    differ in a fact that both recorded. Packages are compared cell by cell, since each backend has its own."""
    stacks: list[dict[tuple[str, str], dict[str, None]]] = []
    stack_of: dict[str, int] = {}
    for run, records in runs.items():
        cell_facts = {_DECODING, _STEP, *(key for cell in {r.cell for r in records} for key in _cell_facts(cell))}
        recorded = dict(values(records))
        if "libraries" not in allow:
            packages = ((r.cell.key, r.environment.packages) for r in records if r.environment)
            recorded |= {(_PACKAGES, key): {" ".join(names): None} for key, names in packages}
        facts = {key: dict(recorded[key]) for key in recorded if key not in cell_facts and key[0] not in allow}
        matching = (
            n for n, stack in enumerate(stacks) if all(facts[key].keys() & stack[key] for key in facts.keys() & stack)
        )
        number = stack_of[run] = next(matching, len(stacks))
        stacks += [{}] * (number == len(stacks))
        stacks[number] = facts | {key: facts.get(key, {}) | values for key, values in stacks[number].items()}
    keys = dict.fromkeys(key for stack in stacks for key in stack)
    differing = [key for key in keys if len({tuple(stack[key]) for stack in stacks if key in stack}) > 1]
    words = [tuple(dict.fromkeys(_stack_words(stack, stacks, differing))) for stack in stacks]
    return {run: words[number] for run, number in stack_of.items()}


_PACKAGES = "packages"
"""Used in place of a facet for the names of the packages of a cell."""


def _stack_words(stack: Values, stacks: Sequence[Values], differing: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield, in words, the facts of `stack` that differ between `stacks`. `differing` holds the keys of these facts. A
    package that other stacks have and `stack` lacks has the version `none`."""
    for key in differing:
        if key not in stack:
            continue
        if key[0] != _PACKAGES:
            yield f"{key[1]}: {_joined(stack[key])}"
            continue
        names, *other_names = ({*" ".join(other[key]).split()} for other in (stack, *stacks) if key in other)
        for name in sorted(names.union(*other_names) - names.intersection(*other_names)):
            yield f"{name}: {_joined(stack['libraries', name] if name in names else ())}"


def distance(first: Cell, second: Cell) -> int:
    """Return the number of facts in which two cells differ, without those by which cells are paired (`_IDENTITY`)."""
    facts, other_facts = _cell_facts(first), _cell_facts(second)
    return sum(facts.get(key) != other_facts.get(key) for key in facts.keys() | other_facts.keys())


def fingerprint(cell: Cell) -> frozenset[tuple[tuple[str, str], str]]:
    """Return a key that two cells have in common if and only if their `distance` is 0."""
    return frozenset(_cell_facts(cell).items())


def values(records: Iterable[Record]) -> Values:
    """Return the different values of each fact in `records`, in the order of appearance. Cells, environments and GPU
    states that several records share are read once."""
    collected: dict[tuple[str, str], dict[str, None]] = {}
    seen: set[int] = set()
    for record in records:
        parts: tuple[tuple[Any, Callable[[Any], FactValues]], ...] = (
            (record.cell, _cell_facts),
            (record.environment, _environment_facts),
            (record.gpu and record.gpu.state, _gpu_state_facts),
            # Older records do not name the decoding: GPU trials interpolated chroma then, as decoders on the host do.
            (record.measurement, lambda m: {_DECODING: m.decoding or "as on the host", _STEP: m.step_kind or ""}),
        )
        for part, facts_of in parts:
            if part is not None and id(part) not in seen:
                seen.add(id(part))
                for key, value in facts_of(part).items():
                    collected.setdefault(key, {})[value] = None
    return collected


@functools.lru_cache(4096)
def _cell_facts(cell: Cell) -> FactValues:
    """Return a cell's facts that matter for comparability, without those by which cells are paired (`_IDENTITY`)."""
    facts: dict[tuple[str, str], str] = {}
    for name, value in cell_settings(cell).items():
        if name == "device":
            value = value.partition(":")[0]  # the index among equal GPUs does not matter
        if name not in _IDENTITY:
            facts[_FACET_OF.get(name.partition(".")[0], "settings"), name] = str(value)
    return facts


def _environment_facts(environment: Environment) -> FactValues:
    """Return the facts of the machine and its software."""
    simulated, ranks, gpu, quota = environment.simulated, environment.ranks, environment.gpu, environment.cpu_quota
    variables = environment.variables
    facts: dict[tuple[str, str], str | None] = {
        ("simulated", "device"): "measured" if simulated is None else "simulated",
        ("gpu", "device name"): environment.device_name,
        ("host", "cpu"): environment.cpu,
        ("host", "cpus"): str(environment.cpus),
        # Rounded: the kernel reserves some memory, and not the same amount at each boot.
        ("host", "memory"): f"{environment.memory_bytes / 2**30:.0f} GiB",
        ("os", "os"): environment.os,
        ("os", "kernel"): environment.kernel,
        ("python", "python"): environment.python,
        ("libraries", "blas"): environment.blas,
        ("host", "processor"): environment.processor or None,
        ("host", "CPU quota"): None if quota is None else f"{quota:.2f} CPUs" if quota else "none",
        **{("libraries", name): version for name, version in environment.packages.items()},
        ("accelerator", "computed by"): environment.accelerator,
        **{("settings", f"PyTorch's {kind} threads"): str(n) for kind, n in (environment.threads or {}).items()},
    }
    if variables is not None:
        assignments = (f"{name}={text}" for name, text in sorted(variables.items()))
        facts["variables", "variables"] = " ".join(assignments) or "none"
    if ranks is not None:
        facts["ranks", "engine"] = ranks.engine
        facts["ranks", "hosts"] = str(len(ranks.hosts))
        facts["ranks", "binding"] = ranks.binding
    if simulated is not None:
        facts["simulated", "host speed"] = f"{simulated.host_speed:g}"
        facts["simulated", "attained fractions"] = simulated.attained
    if gpu is not None:
        facts["gpu", "multiprocessors"] = str(gpu.multiprocessors)
        facts["gpu", "memory of the GPU"] = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        facts["driver", "driver"] = gpu.driver
    return {key: text for key, text in facts.items() if text is not None}


def _gpu_state_facts(state: GpuState) -> FactValues:
    """Return the facts of a GPU's clocks and modes."""
    names = ("power_limit_w", "sm_clock_set_mhz", "memory_clock_set_mhz", "ecc", "mig")
    return {("clocks", name): str(value) for name in names if (value := getattr(state, name)) is not None}


def _joined(values: Iterable[str]) -> str:
    """Return values joined by commas, or `none`."""
    return ", ".join(values) or "none"
