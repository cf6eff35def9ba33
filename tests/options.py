"""Every option of every command and what it takes, as the program declares it: docs/options.md, and values for tests.

`uv run python tests/options.py > docs/options.md` writes the page.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from tcbench.commands import app
from tcbench.core.errors import TcbenchError

PAGE = """\
# Every option

`tcbench COMMAND -h` describes each option and its default. This table lists the accepted values.

- Several values are separated by commas.
- Any other value ends with exit code 2 and one line that says what was expected.
- Values that depend on the scenario, the machine or files are checked before anything is measured.

| option | takes | commands |
| --- | --- | --- |
"""

_ODD = "0 -1 -0.001 nan inf 1e400 1000000 1000000001 100.5 0.009 1 , 1,,2 x é ٣ ../x 0s 100% 0% modelled:0 2^99 n=1:x"
ODD = (*_ODD.split(), "a b", "mpirun 'x", "a\udcff", "9" * 5000)
"""Words that options refuse, each some of them."""


@dataclass(frozen=True)
class Option:
    """An option of one command. `kind` is the type of a value; `check` raises for what is not `expected`."""

    command: tuple[str, ...]
    names: tuple[str, ...]
    metavar: str | None
    kind: Any
    several: bool
    low: int | None
    high: int | None
    check: Callable[[Any], Any] | None

    @property
    def name(self) -> str:
        return max(self.names, key=len)

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def expected(self) -> str:
        """The accepted values in words; empty if nothing declares them."""
        if self.kind is bool:
            return "no value"
        if self.choices:
            return ", ".join(f"`{choice}`" for choice in self.choices)
        if self.kind is int and self.low is not None:
            return f"whole numbers from {self.low}" + (" up" if self.high is None else f" to {self.high}")
        return (self.check.__doc__ or "") if self.check else ""

    def outside(self) -> Iterator[str]:
        """Values that it does not take, whatever is there: those next to its limits first."""
        if self.kind is int and self.low is not None:
            yield from map(str, [self.low - 1, *([] if self.high is None else [self.high + 1])])
        if self.kind is bool or (self.check is None and not self.choices and self.kind not in (int, float)):
            return
        yield from (word for word in ODD if not self.takes(word))

    def takes(self, word: str) -> bool:
        """Whether the word is within its range, whatever is there."""
        if self.choices:
            return word in self.choices
        try:
            value = self.kind(word)
        except ValueError:
            return False
        if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
            return False
        with contextlib.suppress(TcbenchError):
            if self.check:
                self.check([value] if self.several else value)
            return True
        return False


def commands() -> dict[tuple[str, ...], tuple[Any, Callable[..., Any]]]:
    """Every command and its function, by its words."""

    def within(group: Any, declared: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
        functions = {(info.name or info.callback.__name__): info.callback for info in declared.registered_commands}
        groups = {info.name: info.typer_instance for info in declared.registered_groups}
        for name, command in group.commands.items():
            if name in groups:
                yield from within(command, groups[name], (*words, name))
            else:
                yield (*words, name), (command, functions[name])

    return dict(within(get_command(app), app, ()))


def options() -> list[Option]:
    """All of them."""
    by_words, found_options = commands(), []
    declared = {words: _declared(function) for words, (_, function) in by_words.items()}
    parent = get_command(app).make_context("tcbench", ["list"], resilient_parsing=True)
    for words, (command, _) in by_words.items():
        context = command.make_context(words[-1], [], parent=parent, resilient_parsing=True)
        for parameter in command.get_params(context):
            if parameter.param_type_name != "option" or parameter.name == "help" or parameter.hidden:
                continue
            kind, info = declared[words][parameter.name]
            several = get_origin(kind) is list
            found_options.append(
                Option(
                    words,
                    tuple(parameter.opts),
                    parameter.metavar,
                    get_args(kind)[0] if several else kind,
                    several,
                    info.min,
                    info.max,
                    info.callback,
                )
            )
    return found_options


def _declared(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """A command's parameters: the type without None, and what Typer is told."""
    declared = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        kind = parameter.annotation
        declared[name] = (get_args(kind)[0] if type(None) in get_args(kind) else kind), parameter.default
    return declared


def page() -> str:
    """docs/options.md: a line for each option, or for each meaning where it has several."""
    rows: dict[tuple[str, str], list[str]] = {}
    for option in options():
        names = ", ".join(f"`{name}`" for name in sorted(option.names, key=len))
        rows.setdefault((names, option.expected), []).append(" ".join(option.command))
    lines = [
        f"| {names} | {expected} | {', '.join(commands_taking)} |"
        for (names, expected), commands_taking in sorted(rows.items())
    ]
    return PAGE + "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
