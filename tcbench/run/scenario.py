"""A scenario: what to run, as a TOML file becomes a frozen Scenario.

Owns the file's form and its errors: each names the file, the key and what was expected. Knows nothing of machines,
devices or whether a rung can run here; that is the plan's.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

import tcbench
from tcbench.backends import DEFAULT, builds_models
from tcbench.core import claim as claims
from tcbench.core.claim import Claim, ClaimTable
from tcbench.core.errors import ScenarioError
from tcbench.core.record import CudnnSettings, InputKind, MeasureSettings, TrainSettings
from tcbench.models import MODELS

SCHEMA = 1
SUFFIX = ".toml"

# Upper bounds far beyond any machine: they keep infinities and slips of the finger out of the plan.
PositiveInt = Annotated[int, Meta(ge=1, le=1_000_000)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Name = Annotated[str, Meta(min_length=1)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]


@dataclass(frozen=True)
class Config:
    """A named list of rungs. The name is the rungs, joined by '+'; an ablation's name follows after ':', and before
    them stands, with '/', a backend that is not the default.

    `cudnn`: an ablation's settings; None where they are the scenario's.
    """

    backend: str
    rungs: tuple[str, ...]
    ablation: str = ""
    cudnn: CudnnSettings | None = None

    @property
    def name(self) -> str:
        backend = "" if self.backend == DEFAULT else self.backend.partition(":")[0].rpartition(".")[2] + "/"
        return backend + "+".join(self.rungs) + (f":{self.ablation}" if self.ablation else "")


@dataclass(frozen=True)
class Ladder:
    """Configs in order, each adding rungs to the one before."""

    name: str
    configs: tuple[Config, ...]


@dataclass(frozen=True)
class Scenario:
    """Everything a scenario file says, checked. `on_cpu` is the scenario as its table [cpu] changes it."""

    name: str
    title: str
    source: str
    path: Path
    model: str
    variant: str
    image_size: int
    n_classes: int
    input_kind: InputKind
    batch_sizes: tuple[int, ...]
    trials: int
    timeout_s: float
    train: TrainSettings
    cudnn: CudnnSettings
    measure: MeasureSettings
    ladders: tuple[Ladder, ...]
    configs: tuple[Config, ...]
    claims: tuple[Claim, ...] = ()
    on_cpu: Scenario | None = None

    def on(self, device_kind: str) -> Scenario:
        """The scenario on a kind of device."""
        return self.on_cpu if device_kind == "cpu" and self.on_cpu is not None else self


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class _Model(_Table, frozen=True, kw_only=True):
    name: str = "resnet50"
    variant: str = "v1"
    image_size: PositiveInt = 224
    classes: Annotated[int, Meta(ge=2, le=1_000_000)] = 1000


_Data = Literal["generated", "synthetic"]


class _Input(_Table, frozen=True, kw_only=True):
    data: _Data = "generated"


class _Train(_Table, frozen=True, kw_only=True):
    learning_rate: Positive = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    weight_decay: Annotated[float, Meta(ge=0, le=1e3)] = 1e-4
    loss_scale: Positive = 128.0


class _Cudnn(_Table, frozen=True, kw_only=True):
    workspace_mib: Annotated[int, Meta(ge=0, le=1_000_000)] = 512
    autotune: bool = True
    fast_batch_norm: bool = True


class _Measure(_Table, frozen=True, kw_only=True):
    batch_sizes: Annotated[list[PositiveInt], Meta(min_length=1)]
    trials: PositiveInt = 1
    target: Fraction = 0.02
    max_time_s: Positive = 60.0
    timeout_s: Positive = 1800.0
    min_warmup_steps: Annotated[int, Meta(ge=3, le=1_000_000)] = 3
    max_warmup_steps: Annotated[int, Meta(ge=3, le=1_000_000)] = 30
    block_steps: Annotated[int, Meta(ge=5, le=1_000_000)] = 6
    min_timed_steps: Annotated[int, Meta(ge=10, le=1_000_000)] = 10
    profiled_steps: PositiveInt = 5


class _Ladder(_Table, frozen=True, kw_only=True):
    name: Name
    # A step is one rung, or several that belong together.
    steps: Annotated[list[Name | Annotated[list[Name], Meta(min_length=1)]], Meta(min_length=1)]
    backend: str = DEFAULT


class _Config(_Table, frozen=True, kw_only=True):
    rungs: Annotated[list[Name], Meta(min_length=1)]
    backend: str = DEFAULT


class _CudnnChange(_Table, frozen=True, kw_only=True):
    workspace_mib: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    autotune: bool | None = None
    fast_batch_norm: bool | None = None


class _Ablation(_Table, frozen=True, kw_only=True):
    name: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
    cudnn: _CudnnChange


class _File(_Table, frozen=True, kw_only=True):
    """The file, key by key. `schema` comes first, so that a newer form is refused by name."""

    schema: int
    title: str
    measure: _Measure
    source: str = ""
    model: _Model = _Model()
    input: _Input = _Input()
    train: _Train = _Train()
    cudnn: _Cudnn = _Cudnn()
    ladder: list[_Ladder] = []
    config: list[_Config] = []
    ablation: list[_Ablation] = []
    claim: list[ClaimTable] = []
    cpu: dict[str, Any] = {}


def scenario_folder() -> Path:
    """The folder of the scenarios that come with tcbench: the checkout's, or the installed package's."""
    package = Path(tcbench.__file__).parent
    installed = package / "scenarios"
    return installed if installed.is_dir() else package.parent / "scenarios"


def shipped() -> dict[str, Path]:
    """Name and path of each scenario that comes with tcbench."""
    return {path.stem: path for path in sorted(scenario_folder().glob(f"*{SUFFIX}"))}


def find(name_or_path: str) -> Path:
    """The file that a scenario's name or path means. Raises ScenarioError."""
    if "/" in name_or_path or name_or_path.endswith(SUFFIX):
        return Path(name_or_path)
    known = shipped()
    if name_or_path in known:
        return known[name_or_path]
    close = difflib.get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"expected one of {', '.join(known)}, or a path to a .toml file"
    raise ScenarioError(f"scenario '{name_or_path}': unknown; {hint}")


