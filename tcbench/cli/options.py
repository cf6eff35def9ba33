"""Arguments and options that several commands take: their help, their completion, and what their text means."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcbench.errors import SelectionError

if TYPE_CHECKING:
    from tcbench.record import Input


def complete_scenario(incomplete: str) -> list[str]:
    """Names of the scenarios that come with tcbench."""
    from tcbench.scenario import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def complete_config(incomplete: str) -> list[str]:
    """Names of those scenarios' configs."""
    from tcbench.scenario import load, shipped

    names = dict.fromkeys(config.name for name in shipped() for config in load(name).configs)
    return [name for name in names if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """auto, cpu, and this machine's GPUs."""
    from tcbench.backends.cuda.driver import gpus

    return [n for n in ("auto", "cpu", *(f"cuda:{gpu.index}" for gpu in gpus().found)) if n.startswith(incomplete)]


def complete_gpu(incomplete: str) -> list[str]:
    """The GPUs whose facts come with tcbench."""
    from tcbench.backends.cuda.properties import names

    return [name for name in names() if name.lower().startswith(incomplete.lower())]


WHAT, HOW, WHERE = "What to run", "How to measure", "Where it goes and what is shown"

ScenarioArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario's name or the path of a TOML file. Default: cpu where the device is the CPU.",
        autocompletion=complete_scenario,
    ),
]


BatchSizesOption = Annotated[
    str | None, typer.Option("--bs", metavar="N,N,...", help="Batch sizes.", rich_help_panel=WHAT)
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME",
        help="Configs by name or glob, or rungs joined by '+'. May be given more than once, or with commas.",
        autocompletion=complete_config,
        rich_help_panel=WHAT,
    ),
]
ImageSizeOption = Annotated[
    int | None, typer.Option(metavar="PIXELS", help="Side of the square images.", rich_help_panel=WHAT)
]


def batch_sizes(text: str | None) -> tuple[int, ...] | None:
    """What --bs means, each size once. Raises SelectionError."""
    if text is None:
        return None
    sizes = []
    for word in text.split(","):
        if not re.fullmatch(r"\s*0*[1-9][0-9]{0,5}\s*", word, re.ASCII):
            shown = word.strip() if len(word) < 20 else f"{word.strip()[:17]}..."
            raise SelectionError(f"--bs: '{shown}' is no batch size; expected e.g. --bs 32,64,128,256")
        sizes.append(int(word))
    return tuple(dict.fromkeys(sizes))


def config_names(given: list[str] | None) -> tuple[str, ...]:
    """What --config means, however often it was given. Raises SelectionError."""
    names = tuple(name.strip() for text in given or () for name in text.split(","))
    if any(not name for name in names):
        raise SelectionError("--config: expected a name or a glob, got nothing; `tcbench list` shows the configs")
    return names


def images(data: str | None) -> Input | None:
    """What --data means. Raises SelectionError."""
    from tcbench.record import Input

    if data is None:
        return None
    if data == "synthetic":
        return Input(kind="synthetic")
    if not data.isprintable():
        raise SelectionError(f"--data {data!a}: expected a path of printable UTF-8 characters")
    return Input(kind="folder", path=str(Path(data).absolute()))


def within(name: str, value: float | None, expected: str, holds: Callable[[float], bool]) -> float | None:
    """The value itself, if it holds. Raises SelectionError."""
    if value is not None and not holds(value):
        raise SelectionError(f"{name} {value:g}: expected {expected}")
    return value
