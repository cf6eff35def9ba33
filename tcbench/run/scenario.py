"""Reads a scenario: what to run, from a TOML file (its form is in `tcbench.run.scenario_file`) to a frozen Scenario.

Whether a rung can run on a machine or device is decided by the plan (`tcbench.run.plan`), not here."""

from __future__ import annotations

import functools
import itertools
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import tcbench
from tcbench.core import claim as claims
from tcbench.core import files
from tcbench.core.claim import Claim
from tcbench.core.errors import ScenarioError, hint
from tcbench.core.record import (
    COMMAND_BACKEND,
    COPIED_FIELDS,
    DEFAULT_BACKEND,
    Cell,
    Command,
    CudnnSettings,
    Input,
    Selection,
    TrainSettings,
)
from tcbench.core.text import cleaned
from tcbench.engine.api import builds_models, device_kinds, known_models
from tcbench.run import scenario_file
from tcbench.run.scenario_file import ConfigSection, CudnnTable, File, LadderTable, MeasureTable, ModelTable

if TYPE_CHECKING:
    from tcbench.analysis.claims import ScenarioClaims

SUFFIX = ".toml"

DEFAULT_MODEL = "resnet50"
"""The model of a scenario that names none."""
VALUES = ("batch_size", "ranks", "seed", "steps")
"""The values that a command contains as {name}."""

OWN_MODEL = "own"
"""Stands for the model's name if the user's own step has none."""


@dataclass(frozen=True)
class Config:
    """A named list of rungs. The name is the rungs joined by '+', followed by ':' and the ablation if any, and preceded
    by the backend and '/' if it is not the default. `cudnn`: the settings of an ablation, else None. `command`: the
    user's program that it runs in place of a backend, if any, in the git revision `branch` if there is one."""

    backend: str
    rungs: tuple[str, ...]
    ablation: str = ""
    cudnn: CudnnSettings | None = None
    command: Command | None = None
    branch: str | None = None

    @property
    def name(self) -> str:
        """The config's name in records and commands. The backend "package.module:step" appears as "module"."""
        backend = (
            ""
            if self.backend in (DEFAULT_BACKEND, COMMAND_BACKEND)
            else self.backend.partition(":")[0].rpartition(".")[2] + "/"
        )
        return backend + "+".join(self.rungs) + (f":{self.ablation}" if self.ablation else "")


