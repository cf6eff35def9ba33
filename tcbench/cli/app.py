"""The application itself, and what its commands share of form: help in groups, examples, exit codes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tcbench import __version__
from tcbench.core.errors import TcbenchError

INTERRUPTED = 130
SOME_CELL_FAILED = 3
INTERNAL_ERROR = 70

OUT = Path("results")


class UsageError(TcbenchError):
    """An option or argument is unknown, missing or of a wrong kind."""


class GroupedCommand(TyperCommand):
    """Help with its options grouped by `rich_help_panel`, without importing Rich: that alone would take 0.3 s. Mistakes
    in options are errors of one line like all others."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:
            # Typer's own errors of usage have no public name in all of its versions, but this method.
            if not hasattr(error, "format_message"):
                raise
            words = f"{parent.command_path} {info_name}" if parent else info_name
            message = " ".join(error.format_message().split()).removesuffix(".")
            for noise in ("Invalid value for ", "Value error, "):
                message = message.replace(noise, "", 1)
            # Of a number outside its limits some versions of Typer speak as if to programmers.
            message = re.sub(r"Input should be greater than or equal to (\S+)", r"expected \1 or more", message)
            message = re.sub(r"Input should be less than or equal to (\S+)", r"expected \1 or less", message)
            raise UsageError(f"{message}; `{words} -h` shows the options") from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(row)
        if "Options" in groups:
            groups["Options"] = groups.pop("Options")
        for name, rows in groups.items():
            with formatter.section(name):
                formatter.write_dl(rows)


app = typer.Typer(
    name="tcbench",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: tcbench run",
)


def command(
    short: str, epilog: str = "", name: str | None = None, cls: type[GroupedCommand] = GroupedCommand
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function becomes a command. `epilog` holds examples, one a line."""
    # \b keeps the lines of the examples as they are.
    text = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in epilog.strip().splitlines()) if epilog else None
    return app.command(name, cls=cls, short_help=short, epilog=text)


def given(context: Any, parameters: Iterable[Any]) -> list[str]:
    """The words of the command line that gave these of its parameters, options by their long names."""
    words: list[str] = []
    for parameter in parameters:
        value, source = context.params.get(parameter.name), context.get_parameter_source(parameter.name)
        if value is None or source is None or source.name != "COMMANDLINE":
            continue
        option = [max(parameter.opts, key=len)] if parameter.param_type_name == "option" else []
        if value is True:
            words += option
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [*option, str(one)]
    return words


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tcbench {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works after any command too.")] = False,
) -> None:
    """Benchmark and profile ResNet-50 training on Tensor Cores, one optimisation at a time."""
