"""The plan of a run: a scenario, a selection and a device become cells, each runnable or skipped with a reason."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from tcbench.core.claim import LOW_PRECISIONS
from tcbench.core.errors import ScenarioError, SelectionError, hint
from tcbench.core.record import (
    COPIED_FIELDS,
    DEFAULT_BACKEND,
    ENOUGH_TRIALS,
    Cell,
    Input,
    MeasureSettings,
    TrainSettings,
)
from tcbench.core.record import Selection as Selection
from tcbench.engine.api import (
    Device,
    Requires,
    backend,
    backend_problem,
    builds_models,
    device_for,
    host_device,
    kind_of,
    known_models,
)
from tcbench.hardware import machine
from tcbench.run.scenario import Config, Scenario, load

if TYPE_CHECKING:
    from tcbench.analysis.summary import CellSummary

QUICK_TRIALS = 3
"""Of each cell of `--quick`."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell, why it will not run, or None, and its place in the plan."""

    cell: Cell
    skip_reason: str | None = None
    place: int | None = None


@dataclass(frozen=True)
class Plan:
    """Cells in the order of the scenario, and how often and how long each may run: rounds over all of them go on until
    each has `trials` (None: without end) or `budget_s` seconds are spent (None: never). `left_out`: which configs of
    the scenario are not here, though nobody chose, and why."""

    scenario: Scenario
    device: Device
    cells: tuple[PlannedCell, ...]
    trials: int | None
    budget_s: float | None
    timeout_s: float
    left_out: str = ""

    @property
    def key(self) -> str:
        """A short digest of all cells: two plans with one key measure the same, however often."""
        return hashlib.sha256("".join(sorted(planned.cell.key for planned in self.cells)).encode()).hexdigest()[:16]


