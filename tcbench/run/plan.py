"""The plan of a run: a scenario, a selection and a device become cells, each runnable or skipped with a reason."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tcbench.core.claim import LOW_PRECISIONS
from tcbench.core.errors import ScenarioError, SelectionError, hint
from tcbench.core.git import GitError, Repository
from tcbench.core.packages import LADDER
from tcbench.core.record import (
    COPIED_FIELDS,
    DEFAULT_BACKEND,
    ENOUGH_TRIALS,
    Cell,
    Command,
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
"""Trials per cell with `--quick`."""


@dataclass(frozen=True)
class PlannedCell:
    """A cell, the reason why it will not run (None if it will), and its index in the plan."""

    cell: Cell
    skip_reason: str | None = None
    place: int | None = None


@dataclass(frozen=True)
class Plan:
    """Cells in the order of the scenario, with limits. Rounds over all cells continue until each cell has `trials`
    (None: no limit) or `budget_s` seconds are spent (None: no limit). `left_out` says which configs of the scenario are
    left out by default, and why. `turns_max_time_s` is the limit of the timed pass of trials that take turns, if it is
    not that of the cells."""

    scenario: Scenario
    device: Device
    cells: tuple[PlannedCell, ...]
    trials: int | None
    budget_s: float | None
    timeout_s: float
    left_out: str = ""
    turns_max_time_s: float | None = None

    @property
    def key(self) -> str:
        """A short digest of all cells. Plans with equal keys measure the same, however often."""
        return hashlib.sha256("".join(sorted(planned.cell.key for planned in self.cells)).encode()).hexdigest()[:16]


def make(scenario: Scenario, selection: Selection, device: Device, *, remote: bool = False) -> Plan:
    """Return the plan of a selection from a scenario on a device. Cells that cannot run there are marked as skipped.
    `remote`: the device is in another machine, so that packages missing here do not matter.

    Raises SelectionError or ScenarioError for configs, models or settings that do not exist."""
    scenario = scenario.on(device.kind)
    sizes = scenario.batch_sizes
    batch_sizes = selection.batch_sizes or ((sizes[len(sizes) // 2],) if selection.quick else sizes)
    ranks = selection.ranks or tuple(dict.fromkeys(scenario.measure.ranks))
    threads = selection.threads or max(1, machine.usable_cpus() // max(ranks))
    commands = {config: _command(config, selection) for config in scenario.configs if config.command is not None}
    image_size = scenario.model.image_size if selection.image_size is None else selection.image_size
    models = _models(scenario, selection.models)
    for name in models:
        if name in known_models() and image_size < (least := known_models()[name].min_image_size):
            raise SelectionError(f"--image-size {image_size}: {name} takes images of at least {least} pixels")
    if selection.input and selection.input.kind == "modelled" and kind_of(device.name).simulates is None:
        raise SelectionError(
            f"--data modelled needs a virtual device (virtual:V100); use --data synthetic on {device.name}"
        )
    if selection.host_speed != 1 and kind_of(device.name).simulates is None:
        raise SelectionError(f"--host-speed needs a simulated device; {device.name} is real")
    for config in scenario.configs:  # a spelling mistake in the file is an error, not a skipped cell
        if wrong := backend_problem(config.backend) or backend(config.backend).RUNGS.problem(config.rungs):
            remedy = "; a program of your own needs a command" if wrong.startswith("unknown rung") else ""
            raise ScenarioError(f"{scenario.path}: config '{config.name}': {wrong}{remedy}")
    changes = {"target": selection.target, "max_time_s": selection.max_time_s}
    changes = {name: value for name, value in changes.items() if value is not None}
    if commands and scenario.measure.max_time_s is msgspec.UNSET:
        changes.setdefault("max_time_s", _PROGRAM_S)
    measure = msgspec.convert(msgspec.to_builtins(scenario.measure), MeasureSettings)
    measure = msgspec.structs.replace(measure, **changes)
    configs = select(scenario, selection.configs)
    configs, left_out = (configs, "") if selection.configs else _without_other_precision(configs, device)
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
                threads=threads if config not in commands else selection.threads or 0,
                command=commands.get(config),
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
    turns_max_time_s = None if selection.max_time_s else scenario.measure.turns_max_time_s
    limits = *_rounds(selection, scenario, device), timeout_s
    return Plan(scenario, device, tuple(cells), *limits, left_out, turns_max_time_s)


_PROGRAM_S = 10.0
"""The timed seconds of a trial of the user's program, unless the scenario or the command line sets them."""