@dataclass(frozen=True)
class Scenario:
    """A checked scenario file.

    - `models`: the names that `model` stands for.
    - `ladders`: the configs of each ladder in order, each with more rungs than the one before.
    - `unit`: what batch sizes count.
    - `base`: the config to which others are compared; None if the file names none.
    - `on_cpu`: the scenario with the changes of its table [cpu]."""

    path: Path
    title: str
    unit: str
    model: ModelTable
    models: tuple[str, ...]
    input: Input
    train: TrainSettings
    cudnn: CudnnSettings
    measure: MeasureTable
    ladders: tuple[tuple[Config, ...], ...]
    configs: tuple[Config, ...]
    claims: tuple[Claim, ...]
    base: str | None
    on_cpu: Scenario | None = None

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes, each once."""
        return tuple(dict.fromkeys(self.measure.batch_sizes))

    def on(self, device_kind: str) -> Scenario:
        """Return the scenario as it applies to a kind of device."""
        return self.on_cpu if device_kind == "cpu" and self.on_cpu is not None else self


def shipped() -> dict[str, Path]:
    """Return the name and path of each scenario that comes with tcbench, in the package or else in the checkout."""
    package = Path(tcbench.__file__).parent
    folder = package if (package / "scenarios").is_dir() else package.parent
    return {path.stem: path for path in sorted(folder.glob(f"scenarios/*{SUFFIX}"))}


_LARGEST = 2**20
"""The largest allowed size of a scenario file in bytes."""


def find(name_or_path: str) -> Path:
    """Return the file of a scenario, given by name or path. A path is returned even if there is no such file. Raises
    ScenarioError for an unknown name."""
    if "/" in name_or_path or name_or_path.endswith(SUFFIX):
        return Path(name_or_path)
    scenarios = shipped()
    if name_or_path in scenarios:
        return scenarios[name_or_path]
    expected = f"expected one of {', '.join(scenarios)}, or a path to a .toml file"
    raise ScenarioError(f"scenario '{name_or_path}': unknown; {hint(name_or_path, scenarios, expected)}")


def load(name_or_path: str) -> Scenario:
    """Read and check a scenario by name or path. Raises ScenarioError with the file, the key and what was expected."""
    path = find(name_or_path)
    try:
        raw = cleaned(tomllib.loads(files.read(path, _LARGEST).decode()))
    except FileNotFoundError:
        raise ScenarioError(f"{path}: no such scenario file; `tcbench list` shows the built-in ones") from None
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise ScenarioError(f"{path}: nested too deeply; expected the keys of a scenario") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{path}: not a text file in UTF-8") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from None
    scenario = _checked(path, raw)
    changes = raw.pop("cpu", None)
    if changes is None:
        return scenario
    if "cpu" in changes:
        raise ScenarioError(f"{path}: cpu.cpu: unknown key; expected keys of a scenario")
    try:
        return replace(scenario, on_cpu=_checked(path, _changed(raw, changes), inherits_claims="claim" not in changes))
    except ScenarioError as error:
        raise ScenarioError(str(error).replace(f"{path}: ", f"{path}: cpu.", 1)) from None


def _changed(raw: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario's raw keys with changes: tables are merged key by key, anything else is replaced."""
    both = [key for key, value in changes.items() if isinstance(value, dict) and isinstance(raw.get(key), dict)]
    return {**raw, **changes, **{key: _changed(raw[key], changes[key]) for key in both}}


def _checked(path: Path, raw: dict[str, Any], *, inherits_claims: bool = False) -> Scenario:
    """Return the scenario from the raw keys of its file. `inherits_claims`: the keys include the changes of [cpu], and
    the claims were written without them. Raises ScenarioError."""
    file = scenario_file.read(path, raw)
    models = _models(file)
    _check_model(path, file, models)
    if file.measure.max_warmup_steps < file.measure.min_warmup_steps:
        raise ScenarioError(f"{path}: measure.max_warmup_steps: expected at least measure.min_warmup_steps")
    ladders = tuple(_ladder(ladder) for ladder in file.ladder)
    _check_once(path, "ladder", [ladder.name for ladder in file.ladder])
    _check_once(path, "ablation", [ablation.name for ablation in file.ablation])
    singles = [_single(path, place, table) for place, table in enumerate(file.config)]
    configs = list(dict.fromkeys([*itertools.chain(*ladders), *singles]))
    for place, config in enumerate(configs):
        if any(config.name == other.name for other in configs[:place]):
            raise ScenarioError(
                f"{path}: backend: two backends have a config '{config.name}'; expected different names"
                if config.command is None
                else f"{path}: config: two configs are named '{config.name}'; expected different rungs"
            )
    if not configs:
        raise ScenarioError(f"{path}: ladder: expected at least one [[ladder]] or [[config]]")
    cudnn = _changed_settings(CudnnSettings(), file.cudnn)
    ablations = _ablations(path, file, cudnn)
    changes: list[dict[str, Any]] = [
        {},
        *({"ablation": name, "cudnn": settings} for name, settings in ablations.items()),
    ]
    configs = [replace(config, **change) for config in configs for change in changes]
    names = [config.name for config in configs]
    return Scenario(
        path=path,
        **{name: getattr(file, name) for name in ("title", "model", "train", "measure")},
        unit=file.unit or ("samples" if any(config.command for config in configs) else "images"),
        models=models,
        input=Input(kind=file.input.data, hw_decoder_load=file.input.hw_decoder_load),
        cudnn=cudnn,
        ladders=ladders,
        configs=tuple(configs),
        claims=claims.check_claims(path, file.claim, names, file.measure.batch_sizes, inherited=inherits_claims),
        base=_base(path, file.base, names),
    )


