"""The application itself, and what its commands share of form: help in groups, examples, consoles, exit codes. Rich,
whose import takes long, is imported with the first console."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import re
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tcbench import __version__
from tcbench.core.errors import TcbenchError
from tcbench.core.text import shell_line
from tcbench.show import streams

if TYPE_CHECKING:
    pass

INTERRUPTED = 130
SOME_CELL_FAILED = 3
INTERNAL_ERROR = 70

OUT = Path("results")


class UsageError(TcbenchError):
    """An option or argument is unknown, missing or of a wrong kind."""


_MAY_BE_EMPTY = ("--setup",)
"""Options for which an empty value has a meaning."""


@contextlib.contextmanager
def _one_line(shows: str, words: Sequence[str] = ()) -> Iterator[None]:
    """Makes a UsageError of Typer's own errors of usage, which ends with the command that shows what there is. `words`
    of the command line: an option's wrong value is repeated, and an empty one is none."""
    try:
        for before, word in itertools.pairwise(["", *words]):
            if not word or (word.startswith("--") and word.endswith("=")):
                option = before if word == "" and before.startswith("-") else word.removesuffix("=")
                if option in _MAY_BE_EMPTY:
                    continue
                raise UsageError(f"{option or 'an argument'} is empty: expected a value, or leave it out; {shows}")
        yield
    except Exception as error:
        # They have no public name in all versions of Typer, but this method; what only asks for help has no message.
        message = " ".join(error.format_message().split()) if hasattr(error, "format_message") else ""
        if not message or type(error).__name__ == "NoArgsIsHelpError":
            raise
        for pattern, plain in _PLAIN:
            message = re.sub(pattern, plain, message)
        if wrong := re.match(r"'(-[\w-]+)': expected", message):
            value = itertools.chain(
                (after for before, after in itertools.pairwise(words) if before == wrong[1]),
                (word.partition("=")[2] for word in words if word.startswith(f"{wrong[1]}=")),
            )
            message = message.replace("':", f" {next(value, '')[:40]}':", 1)
        raise UsageError(f"{message.removesuffix('.')}; {shows}") from None


_PLAIN = (
    (r"Invalid value for |Value error, ", ""),
    (r"Input should be greater than or equal to (\S+)", r"expected \1 or more"),
    (r"Input should be less than or equal to (\S+)", r"expected \1 or less"),
    (r"Input should be a valid integer.*", "expected a whole number"),
    (r"Input should be a valid number.*", "expected a number"),
)
"""Typer's words, some of them as if to programmers, and ours."""


class GroupedCommand(TyperCommand):
    """Help without Rich, whose import alone takes 0.3 s: arguments first, options grouped by `rich_help_panel`,
    examples. `--json` is short for `--format json` where there are formats. Mistakes are errors of one line."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        words = f"{parent.command_path} {info_name}" if parent else info_name
        with _one_line(f"`{words} -h` shows the options", tuple(args)):
            context = super().make_context(info_name, args, parent, **extra)
        if context.params.get("format_", "table") != "table":
            streams.use_utf_8()
        output = context.params.get("output")
        refuse_input(context, output)
        if output is not None and output.is_absolute() and not output.parent.exists():  # more likely a slip
            raise UsageError(
                f"-o {output}: no folder {output.parent}; `mkdir -p` makes it (those named from here are made)"
            )
        return context

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Where `-o -` names standard output, what it prints goes to standard error."""
        to_stdout = ctx.params.get("output") == streams.STANDARD_OUTPUT
        with contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if any("--format" in parameter.opts for parameter in self.params):
            end = args.index("--") if "--" in args else len(args)
            words = (["--format", "json"] if word == "--json" else [word] for word in args[:end])
            args = [*itertools.chain.from_iterable(words), *args[end:]]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *map(_usage, (one for one in self.params if one.param_type_name == "argument"))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            says = _EXTRAS.sub(_default, row[1])
            if parameter.param_type_name == "argument":  # Typer's row has the type in Python's words
                groups["Arguments"].append((parameter.metavar or parameter.name.upper(), says))
            else:
                panel = "" if parameter.name == "help" else getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(panel, []).append((row[0], says))
        groups["Output"] = groups.pop("Output", []) + groups.pop("", [])
        for name in sorted(groups, key=lambda name: _OPTIONS.index(name) if name in _OPTIONS else -1):
            if rows := groups[name]:
                with formatter.section(name):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Examples, what each does beside it, or below it where the lines would be too long."""
        rows = [re.split(r" {2,}", f"{line.strip()}  ")[:2] for line in (self.epilog or "").strip().splitlines()]
        column = max((len(example) for example, _ in rows), default=0) + 3
        beside = all(column + len(says) + 2 <= formatter.width for _, says in rows)
        lines = ([example.ljust(column) + says] if beside else [example, f"    {says}"] for example, says in rows)
        if rows:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line.rstrip()}\n" for pair in lines for line in pair if line.strip()))


_OPTIONS = ("Cells", "Measuring", "Where it runs", "Judging", "Output")
"""Groups of options in this order; others stand before them."""

_EXTRAS = re.compile(r"\s*\[([^\[\]]*)\]$")
"""Typer's brackets after the help of a parameter: the default, the limits of a number, whether it is required."""