def _command(config: Config, selection: Selection) -> Command | None:
    """Return the program that a config runs, with the commit that its branch names now. Raises ScenarioError."""
    command = config.command
    if command is None or config.branch is None:
        return command and msgspec.structs.replace(command, goes_on=selection.goes_on)
    try:
        repository = Repository.containing(Path.cwd())
        revision = repository.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{config.branch}^{{commit}}")
    except (GitError, OSError) as error:
        raise ScenarioError(f"config '{config.name}': branch '{config.branch}': no such commit ({error})") from None
    return msgspec.structs.replace(command, goes_on=selection.goes_on, revision=revision)


def _without_other_precision(configs: tuple[Config, ...], device: Device) -> tuple[tuple[Config, ...], str]:
    """Return the configs without those in the less suitable of bf16 and fp16, and a note on what is left out.

    On a processor with instructions for only one of the two, that one is kept. If it has instructions for both, bf16 is
    kept; if for neither, fp16, which the talk used. On other devices, and with at most one of the two in `configs`, all
    configs are returned with an empty note."""
    lows = [low for low in LOW_PRECISIONS if any(low in config.rungs for config in configs)]
    if not kind_of(device.name).is_host or len(lows) < 2:
        return configs, ""
    emulated = backend(DEFAULT_BACKEND).RUNGS.emulated(lows, device.instructions)
    computed = [low for low in lows if low not in emulated]
    other_precision, chosen_precision = ("fp16", "bf16") if "bf16" in computed else ("bf16", "fp16")
    why = f"one low precision is enough, and this processor has instructions for {chosen_precision}"
    if not computed:
        why = "this processor has instructions for neither bf16 nor fp16; fp16 shows the rungs, but no gain"
    chosen = tuple(config for config in configs if other_precision not in config.rungs)
    return chosen, f"{other_precision} is left out: {why}; --config '{other_precision}*' selects it"


def _base_and_best(scenario: Scenario, configs: tuple[Config, ...], device: Device) -> tuple[Config, ...]:
    """Return the two configs that `--quick` measures: the first of `configs`, and the top (last config) of the last
    ladder whose top is in `configs`, if possible one without emulated rungs. Without such a ladder, two configs are
    returned as they are, and any other number raises SelectionError."""
    tops = [ladder[-1] for ladder in scenario.ladders if ladder[-1] in configs[1:]] or [
        *configs[1:][: len(configs) == 2]
    ]
    if not tops:
        raise SelectionError(
            f"--quick measures two configs, {configs[0].name} and the top of a ladder: select two with --config"
        )
    computed = [top for top in tops if not backend(top.backend).RUNGS.emulated(top.rungs, device.instructions)]
    return configs[0], (computed or tops)[-1]


def lacking(machine: str | None) -> tuple[str, ...]:
    """Return the rungs of the default backend whose instructions this machine's processor lacks. Empty if `machine` is
    the name of another machine, whose instructions are unknown."""
    processor, rungs = host_device(), backend(DEFAULT_BACKEND).RUNGS
    return rungs.emulated(rungs.rungs, processor.instructions) if machine == processor.machine else ()