def make(scenario: Scenario, selection: Selection, device: Device, *, remote: bool = False) -> Plan:
    """Raises SelectionError or ScenarioError for what does not exist; what exists but cannot run is skipped. `remote`:
    the device is another machine's, so that what is installed on this one is no reason."""
    scenario = scenario.on(device.kind)
    sizes = scenario.batch_sizes
    batch_sizes = selection.batch_sizes or ((sizes[len(sizes) // 2],) if selection.quick else sizes)
    ranks = selection.ranks or tuple(dict.fromkeys(scenario.measure.ranks))
    threads = selection.threads or max(1, machine.usable_cpus() // max(ranks))
    image_size = scenario.model.image_size if selection.image_size is None else selection.image_size
    models = _models(scenario, selection.models)
    for name in models:
        if name in known_models() and image_size < (least := known_models()[name].min_image_size):
            raise SelectionError(f"--image-size {image_size}: {name} takes images of at least {least} pixels")
    if selection.input and selection.input.kind == "modelled" and kind_of(device.name).simulates is None:
        raise SelectionError(
            f"--data modelled: {device.name} computes, and takes images; expected a virtual device (virtual:V100), or "
            "--data synthetic"
        )
    if selection.host_speed != 1 and kind_of(device.name).simulates is None:
        raise SelectionError(f"--host-speed: {device.name} runs as fast as it does; expected a simulated device")
    for config in scenario.configs:  # a spelling mistake is the file's error, not a skipped cell
        if wrong := backend_problem(config.backend) or backend(config.backend).RUNGS.problem(config.rungs):
            raise ScenarioError(f"{scenario.path}: config '{config.name}': {wrong}")
    changes = {"target": selection.target, "max_time_s": selection.max_time_s}
    changes = {name: value for name, value in changes.items() if value is not None}
    measure = msgspec.convert(scenario.measure, MeasureSettings, from_attributes=True)
    measure = msgspec.structs.replace(measure, **changes)
    configs = select(scenario, selection.configs)
    configs, left_out = (configs, "") if selection.configs else _of_one_low_precision(configs, device)
    if selection.quick:
        configs = _base_and_best(scenario, configs, device)
    if not remote:
        refuse(device, (config.backend for config in configs))
    reasons = {c: why_not(c, device, remote=remote, emulate=bool(selection.configs)) for c in configs}
    cells: list[PlannedCell] = []
    for model, config in itertools.product(models, configs):
        for batch_size, n_ranks in itertools.product(batch_sizes, ranks):
            cell = Cell(
                scenario=scenario.name,
                backend=config.backend,
                model=model,
                variant=_variant(model, scenario.model.variant),
                config=config.name,
                rungs=config.rungs,
                batch_size=batch_size,
                image_size=image_size,
                n_classes=scenario.model.classes,
                device=device.name,
                input=_input(scenario, selection, config),
                threads=threads,
                train=_train(scenario, model),
                cudnn=config.cudnn or scenario.cudnn,
                measure=measure,
                scenario_cudnn=scenario.cudnn if config.cudnn else None,
                ranks=n_ranks,
                unit=scenario.unit,
                base=scenario.base,
                **{name: getattr(selection, name) for name in COPIED_FIELDS},
            )
            cells.append(PlannedCell(cell, reasons[config] or _why_not_many(cell), len(cells)))
    timeout_s = selection.timeout_s or scenario.measure.timeout_s
    return Plan(scenario, device, tuple(cells), *_rounds(selection, scenario, device), timeout_s, left_out)


def _of_one_low_precision(configs: tuple[Config, ...], device: Device) -> tuple[tuple[Config, ...], str]:
    """The configs without those in a low precision that the processor emulates, where there is another: bf16 or, where
    it computes in fp16 alone or in neither, fp16, the talk's. With the words for what is left out."""
    lows = [low for low in LOW_PRECISIONS if any(low in config.rungs for config in configs)]
    if not kind_of(device.name).is_host or len(lows) < 2:
        return configs, ""
    emulated = backend(DEFAULT_BACKEND).RUNGS.emulated(lows, device.instructions)
    computed = [low for low in lows if low not in emulated]
    other, kept = ("fp16", "bf16") if "bf16" in computed else ("bf16", "fp16")
    why = f"this processor computes in {kept}"
    if not computed:
        why = "this processor computes in neither bf16 nor fp16, so that fp16 shows the rungs and no gain"
    chosen = tuple(config for config in configs if other not in config.rungs)
    return chosen, f"{other} is left out: {why}; --config '{other}*' chooses it"


def _base_and_best(scenario: Scenario, configs: tuple[Config, ...], device: Device) -> tuple[Config, ...]:
    """The first of these configs, and the top of the last ladder that climbs to one of them: where there is one, of
    which nothing is emulated. Of two configs without a ladder both. Raises SelectionError."""
    tops = [ladder[-1] for ladder in scenario.ladders if ladder[-1] in configs[1:]] or [
        *configs[1:][: len(configs) == 2]
    ]
    if not tops:
        raise SelectionError(f"--quick: no ladder of scenario {scenario.name} climbs from {configs[0].name} here")
    computed = [top for top in tops if not backend(top.backend).RUNGS.emulated(top.rungs, device.instructions)]
    return configs[0], (computed or tops)[-1]


def lacking(machine: str | None) -> tuple[str, ...]:
    """The rungs whose instructions the processor of a machine lacks, where that is this one."""
    here, rungs = host_device(), backend(DEFAULT_BACKEND).RUNGS
    return rungs.emulated(rungs.rungs, here.instructions) if machine == here.machine else ()


def _models(scenario: Scenario, asked: tuple[str, ...] | None) -> tuple[str, ...]:
    if asked is None:
        return scenario.models
    for name in asked:
        if name not in known_models():
            raise SelectionError(f"--model '{name}': unknown; {hint(name, known_models())}")
    if not any(builds_models(config.backend) for config in scenario.configs):
        raise SelectionError(f"--model: scenario {scenario.name} measures steps of your own, which bring their model")
    return asked


def _rounds(selection: Selection, scenario: Scenario, device: Device) -> tuple[int | None, float | None]:
    """Trials per cell and the budget in seconds: the command line's; where it names neither, the scenario's; where that
    does not, as many trials as a comparison takes, within the budget of the kind of device."""
    quick = (QUICK_TRIALS, None) if selection.quick else (None, None)
    measure = scenario.measure
    for trials, budget_s in ((selection.trials, selection.budget_s), quick, (measure.trials, measure.budget_s)):
        if trials is not None or budget_s is not None:
            return trials, budget_s
    return ENOUGH_TRIALS, kind_of(device.name).budget_s


def _input(scenario: Scenario, selection: Selection, config: Config) -> Input:
    """The source of images that is asked for, else the scenario's; decoded as the scenario says."""
    if selection.input is not None:
        return msgspec.structs.replace(selection.input, hw_decoder_load=scenario.input.hw_decoder_load)
    return scenario.input if builds_models(config.backend) else Input(kind="own")


def _train(scenario: Scenario, model: str) -> TrainSettings:
    """The scenario's settings, at no higher a learning rate than the model trains at."""
    highest = known_models()[model].learning_rate if model in known_models() else math.inf
    rate = min(scenario.train.learning_rate, highest)
    return msgspec.structs.replace(scenario.train, learning_rate=rate)


def _variant(model: str, variant: str) -> str:
    """Return the scenario's variant of a model, or the model's first variant if it has no such variant."""
    network = known_models().get(model)
    return variant if network is None or variant in network.variants else network.variants[0]


def _why_not_many(cell: Cell) -> str | None:
    """Why a cell that runs on one rank does not on as many as it has."""
    if cell.ranks > 1 and kind_of(cell.device).simulates is not None:
        return "what ranks say to each other is not simulated; measure many ranks on real devices"
    return backend(cell.backend).RUNGS.problem_of_many(cell.rungs) if cell.ranks > 1 else None


def select(scenario: Scenario, patterns: Iterable[str]) -> tuple[Config, ...]:
    """The scenario's configs that match any of the names or globs, in the scenario's order; all without a pattern. A
    name that the scenario does not have, but whose parts are rungs, is a config of its own. Raises SelectionError."""
    patterns = tuple(patterns)
    if not patterns:
        return scenario.configs
    chosen: dict[Config, None] = {}
    for pattern in patterns:
        matching = [config for config in scenario.configs if fnmatch.fnmatchcase(config.name, pattern)]
        if not matching:  # without the backend's name, where no config of the default one is called so
            matching = [c for c in scenario.configs if fnmatch.fnmatchcase(c.name.rpartition("/")[2], pattern)]
        if not matching:
            matching = [_composed(scenario, pattern)]
        chosen.update(dict.fromkeys(matching))
    of_scenario = [config for config in scenario.configs if config in chosen]
    return (*of_scenario, *(config for config in chosen if config not in of_scenario))


def _composed(scenario: Scenario, name: str) -> Config:
    known = [config.name for config in scenario.configs]
    if any(mark in name for mark in "*?["):
        raise SelectionError(f"config '{name}': matches none of {', '.join(known)}")
    backend_name, _, rest = name.rpartition("/")
    named, _, ablation = rest.partition(":")
    rungs = tuple(named.split("+"))
    config = Config(_backend_called(scenario, backend_name, name), rungs)
    if ablation:
        known = list(dict.fromkeys(config.ablation for config in scenario.configs if config.ablation))
        settings = next((config.cudnn for config in scenario.configs if config.ablation == ablation), None)
        if settings is None:
            there = f"has {', '.join(known)}" if known else "has none"
            raise SelectionError(f"config '{name}': unknown ablation '{ablation}'; scenario {scenario.name} {there}")
        config = Config(config.backend, rungs, ablation, settings)
    rung_set = backend(config.backend).RUNGS
    if len(rungs) == 1 and rungs[0] not in rung_set:
        expected = f"expected a config such as {known[-1]}, a glob, or rungs"
        raise SelectionError(f"config '{name}': unknown; {hint(name, [*known, *rung_set.rungs], expected)}")
    wrong = rung_set.problem(rungs)
    if wrong:
        raise SelectionError(f"config '{name}': {wrong}")
    return config


def _backend_called(scenario: Scenario, called: str, name: str) -> str:
    """The backend that a config's name begins with; the scenario's first without one. Raises SelectionError."""
    there = {config.name.rpartition("/")[0]: config.backend for config in reversed(scenario.configs)}
    if called in there:
        return there[called]
    if not called:
        return scenario.configs[0].backend
    raise SelectionError(
        f"config '{name}': {backend_problem(called) or f'scenario {scenario.name} has no {called}/ config'}"
    )


def why_not(config: Config, device: Device, *, remote: bool = False, emulate: bool = False) -> str | None:
    """Why a config cannot run on the device, with the remedy; None when it can. `remote` as in `make`. `emulate`: it
    runs though the processor lacks the instructions of a rung."""
    the_backend = backend(config.backend)
    if device.kind not in the_backend.DEVICES:
        return f"backend {config.backend} does not run on {device.kind}"
    if config.cudnn is not None and kind_of(device.name).is_host:
        return f"{config.ablation}: cuDNN's settings act on a GPU only"
    for package in () if remote else the_backend.DEVICES[device.kind]:
        if not package.is_installed():
            return f"backend {config.backend} needs the package {package.module}: {package.install}"
        if misfit := package.misfit(device.compute_capability):
            return misfit
    for name in config.rungs:
        reason = missing(the_backend.RUNGS[name].requires, device, remote=remote)
        if reason:
            return f"{name}: {reason}"
        reason = None if emulate else emulation(the_backend.RUNGS[name].requires, device)
        if reason:
            return f"{name}: {reason}; --config {config.name} runs it all the same"
    return None


def refuse(device: Device, backends: Iterable[str]) -> None:
    """Raises SelectionError where what is installed serves the device for none of the backends, though it is there."""
    packages = [backend(name).DEVICES.get(device.kind, ()) for name in dict.fromkeys(backends)]
    misfits = [next(filter(None, (one.misfit(device.compute_capability) for one in those)), None) for those in packages]
    if misfits and all(misfits):
        raise SelectionError(f"--device {device.name} ({device.title}): {misfits[0]}; --device cpu works")


def emulation(requires: Requires, device: Device) -> str | None:
    """Why a rung with these requirements is so slow on the device, though it runs, that it is not run unasked; None
    where it is not."""
    needed = requires.instructions
    if needed is None or needed.optional or not requires.is_emulated(device.instructions):
        return None
    return f"needs {' or '.join(needed.any_of)}, {device.title} has none of them: {needed.without}"


def missing(requires: Requires, device: Device, *, remote: bool = False) -> str | None:
    """The first requirement that this device or installation (unless `remote`) does not meet."""
    program = kind_of(device.name).simulates or device.kind
    if requires.devices is not None and program not in requires.devices:
        return f"needs {' or '.join(sorted(requires.devices))}"
    needed = requires.compute_capability
    if needed and device.compute_capability and device.compute_capability < needed:
        have = "{}.{}".format(*device.compute_capability)
        return f"needs compute capability {needed[0]}.{needed[1]}, {device.title} has {have}"
    for package in () if remote else requires.packages:
        if not package.is_installed():
            return f"needs the package {package.module}: {package.install}"
    return None


def plan_of(chosen: Selection, *, remote: bool = False, first: bool = False) -> Plan:
    """The scenario's cells on the device; without a name, the default scenario of that. `remote` as in `make`. `first`:
    of the scenario's batch sizes the first alone. Raises SelectionError or ScenarioError."""
    loaded = load(chosen.scenario) if chosen.scenario else None
    target = device_for(chosen.device, [config.backend for config in loaded.configs] if loaded else None)
    loaded = loaded or load("cpu" if target.kind == "cpu" else "naruse2018")
    if first and chosen.batch_sizes is None:
        chosen = replace(chosen, batch_sizes=loaded.on(target.kind).batch_sizes[:1])
    return make(loaded, chosen, target, remote=remote)


def advisable(summary: CellSummary) -> Callable[[Sequence[str]], str | None]:
    """A function that says why a list of rungs is no config on the cell's device, or None where it is one. The packages
    of this machine do not matter: the results may be another's. Of a backend that is not ours only measured configs are
    known to be possible."""
    if not builds_models(summary.cell.backend):
        return lambda _: "nothing is known of its backend's rungs"
    rung_set = backend(summary.cell.backend).RUNGS
    gpu = summary.environment.gpu if summary.environment else None
    capability = gpu.compute_capability if gpu else None
    # Another machine's processor may have any instructions: what would need some is not advised.
    instructions = (
        host_device().instructions or frozenset() if summary.machine == host_device().machine else frozenset()
    )
    device = Device(summary.cell.device, "", 0, capability)
    on_host = kind_of(device.name).is_host
    emulated = summary.environment.emulated if summary.environment else ()

    def problem(rungs: Sequence[str]) -> str | None:
        conflict = rung_set.problem(rungs)
        new = [rung_set[name].requires for name in rungs if name not in summary.cell.rungs and name in rung_set]
        if on_host and any(requires.is_emulated(instructions) for requires in new):
            return "its instructions are not known to be there"
        if "fp32" in rungs and not emulated and {*LOW_PRECISIONS} & {*summary.cell.rungs}:
            return "its low precision is not emulated"
        reasons = (missing(rung_set[name].requires, device, remote=True) for name in rungs)
        return conflict or next(filter(None, reasons), None)

    return problem
