"""The command-line application, and what its commands share: grouped help, examples, error messages, exit codes."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from tcbench import __version__
from tcbench.core.errors import TcbenchError
from tcbench.core.text import shell_line, started_by_uv
from tcbench.show import streams

INTERRUPTED = 130
SOME_CELL_FAILED = 3
INTERNAL_ERROR = 70

OUT = Path("results")


class UsageError(TcbenchError):
    """An option or argument is unknown, missing or of a wrong kind."""


_MAY_BE_EMPTY = ("--setup",)
"""Options that accept an empty value."""


@contextlib.contextmanager
def _one_line_usage_errors(hint: str, words: Sequence[str] = ()) -> Iterator[None]:
    """Convert usage errors that Typer raises within the block to UsageErrors of one line.

    The line ends with `hint`, which names the command that lists what is valid. `words` are the arguments of the
    command line, from which the message quotes a wrong value. An empty word or value among them is an error too."""
    try:
        for before, word in itertools.pairwise(["", *words]):
            if not word or (word.startswith("--") and word.endswith("=")):
                option = before if word == "" and before.startswith("-") else word.removesuffix("=")
                if option in _MAY_BE_EMPTY:
                    continue
                raise UsageError(f"{option or 'an argument'} is empty: expected a value, or leave it out; {hint}")
        yield
    except Exception as error:
        # Not every version of Typer exports its error classes, but all have this method. Help has no message.
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
        raise UsageError(f"{message.removesuffix('.')}; {hint}") from None


_PLAIN = (
    (r"Invalid value for |Value error, ", ""),
    (r"Input should be greater than or equal to (\S+)", r"expected \1 or more"),
    (r"Input should be less than or equal to (\S+)", r"expected \1 or less"),
    (r"Input should be a valid integer.*", "expected a whole number"),
    (r"Input should be a valid number.*", "expected a number"),
)
"""Patterns in Typer's messages, and plainer words for each."""


class GroupedCommand(TyperCommand):
    """A command with plain help, `--json` as a short form of `--format json`, and usage errors of one line.

    Help shows arguments, options grouped by `rich_help_panel`, and examples. It does not use Rich, because importing
    that takes 0.3 s."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Parse the command line, and write standard output in UTF-8 unless the format is a table. Raises UsageError
        for a mistake, an output that is an input, and an absolute output path whose folder does not exist."""
        words = f"{parent.command_path} {info_name}" if parent else info_name
        with _one_line_usage_errors(f"`{words} -h` shows the options", tuple(args)):
            context = super().make_context(info_name, args, parent, **extra)
        if context.params.get("format_", "table") != "table":
            streams.use_utf_8()
        output = context.params.get("output")
        refuse_input(context, output)
        if output is not None and output.is_absolute() and not output.parent.exists():  # probably a typing mistake
            raise UsageError(
                f"-o {output}: no folder {output.parent}; create it with `mkdir -p` (only relative folders are created)"
            )
        return context

    def invoke(self, ctx: Any) -> Any:
        """Run the command. With `-o -`, which writes the file to standard output, print to standard error."""
        to_stdout = ctx.params.get("output") == streams.STANDARD_OUTPUT
        with contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with `--json` as an abbreviation of `--format json`."""
        if any("--format" in parameter.opts for parameter in self.params):
            end = args.index("--") if "--" in args else len(args)
            words = (["--format", "json"] if word == "--json" else [word] for word in args[:end])
            args = [*itertools.chain.from_iterable(words), *args[end:]]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *map(_usage, (p for p in self.params if p.param_type_name == "argument"))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options to the help, under group headings in the order of `_OPTIONS`; --help is last."""

        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is None:
                continue
            help_text = _EXTRAS.sub(_default_sentence, row[1])
            if parameter.param_type_name == "argument":  # Typer's row shows the Python type
                groups["Arguments"].append((parameter.metavar or parameter.name.upper(), help_text))
            else:
                panel = "" if parameter.name == "help" else getattr(parameter, "rich_help_panel", None) or "Options"
                groups.setdefault(panel, []).append((row[0], help_text))
        groups["Output"] = groups.pop("Output", []) + groups.pop("", [])
        for name in sorted(groups, key=lambda name: _OPTIONS.index(name) if name in _OPTIONS else -1):
            if rows := groups[name]:
                with formatter.section(name):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples with their descriptions next to them, or below them if any line would be too long."""
        rows = [re.split(r" {2,}", f"{line.strip()}  ")[:2] for line in (self.epilog or "").strip().splitlines()]
        column = max((len(example) for example, _ in rows), default=0) + 3
        fits = all(column + len(description) + 2 <= formatter.width for _, description in rows)
        lines = (
            [example.ljust(column) + description] if fits else [example, f"    {description}"]
            for example, description in rows
        )
        if rows:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line.rstrip()}\n" for pair in lines for line in pair if line.strip()))


_OPTIONS = ("Cells", "Measuring", "Where it runs", "Judging", "Output")
"""The order of the groups of options in help; other groups come before these."""

_EXTRAS = re.compile(r"\s*\[([^\[\]]*)\]$")
"""The brackets that Typer puts after a parameter's help, with the default and limits."""