def _models(scenario: Scenario, requested: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the models to measure: the requested ones, else the scenario's. Raises SelectionError."""
    if requested is None:
        return scenario.models
    for name in requested:
        if name not in known_models():
            raise SelectionError(f"--model '{name}': unknown; {hint(name, known_models())}")
    if not any(builds_models(config.backend) for config in scenario.configs):
        raise SelectionError(f"--model: scenario {scenario.name} measures your own steps, which define their model")
    return requested


def _rounds(selection: Selection, scenario: Scenario, device: Device) -> tuple[int | None, float | None]:
    """Return the trials per cell and the budget in seconds, each None for no limit. Both come from the first source
    that sets one of them: the command line, `--quick`, the scenario, or the defaults (as many trials as a comparison
    needs, and the budget of the kind of device)."""
    quick = (QUICK_TRIALS, None) if selection.quick else (None, None)
    measure = scenario.measure
    for trials, budget_s in ((selection.trials, selection.budget_s), quick, (measure.trials, measure.budget_s)):
        if trials is not None or budget_s is not None:
            return trials, budget_s
    return ENOUGH_TRIALS, kind_of(device.name).budget_s


def _input(scenario: Scenario, selection: Selection, config: Config) -> Input:
    """Return the requested source of images, with the scenario's setting for decoding. Without a request, return the
    scenario's source, or the kind `own` for a user's own step."""
    if selection.input is not None:
        return msgspec.structs.replace(selection.input, hw_decoder_load=scenario.input.hw_decoder_load)
    return scenario.input if builds_models(config.backend) else Input(kind="own")


def _train(scenario: Scenario, model: str) -> TrainSettings:
    """Return the scenario's training settings, with the learning rate limited to what the model tolerates."""
    highest = known_models()[model].learning_rate if model in known_models() else math.inf
    rate = min(scenario.train.learning_rate, highest)
    return msgspec.structs.replace(scenario.train, learning_rate=rate)


def _variant(model: str, variant: str) -> str:
    """Return the scenario's variant of a model, or the model's first variant if it has no such variant."""
    network = known_models().get(model)
    return variant if network is None or variant in network.variants else network.variants[0]


def _why_not_many(cell: Cell) -> str | None:
    """Return why a cell cannot run on several ranks, or None if it can or has only one."""
    if cell.ranks > 1 and kind_of(cell.device).simulates is not None:
        return "communication between ranks is not simulated; measure many ranks on real devices"
    return backend(cell.backend).RUNGS.problem_on_many_ranks(cell.rungs) if cell.ranks > 1 else None


def select(scenario: Scenario, patterns: Iterable[str]) -> tuple[Config, ...]:
    """Return the scenario's configs that match any of the names or globs, in the scenario's order; all without a
    pattern. A name that is not in the scenario but consists of rungs is a config of its own. Raises SelectionError."""
    patterns = tuple(patterns)
    if not patterns:
        return scenario.configs
    chosen: dict[Config, None] = {}
    for pattern in patterns:
        matching = [config for config in scenario.configs if fnmatch.fnmatchcase(config.name, pattern)]
        if not matching:  # the name may leave out the backend, if no config of the default backend has it
            matching = [c for c in scenario.configs if fnmatch.fnmatchcase(c.name.rpartition("/")[2], pattern)]
        if not matching:
            matching = [_composed(scenario, pattern)]
        chosen.update(dict.fromkeys(matching))
    in_scenario = [config for config in scenario.configs if config in chosen]
    return (*in_scenario, *(config for config in chosen if config not in in_scenario))


def _composed(scenario: Scenario, name: str) -> Config:
    """Return the config that a name such as `fp16+dali` describes by its rungs. Raises SelectionError."""
    names = [config.name for config in scenario.configs]
    if any(mark in name for mark in "*?["):
        raise SelectionError(f"config '{name}': matches none of {', '.join(names)}")
    backend_name, _, rest = name.rpartition("/")
    rung_names, _, ablation = rest.partition(":")
    rungs = tuple(rung_names.split("+"))
    config = Config(_backend_by_prefix(scenario, backend_name, name), rungs)
    if ablation:
        names = list(dict.fromkeys(config.ablation for config in scenario.configs if config.ablation))
        settings = next((config.cudnn for config in scenario.configs if config.ablation == ablation), None)
        if settings is None:
            has = f"has {', '.join(names)}" if names else "has none"
            raise SelectionError(f"config '{name}': unknown ablation '{ablation}'; scenario {scenario.name} {has}")
        config = Config(config.backend, rungs, ablation, settings)
    rung_set = backend(config.backend).RUNGS
    if len(rungs) == 1 and rungs[0] not in rung_set:
        expected = f"expected a config such as {names[-1]}, a glob, or rungs"
        raise SelectionError(f"config '{name}': unknown; {hint(name, [*names, *rung_set.rungs], expected)}")
    if wrong := rung_set.problem(rungs):
        raise SelectionError(f"config '{name}': {wrong}")
    return config


def _backend_by_prefix(scenario: Scenario, prefix: str, name: str) -> str:
    """Return the backend for the prefix of a config's name. An empty prefix that no config of the scenario has stands
    for the backend of the scenario's first config. Raises SelectionError for another prefix; `name` is the whole
    name."""
    backends = {config.name.rpartition("/")[0]: config.backend for config in reversed(scenario.configs)}
    if prefix in backends:
        return backends[prefix]
    if not prefix:
        return scenario.configs[0].backend
    reason = backend_problem(prefix) or f"scenario {scenario.name} has no {prefix}/ config"
    raise SelectionError(f"config '{name}': {reason}")


def why_not(config: Config, device: Device, *, remote: bool = False, emulate: bool = False) -> str | None:
    """Return why a config cannot run on the device, with the remedy, or None if it can. `remote`: packages missing here
    do not matter. `emulate`: a processor without the instructions of a rung is no reason."""
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
        requires = the_backend.RUNGS[name].requires
        if reason := missing(requires, device, remote=remote):
            return f"{name}: {reason}"
        if not emulate and (reason := emulation(requires, device)):
            return f"{name}: {reason}; --config {config.name} runs it anyway"
    return None


def refuse(device: Device, backends: Iterable[str]) -> None:
    """Raise SelectionError if all these backends lack the extra `ladder`, or if the packages of all do not fit the
    device."""
    backends = tuple(backends)
    require_ladder(device, backends)
    packages = [backend(name).DEVICES.get(device.kind, ()) for name in dict.fromkeys(backends)]
    misfits = [
        next(filter(None, (package.misfit(device.compute_capability) for package in group)), None) for group in packages
    ]
    if misfits and all(misfits):
        raise SelectionError(f"--device {device.name} ({device.title}): {misfits[0]}; --device cpu works")


def require_ladder(device: Device, backends: Iterable[str]) -> None:
    """Raise SelectionError if all these backends lack a package of the extra `ladder`."""
    absent = [package for package in LADDER if not package.is_installed()]
    lacking = [[p for p in absent if p in backend(name).DEVICES.get(device.kind, ())] for name in backends]
    if lacking and all(lacking):
        (package, *_), *_ = lacking
        reason = f"the built-in networks need the extra 'ladder' ({package.module} is not installed)"
        raise SelectionError(f"{reason}: {package.install}")


def emulation(requires: Requires, device: Device) -> str | None:
    """Return why a rung with these requirements is emulated on the device, too slowly to run by default, or None."""
    needed = requires.instructions
    if needed is None or needed.optional or not requires.is_emulated(device.instructions):
        return None
    return f"needs {' or '.join(needed.any_of)}, {device.title} has none of them: {needed.fallback}"


def missing(requires: Requires, device: Device, *, remote: bool = False) -> str | None:
    """Return, in words, the first requirement of a rung that the device or (unless `remote`) this installation does not
    meet, or None if all are met."""
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
    """Return the plan of a selection, with the device's default scenario if it names none. `remote`: packages missing
    here do not matter. `first`: unless batch sizes are selected, only the first of the scenario's is planned. Raises
    SelectionError or ScenarioError."""
    loaded = load(chosen.scenario) if chosen.scenario else None
    target = device_for(chosen.device, [config.backend for config in loaded.configs] if loaded else None)
    loaded = loaded or load("cpu" if target.kind == "cpu" else "naruse2018")
    if first and chosen.batch_sizes is None:
        chosen = replace(chosen, batch_sizes=loaded.on(target.kind).batch_sizes[:1])
    return make(loaded, chosen, target, remote=remote)


def advisable(summary: CellSummary) -> Callable[[Sequence[str]], str | None]:
    """Return a function from a list of rungs to the reason why they are not advised for the cell's device, or None if
    they can be.

    Packages of this machine do not matter, since the results may come from another. For a user's own backend the
    function always returns a reason, since only measured configs are known to work."""
    if not builds_models(summary.cell.backend):
        return lambda _: "the rungs of its backend are unknown"
    rung_set = backend(summary.cell.backend).RUNGS
    gpu = summary.environment.gpu if summary.environment else None
    capability = gpu.compute_capability if gpu else None
    # The instructions of another machine's processor are unknown: rungs that need some are not advised.
    host = host_device()
    instructions = (host.instructions if summary.machine == host.machine else None) or frozenset()
    device = Device(summary.cell.device, "", 0, capability)
    on_host = kind_of(device.name).is_host
    emulated = summary.environment.emulated if summary.environment else ()

    def problem(rungs: Sequence[str]) -> str | None:
        """Return why these rungs are not advised: they conflict, or the device may lack what they need. None if they
        can be advised. fp32 does not replace a low precision that the processor computes in."""
        if conflict := rung_set.problem(rungs):
            return conflict
        added = [rung_set[name].requires for name in rungs if name not in summary.cell.rungs]
        if on_host and any(requires.is_emulated(instructions) for requires in added):
            return "that processor may lack the instructions"
        if "fp32" in rungs and not emulated and {*LOW_PRECISIONS} & {*summary.cell.rungs}:
            return "its low precision is not emulated"
        return next(filter(None, (missing(rung_set[name].requires, device, remote=True) for name in rungs)), None)

    return problem