def load(name_or_path: str) -> Scenario:
    """Read and check a scenario by name or path. Raises ScenarioError naming file, key and what was expected."""
    path = find(name_or_path)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ScenarioError(f"{path}: no such scenario file; `tcbench list` shows those that come with it") from None
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: not valid TOML: {error}") from None
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
    """A scenario with another's keys: tables are merged key by key, anything else is replaced."""
    both = [key for key, value in changes.items() if isinstance(value, dict) and isinstance(raw.get(key), dict)]
    return {**raw, **changes, **{key: _changed(raw[key], changes[key]) for key in both}}


def _checked(path: Path, raw: dict[str, Any], *, inherits_claims: bool = False) -> Scenario:
    schema = raw.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise ScenarioError(f"{path}: schema: expected the number {SCHEMA}, got {_shown(schema)}")
    if schema > SCHEMA:
        raise ScenarioError(f"{path}: schema: {schema} is newer than this tcbench reads ({SCHEMA}); upgrade tcbench")
    if schema < 1:
        raise ScenarioError(f"{path}: schema: expected the number {SCHEMA}, got {schema}")
    try:
        file = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise ScenarioError(_explained(path, error, raw)) from None
    model = MODELS.get(file.model.name)
    # A step of one's own may be of any model.
    backends = [*(table.backend for table in file.ladder), *(table.backend for table in file.config)]
    if model is None and any(map(builds_models, backends)):
        raise ScenarioError(f"{path}: model.name: expected one of {', '.join(MODELS)}, got '{file.model.name}'")
    if model and file.model.variant not in model.variants:
        raise ScenarioError(
            f"{path}: model.variant: expected one of {', '.join(model.variants)}, got '{file.model.variant}'"
        )
    if model and file.model.image_size < model.min_image_size:
        raise ScenarioError(
            f"{path}: model.image_size: expected at least {model.min_image_size}, got {file.model.image_size}"
        )
    if file.measure.max_warmup_steps < file.measure.min_warmup_steps:
        raise ScenarioError(f"{path}: measure.max_warmup_steps: expected at least measure.min_warmup_steps")
    ladders = tuple(_ladder(ladder) for ladder in file.ladder)
    names = [ladder.name for ladder in ladders]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ScenarioError(f"{path}: ladder[{place}].name: '{name}' is used twice")
    singles = [Config(entry.backend, tuple(entry.rungs)) for entry in file.config]
    configs = list(dict.fromkeys([*(config for ladder in ladders for config in ladder.configs), *singles]))
    for place, config in enumerate(configs):
        if any(config.name == other.name for other in configs[:place]):
            raise ScenarioError(
                f"{path}: backend: two of them have a config '{config.name}'; expected names that differ"
            )
    if not configs:
        raise ScenarioError(f"{path}: ladder: expected at least one [[ladder]] or [[config]]")
    ablations = _ablations(path, file)
    configs = [
        one for c in configs for one in (c, *(replace(c, ablation=name, cudnn=s) for name, s in ablations.items()))
    ]
    batch_sizes = tuple(dict.fromkeys(file.measure.batch_sizes))
    names = [config.name for config in configs]
    return Scenario(
        name=path.stem,
        title=file.title,
        source=file.source,
        path=path,
        model=file.model.name,
        variant=file.model.variant,
        image_size=file.model.image_size,
        n_classes=file.model.classes,
        input_kind=file.input.data,
        batch_sizes=batch_sizes,
        trials=file.measure.trials,
        timeout_s=file.measure.timeout_s,
        train=TrainSettings(**msgspec.structs.asdict(file.train)),
        cudnn=_settings(file.cudnn),
        measure=MeasureSettings(
            target=file.measure.target,
            max_time_s=file.measure.max_time_s,
            min_warmup_steps=file.measure.min_warmup_steps,
            max_warmup_steps=file.measure.max_warmup_steps,
            block_steps=file.measure.block_steps,
            min_timed_steps=file.measure.min_timed_steps,
            profiled_steps=file.measure.profiled_steps,
        ),
        ladders=ladders,
        configs=tuple(configs),
        claims=claims.read(path, file.claim, names, batch_sizes, inherited=inherits_claims),
    )


