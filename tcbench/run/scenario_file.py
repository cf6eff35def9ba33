"""The form of a scenario file: its tables, key by key, and the error messages for it.

Each error names the file, the key and what was expected. This module does not know what a scenario means."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from tcbench.core.claim import ClaimTable
from tcbench.core.errors import ScenarioError, hint
from tcbench.core.record import DEFAULT_BACKEND, MOST_RUNGS, Positive, PositiveInt, TrainSettings, UnitName

SCHEMA = 1
"""The newest version of the form that this tcbench reads."""

Name = Annotated[str, Meta(min_length=1)]
Fraction = Annotated[float, Meta(gt=0, lt=1)]
Share = Annotated[float, Meta(ge=0, le=1)]


class ModelTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table [model]. With several names, each of these models is measured. Without a name it is ResNet-50, or the
    model that the user's own step trains."""

    name: str | Annotated[list[str], Meta(min_length=1)] | None = None
    variant: str = "v1"
    image_size: Annotated[int, Meta(ge=1, le=8192)] = 224
    classes: Annotated[int, Meta(ge=2, le=1_000_000)] = 1000


_Data = Literal["generated", "synthetic"]


class InputTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table [input]."""

    data: _Data = "generated"
    hw_decoder_load: Share | msgspec.UnsetType = msgspec.UNSET


class CudnnTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table [cudnn], or the changes to it by an ablation. Missing keys change nothing."""

    workspace_mib: Annotated[int, Meta(ge=0, le=1_000_000)] | msgspec.UnsetType = msgspec.UNSET
    autotune: bool | msgspec.UnsetType = msgspec.UNSET
    fast_batch_norm: bool | msgspec.UnsetType = msgspec.UNSET


class MeasureTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table [measure]."""

    batch_sizes: Annotated[list[PositiveInt], Meta(min_length=1, max_length=256)]
    ranks: Annotated[tuple[PositiveInt, ...], Meta(min_length=1)] = (1,)
    trials: PositiveInt | None = None
    budget_s: Positive | None = None
    target: Fraction = 0.02
    max_time_s: Positive | msgspec.UnsetType = msgspec.UNSET
    gate_max_time_s: Positive | None = None
    turns_max_time_s: Positive | None = None
    timeout_s: Positive = 1800.0
    min_warmup_steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 3
    max_warmup_steps: Annotated[int, Meta(ge=3, le=1_000_000)] = 30
    block_steps: Annotated[int, Meta(ge=4, le=1_000_000)] = 6
    min_timed_steps: Annotated[int, Meta(ge=3, le=1_000_000)] = 10
    profiled_steps: PositiveInt = 5
    steps: PositiveInt | msgspec.UnsetType = msgspec.UNSET


class LadderTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table [[ladder]]. Each step adds one rung, or several that belong together."""

    name: Name
    steps: Annotated[list[Name | Annotated[list[Name], Meta(min_length=1)]], Meta(min_length=1)]
    backend: str = DEFAULT_BACKEND


class ConfigSection(msgspec.Struct, frozen=True, kw_only=True):
    """A table [[config]]. `command` is a program to measure in place of a backend, and `branch` a revision of the
    user's repository in which it runs."""

    rungs: Annotated[list[Name], Meta(min_length=1, max_length=MOST_RUNGS)]
    backend: str = DEFAULT_BACKEND
    command: Name | None = None
    environment: dict[str, str] = {}
    branch: Name | None = None
    loop: Name | None = None


class AblationTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table [[ablation]]."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$")]
    cudnn: CudnnTable


class File(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file, key by key. `schema` comes first, so that a newer version is refused by name."""

    schema: int
    title: str
    measure: MeasureTable
    source: str = ""
    unit: UnitName | None = None
    base: str | None = None
    model: ModelTable = ModelTable()
    input: InputTable = InputTable()
    train: TrainSettings = TrainSettings()
    cudnn: CudnnTable = CudnnTable()
    ladder: list[LadderTable] = []
    config: list[ConfigSection] = []
    ablation: list[AblationTable] = []
    claim: list[ClaimTable] = []
    cpu: dict[str, Any] = {}


def read(path: Path, raw: dict[str, Any]) -> File:
    """Return the file from its parsed TOML. Raises ScenarioError."""
    schema = raw.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        raise ScenarioError(f"{path}: schema: expected the number {SCHEMA}, got {_shown(schema)}")
    if schema > SCHEMA:
        raise ScenarioError(f"{path}: schema: {schema} is newer than this tcbench reads ({SCHEMA}); upgrade tcbench")
    if schema < 1:
        raise ScenarioError(f"{path}: schema: expected the number {SCHEMA}, got {schema}")
    _check_keys(path, raw, File)
    try:
        return msgspec.convert(raw, File)
    except msgspec.ValidationError as error:
        raise ScenarioError(_explained(path, error, raw)) from None


_WORDS = {
    "int": "a whole number",
    "str": "a text in quotes",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _explained(path: Path, error: msgspec.ValidationError, raw: dict[str, Any]) -> str:
    """Return the message for an error of msgspec in everyday words, `FILE: KEY: expected ..., got ...`. `raw` is the
    file's parsed TOML, for the value to name."""
    message, _, place = str(error).partition(" - at `$")
    key = place.rstrip("`").lstrip(".")
    if field := re.match(r"Object missing required field `(.*)`", message):
        return f"{path}: {key}{'.' if key else ''}{field[1]}: missing, but required"
    if message.startswith("Invalid enum value"):
        message = f"expected one of {', '.join(get_args(_Data))}"
    words = re.sub(r"`([\w |]+)`", lambda m: " or ".join(_WORDS.get(w, w) for w in m[1].split(" | ")), message)
    words = words[:1].lower() + words[1:]
    return f"{path}: {key or 'file'}: {words}" + ("" if "got" in words else f", got {_shown(_value_at(raw, key))}")


def _check_keys(path: Path, raw: Any, table: type[msgspec.Struct], place: str = "") -> None:
    """Raise ScenarioError for an unknown key. `raw` is a table or a list of tables, `table` the struct with its known
    keys, and `place` its dotted key in the file. msgspec ignores unknown keys here, because records share some of these
    structs and must accept unknown fields."""
    if isinstance(raw, list):
        for index, element in enumerate(raw):
            _check_keys(path, element, table, f"{place}[{index}]")
    if isinstance(raw, dict):
        types = {field.name: field.type for field in msgspec.structs.fields(table)}
        for key, value in raw.items():
            inner = f"{place}.{key}" if place else key
            if key not in types:
                raise ScenarioError(f"{path}: {inner}: unknown key; {hint(key, types)}")
            for kind in (types[key], *get_args(types[key])):
                if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                    _check_keys(path, value, kind, inner)


def _value_at(raw: Any, key: str) -> Any:
    """Return the value at a key such as `ladder[0].steps[1]`, or None if there is none."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", key):
        try:
            raw = raw[name] if name else raw[int(index)]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _shown(value: Any) -> str:
    """Return how a value is shown in an error."""
    return "nothing" if value is None else repr(value)