def _default_sentence(extras: re.Match[str]) -> str:
    """Return the default in a match of `_EXTRAS` as a sentence, " Default: 5."; empty if the brackets hold none."""
    default = re.search(r"(?:^|; )default: (.*?)(?:; |$)", extras[1])
    return f" Default: {default[1]}." if default else ""


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


GROUPS = {
    "Measure": ("run", "profile", "numerics", "submit"),
    "Look": ("plot", "explain", "report", "claims", "timeline", "roofline"),
    "Compare": ("compare", "diff", "gate", "baseline", "history", "export"),
    "More": ("forecast", "list", "doctor", "data"),
}
"""The commands in the groups of the help. Each is a folder of `tcbench.commands`."""


class CommandGroup(TyperGroup):
    """A group of commands with usage errors of one line."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        words = f"{parent.command_path} {info_name}" if parent else info_name
        with _one_line_usage_errors(f"`{words} -h` shows the options"):
            return super().make_context(info_name, args, parent, **extra)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with _one_line_usage_errors(f"`{ctx.command_path} -h` shows the commands"):
            return super().resolve_command(ctx, args)


class Application(CommandGroup):
    """The top-level command, whose help shows the commands in GROUPS."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands to the help, under the headings in GROUPS."""
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


def command_group(name: str, help_text: str) -> typer.Typer:
    """Add a command that has subcommands, and return its Typer application."""
    group = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True, help=help_text)
    app.add_typer(group, name=name)
    return group


def command(
    short: str | None = None, name: str | None = None, group: typer.Typer = app
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that registers a function as a command of the application or of a group of subcommands.

    The function's docstring is the help. Each line below "Examples:" is an example, two or more spaces, and its
    description. `short` is the description in the overview (default: the first sentence of the help), and `name` the
    command's name (default: the function's)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function as a command. Its docstring up to "Examples:" is the help text, the rest the epilog."""
        help_text, _, examples = inspect.cleandoc(function.__doc__ or "").partition("\n\nExamples:\n")
        return group.command(name, cls=GroupedCommand, help=help_text, short_help=short, epilog=examples or None)(
            function
        )

    return register


def given_words(context: Any, names: Container[str] | None = None, *, without: Container[str] = ()) -> list[str]:
    """Return the part of the command line that sets the parameters `names` (default: all) except those in `without`.

    Options have their long names. Parameters that the command line does not set are left out."""
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
            for word in value if isinstance(value, list | tuple) else [value]:
                words += [*option, str(word)]
    return words


def refuse_input(context: Any, output: Path | None) -> None:
    """Raise UsageError if `output` is a file that the command reads, or a run in a folder that it reads."""
    if output is None or not output.is_file():
        return
    # --data names a folder of images, maybe millions of them: not searched for runs.
    values = (value for name, value in context.params.items() if name not in ("output", "input", "data"))
    words = [word for value in values for word in (value if isinstance(value, list) else [value])]
    for word in filter(None, words):
        with contextlib.suppress(OSError):  # too long for a file name
            if _is_file(word, output) or any(_is_file(run, output) for run in Path(str(word)).rglob("*.jsonl")):
                raise UsageError(f"-o {output}: this command reads it; name another file")


def _is_file(word: object, file: Path) -> bool:
    """Return whether a word of the command line is a path of `file`, which exists."""
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
    """Benchmark and profile training of ResNet-50 and similar networks on Tensor Cores, one optimisation at a time."""


def command_line(*words: str) -> str:
    """Return a tcbench command to paste into a shell, with `uv run` in front if this one was started that way."""
    return shell_line([*("uv", "run") * started_by_uv(), "tcbench", *words])


def words_again(*, resume: bool) -> list[str]:
    """Return the words of the present command line, with or without --resume, to run it again."""
    words = [word for word in sys.argv[1:] if word not in ("--resume", "--debug")]
    return [*words, *["--resume"] * resume]


def command_again(*, resume: bool) -> str:
    """Return the present command line, with or without --resume, to run it again."""
    return command_line(*words_again(resume=resume))


@contextlib.contextmanager
def interruptible(describe: Callable[[], str]) -> Iterator[None]:
    """End the command with exit code 130 if it is interrupted within the block.

    The message is "interrupted" followed by the text that `describe` returns, such as how to resume."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"\ninterrupted{describe()}", err=True)
        raise typer.Exit(INTERRUPTED) from None