def _default(extras: re.Match[str]) -> str:
    """A sentence, like the defaults that are written by hand. Limits are told to who oversteps them."""
    [*default] = (one.removeprefix("default: ") for one in extras[1].split("; ") if one.startswith("default: "))
    return f" Default: {default[0]}." if default else ""


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


GROUPS = {
    "Measure": ("run", "profile", "numerics", "submit"),
    "Look": ("plot", "explain", "report", "claims", "timeline", "roofline"),
    "Compare": ("compare", "diff", "gate", "baseline", "history", "export"),
    "More": ("forecast", "list", "doctor", "data"),
}
"""The commands as help shows them; each is the folder of `tcbench.commands` that has its name."""


class CommandGroup(TyperGroup):
    """Mistakes are errors of one line."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        words = f"{parent.command_path} {info_name}" if parent else info_name
        with _one_line(f"`{words} -h` shows the options"):
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with _one_line(f"`{ctx.command_path} -h` shows the commands"):
            return super().resolve_command(ctx, args)


class Application(CommandGroup):
    """Help with the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        wide = max(map(len, self.commands))
        for group, names in GROUPS.items():
            with formatter.section(group):
                rows = [(name, self.commands[name].get_short_help_str(200)) for name in names]
                formatter.write_dl([(name.ljust(wide), text) for name, text in rows])


app = typer.Typer(
    name="tcbench",
    cls=Application,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: tcbench run",
)


def command_group(name: str, says: str) -> typer.Typer:
    """A command of commands."""
    group = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True, help=says)
    app.add_typer(group, name=name)
    return group


def command(
    short: str | None = None, name: str | None = None, of: typer.Typer = app
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function becomes a command. Its docstring is the help; below "Examples:" there is an example a
    line, before two blanks and what it does. `short` is for the overview; without it, the help's first sentence."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        says, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
        return of.command(name, cls=GroupedCommand, help=says, short_help=short, epilog=examples or None)(function)

    return register


def given(context: Any, names: Container[str] | None = None, *, without: Container[str] = ()) -> list[str]:
    """The words of the command line that gave its parameters of these names (all), options by their long names."""
    words: list[str] = []
    for parameter in context.command.params:
        if parameter.name in without or (names is not None and parameter.name not in names):
            continue
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


def refuse_input(context: Any, output: Path | None) -> None:
    """Raises UsageError where a file to be written is one that the command reads, or a run in such a folder."""
    if output is None or not output.is_file():
        return
    # Images are no runs, and there may be millions of them.
    values = (value for name, value in context.params.items() if name not in ("output", "input", "data"))
    words = [word for value in values for word in (value if isinstance(value, list) else [value])]
    for word in filter(None, words):
        with contextlib.suppress(OSError):  # too long for the name of anything
            if _same(word, output) or any(_same(run, output) for run in Path(str(word)).rglob("*.jsonl")):
                raise UsageError(f"-o {output}: this command reads it; name another file")


def _same(word: object, file: Path) -> bool:
    """Whether a word of the command line names that file."""
    try:
        return file.samefile(str(word))
    except (OSError, ValueError):
        return False


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
    """Benchmark and profile training of ResNet-50 and its kin on Tensor Cores, one optimisation at a time."""


def command_line(*words: str) -> str:
    """Return a tcbench command as it can be pasted: behind `uv run` where this one was started so."""
    return shell_line([*("uv", "run") * ("UV_RUN_RECURSION_DEPTH" in os.environ), "tcbench", *words])


def words_again(*, resume: bool) -> list[str]:
    """Return the words of the command that was given, to be given again."""
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--debug")]
    return [*words, *["--resume"] * resume]


def command_again(*, resume: bool) -> str:
    """Return the command that was given, to be given again."""
    return command_line(*words_again(resume=resume))


@contextlib.contextmanager
def interruptible(says: Callable[[], str]) -> Iterator[None]:
    """An interrupt within it ends the command, with what `says` then tells of what was done."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted{says()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