def _check_once(path: Path, key: str, names: list[str]) -> None:
    """Raise ScenarioError if two tables in the list at `key` have the same name."""
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ScenarioError(f"{path}: {key}[{place}].name: '{name}' is used twice")


def _backends(file: File) -> list[str]:
    """Return the backend of each ladder and config."""
    singles = (COMMAND_BACKEND if table.command is not None else table.backend for table in file.config)
    return [*(table.backend for table in file.ladder), *singles]


def _models(file: File) -> tuple[str, ...]:
    """Return the models to measure: those in the file, else the default, or `own` if all steps are the user's."""
    if file.model.name is None:
        return (DEFAULT_MODEL if any(map(builds_models, _backends(file))) else OWN_MODEL,)
    return (file.model.name,) if isinstance(file.model.name, str) else tuple(dict.fromkeys(file.model.name))


def _check_model(path: Path, file: File, models: tuple[str, ...]) -> None:
    """Raise ScenarioError for an unknown model, a variant that no model has, or images that are too small."""
    all_models = known_models()
    unknown = [name for name in models if name not in all_models]
    # A step of the user's own may train any model.
    if unknown and any(map(builds_models, _backends(file))):
        raise ScenarioError(f"{path}: model.name: '{unknown[0]}' is unknown; {hint(unknown[0], all_models)}")
    registered = [all_models[name] for name in models if name in all_models]
    variants = dict.fromkeys(variant for model in registered for variant in model.variants)
    if registered and file.model.variant not in variants:
        raise ScenarioError(f"{path}: model.variant: expected one of {', '.join(variants)}, got '{file.model.variant}'")
    least = max((model.min_image_size for model in registered), default=1)
    if file.model.image_size < least:
        raise ScenarioError(f"{path}: model.image_size: expected at least {least}, got {file.model.image_size}")


def _base(path: Path, name: str | None, configs: list[str]) -> str | None:
    """Return the full name of the config that a scenario's `base` names with or without the backend; None if the
    scenario has no `base`. Raises ScenarioError if no config or several match."""
    if name is None or name in configs:
        return name
    matching = [config for config in configs if config.rpartition("/")[2] == name]
    if len(matching) != 1:
        raise ScenarioError(f"{path}: base: no config '{name}'; {hint(name, configs)}")
    return matching[0]


def _changed_settings(settings: CudnnSettings, table: CudnnTable) -> CudnnSettings:
    """Return the settings with the changes of a table."""
    changes = msgspec.to_builtins(table)  # unset keys are left out
    if "workspace_mib" in changes:
        changes["workspace_bytes"] = changes.pop("workspace_mib") * 2**20
    return msgspec.structs.replace(settings, **changes)


def _ablations(path: Path, file: File, settings: CudnnSettings) -> dict[str, CudnnSettings]:
    """Return, by ablation, `settings` with the changes of the ablation. Raises ScenarioError for an ablation that
    changes nothing."""
    ablations = {ablation.name: _changed_settings(settings, ablation.cudnn) for ablation in file.ablation}
    for place, changed in enumerate(ablations.values()):
        if changed == settings:
            raise ScenarioError(f"{path}: ablation[{place}].cudnn: expected a setting that differs from [cudnn]")
    return ablations