def _settings(table: _Cudnn) -> CudnnSettings:
    return CudnnSettings(
        workspace_bytes=table.workspace_mib * 2**20,
        autotune=table.autotune,
        fast_batch_norm=table.fast_batch_norm,
    )


def _ablations(path: Path, file: _File) -> dict[str, CudnnSettings]:
    """The settings of each ablation: the scenario's, with its changes."""
    settings: dict[str, CudnnSettings] = {}
    for place, table in enumerate(file.ablation):
        if table.name in settings:
            raise ScenarioError(f"{path}: ablation[{place}].name: '{table.name}' is used twice")
        changes = {key: value for key, value in msgspec.structs.asdict(table.cudnn).items() if value is not None}
        changed = msgspec.structs.replace(file.cudnn, **changes)
        if changed == file.cudnn:
            raise ScenarioError(f"{path}: ablation[{place}].cudnn: expected a setting that differs from [cudnn]")
        settings[table.name] = _settings(changed)
    return settings


def _ladder(table: _Ladder) -> Ladder:
    def climb() -> Iterator[Config]:
        rungs: tuple[str, ...] = ()
        for step in table.steps:
            rungs += (step,) if isinstance(step, str) else tuple(step)
            yield Config(table.backend, rungs)

    return Ladder(table.name, tuple(climb()))


_WORDS = {
    "int": "a whole number",
    "str": "a text in quotes",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _explained(path: Path, error: msgspec.ValidationError, raw: dict[str, Any]) -> str:
    """msgspec's message with the file, the dotted key and everyday words: `FILE: KEY: expected ..., got ...`."""
    message, _, place = str(error).partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    unknown = re.match(r"Object contains unknown field `(.*)`", message)
    if unknown:
        where = f"{key}.{unknown[1]}" if key else unknown[1]
        known = _fields(key)
        close = difflib.get_close_matches(unknown[1], known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"expected one of {', '.join(known)}"
        return f"{path}: {where}: unknown key; {hint}"
    missing = re.match(r"Object missing required field `(.*)`", message)
    if missing:
        where = f"{key}.{missing[1]}" if key else missing[1]
        return f"{path}: {where}: missing; expected in every scenario"
    if message.startswith("Invalid enum value"):
        message = f"expected one of {', '.join(get_args(_Data))}"
    words = re.sub(r"`([\w |]+)`", lambda m: " or ".join(_WORDS.get(w, w) for w in m[1].split(" | ")), message)
    words = words[:1].lower() + words[1:]
    return f"{path}: {key or 'file'}: {words}" + ("" if "got" in words else f", got {_shown(_at(raw, key))}")


def _fields(key: str) -> tuple[str, ...]:
    tables: dict[str, type[msgspec.Struct]] = {
        "": _File,
        "model": _Model,
        "input": _Input,
        "train": _Train,
        "cudnn": _Cudnn,
        "measure": _Measure,
        "ladder[...]": _Ladder,
        "config[...]": _Config,
        "ablation[...]": _Ablation,
        "ablation[...].cudnn": _CudnnChange,
        "claim[...]": ClaimTable,
    }
    table = tables.get(re.sub(r"\[\d+\]", "[...]", key), _File)
    return table.__struct_fields__


def _at(raw: Any, key: str) -> Any:
    """The value that stands at a key such as `ladder[0].steps[1]`; None where there is none."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", key):
        try:
            raw = raw[name] if name else raw[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