def _single(path: Path, place: int, table: ConfigSection) -> Config:
    """Return the config of a table [[config]]. Raises ScenarioError for keys that contradict each other."""
    key = f"{path}: config[{place}]"
    if table.command is None:
        for name in ("environment", "branch", "loop"):
            if getattr(table, name):
                raise ScenarioError(f"{key}.{name}: only a config with a command has one")
        if table.backend == COMMAND_BACKEND:
            raise ScenarioError(f'{key}.backend: expected a backend, or in its place command = "..."')
        return Config(table.backend, tuple(table.rungs))
    if table.backend != DEFAULT_BACKEND:
        raise ScenarioError(f"{key}: expected either a backend or a command, got both")
    try:
        words = shlex.split(table.command)
    except ValueError as error:
        raise ScenarioError(f"{key}.command: {str(error).lower()}: expected the words of a command line") from None
    if not words:
        raise ScenarioError(f"{key}.command: expected the words of a command line, got {table.command!r}")
    if symbols := {*words} & {"|", ">", ">>", "<", "&&", "||", ";", "&", "2>&1"}:
        raise ScenarioError(
            f"{key}.command: no shell runs it, so '{min(symbols)}' is a mere word: sh -c '...' runs one"
        )
    for name in re.findall(r"{([a-z_]+)}", table.command):
        if name not in VALUES:
            raise ScenarioError(f"{key}.command: unknown value {{{name}}}; {hint(name, VALUES)}")
    for name in table.environment:
        if not re.fullmatch("(?!TCBENCH_)[A-Za-z_][A-Za-z0-9_]*", name):
            raise ScenarioError(f"{key}.environment: expected the names of variables of the program, got {name!r}")
    variables = tuple(sorted(table.environment.items()))
    command = Command(line=table.command, environment=variables, loop=table.loop or "train")
    return Config(COMMAND_BACKEND, tuple(table.rungs), command=command, branch=table.branch)


def _ladder(table: LadderTable) -> tuple[Config, ...]:
    """Return the configs of a ladder, each with the rungs of one more step."""
    steps = [(step,) if isinstance(step, str) else tuple(step) for step in table.steps]
    return tuple(Config(table.backend, rungs) for rungs in itertools.accumulate(steps))


def claims_of(scenario: str | None, words: Callable[[Selection], list[str]]) -> Callable[[Cell], ScenarioClaims]:
    """Return a function from a cell to the claims on its setting. They are those of `scenario` (a name or path) or, if
    it is None, of the shipped scenario that the cell names. `words` returns the command-line options of a selection.
    The returned function raises ScenarioError."""
    from tcbench.analysis.claims import ScenarioClaims

    @functools.cache
    def loaded(name: str) -> Scenario:
        """Return the scenario that the user named, or else the shipped scenario `name`. Raises ScenarioError."""
        if scenario is None and name not in shipped():
            raise ScenarioError(
                f"scenario '{name}' of the results does not come with tcbench; name its file with --scenario"
            )
        return load(scenario or name)

    def claims_on(cell: Cell) -> ScenarioClaims:
        """Return the claims of a cell's scenario, with the command that runs the scenario in the cell's setting."""
        file = loaded(cell.scenario)
        on_device = file.on(cell.device.partition(":")[0])
        name = file.name if file.path == shipped().get(file.name) else str(file.path)
        run = shlex.join(["tcbench", "run", name, *words(setting_of(cell, on_device))])
        return ScenarioClaims(file.name, on_device.claims, run)

    return claims_on


def setting_of(cell: Cell, scenario: Scenario) -> Selection:
    """Return the selection with which a run of the scenario has the cell's setting. It holds only what differs from the
    scenario. The device is `auto` unless the cell's is simulated or one of several in this machine."""
    kind, source = device_kinds().get(cell.device.partition(":")[0]), cell.input
    devices = [device.name for kind in device_kinds().values() if kind.simulates is None for device in kind.devices()]
    is_chosen = (kind is not None and kind.simulates is not None) or (cell.device in devices and len(devices) > 1)
    other_input = source.kind in ("synthetic", "folder") and source.kind != scenario.input.kind
    return Selection(
        device=cell.device if is_chosen else "auto",
        models=(cell.model,) if cell.model in known_models() and (cell.model,) != scenario.models else None,
        image_size=cell.image_size if cell.image_size != scenario.model.image_size else None,
        ranks=(cell.ranks,) if cell.ranks > 1 else None,
        input=source if other_input or source.kind == "modelled" else None,
        threads=None,
        **{name: getattr(cell, name) for name in COPIED_FIELDS},
    )
