"""Options that several commands share, each declared once with its flag, help, default, completion and parser.

A command uses an option as the default of a parameter. `selects` adds the options of a Selection to a command, and
`words` turns a Selection back into options."""

from __future__ import annotations

import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import typer

from tcbench.core import files
from tcbench.core.errors import SelectionError
from tcbench.show import streams
from tcbench.show.app import OUT

if TYPE_CHECKING:
    from tcbench.core.record import Input, Selection


def completion(name: str) -> Callable[[str], list[str]]:
    """Return the function `name` of `tcbench.show.completion`, which is imported when a shell asks for candidates."""

    def complete(incomplete: str) -> list[str]:
        """Return the candidates that begin with `incomplete`."""
        from tcbench.show import completion

        candidates: list[str] = getattr(completion, name)(incomplete)
        return candidates

    return complete


ANOTHER_FILE = "name another file with -o"
ANOTHER_FOLDER = files.ANOTHER_FOLDER
"""Remedies for a file that cannot be written, for commands with the option -o or --out."""


@dataclass(frozen=True)
class OptionField:
    """A field of Selection as an option.

    `info` is Typer's description of the option, `kind` the type of its raw value, and `flag` the name of the option,
    empty for an argument. `read` converts a raw value to the field's value or raises SelectionError."""

    info: Any
    kind: Any = str | None
    read: Callable[[Any], Any] = lambda raw: raw
    flag: str = ""


@dataclass(frozen=True)
class Group:
    """A group of options under one heading in the help."""

    name: str

    def option(
        self,
        flags: str,
        help_text: str,
        default: Any = None,
        *,
        takes: str = "",
        read: Callable[[Any], object] | None = None,
        holds: Callable[[float], bool] | None = None,
        complete: Callable[[str], list[str]] | None = None,
        within: tuple[int | None, int | None] = (None, None),
    ) -> Any:
        """Return a Typer option in this group.

        `flags` are its names and the placeholder of its value ("--bs N,N,..."); an option without a placeholder is a
        switch, off by default. `takes` describes valid values in docs/options.md; only with it are values checked, by
        `read`, which raises SelectionError, and `holds`, which tests a number. `within` are its least and greatest."""
        words = flags.split()
        names = [word for word in words if word.startswith("-")]

        def check(value: Any) -> Any:
            """Return the option's value, or raise SelectionError. "-" as an output is standard output."""
            if "--output" in names and value == Path("-"):
                return check(streams.STANDARD_OUTPUT)
            if value is not None and read is not None:
                read(value)
            if value is not None and holds is not None and not holds(value):
                raise SelectionError(f"{names[-1]} {value:g}: expected {takes}")
            return value

        check.__doc__ = takes  # for docs/options.md
        return typer.Option(
            False if names == words else default,
            *names,
            metavar=None if names == words else words[-1],
            help=help_text,
            min=within[0],
            max=within[1],
            callback=check if takes else None,
            autocompletion=complete,
            rich_help_panel=self.name,
        )

    def field(
        self,
        flags: str,
        help_text: str,
        kind: Any = str | None,
        default: Any = None,
        *,
        read: Callable[[Any], Any] = OptionField.read,
        **more: Any,
    ) -> OptionField:
        """Return a field of Selection as an option with raw values of type `kind`, which `read` converts. The other
        parameters are those of `option`."""
        return OptionField(self.option(flags, help_text, default, read=read, **more), kind, read, flags.split()[0])


CELLS, MEASURING, OUTPUT, GENERAL = Group("Cells"), Group("Measuring"), Group("Output"), Group("Options")


def _parse_counts(flag: str, noun: str, example: str, text: str | None) -> tuple[int, ...] | None:
    """Return the whole numbers in an option's comma-separated `text`, without duplicates; None if `text` is None.
    `noun` ("a batch size") and `example` are for the message of the SelectionError."""
    if text is None:
        return None
    counts = []
    for word in text.split(","):
        if not re.fullmatch(r"\s*0*[1-9][0-9]{0,5}\s*", word, re.ASCII):
            shown = word.strip() if len(word) < 20 else f"{word.strip()[:17]}..."
            raise SelectionError(f"{flag}: '{shown}' is not {noun}; expected 1 to 999999, e.g. {flag} {example}")
        counts.append(int(word))
    return tuple(dict.fromkeys(counts))


batch_sizes = functools.partial(_parse_counts, "--bs", "a batch size", "32,64,128,256")
rank_counts = functools.partial(_parse_counts, "--ranks", "a number of ranks", "1,2,4")

_UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def seconds(flag: str, text: str | None) -> float | None:
    """Return a time such as 4m, 1.5h or 90 in seconds; None if `text` is None. Raises SelectionError."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(s|m|min|h|)", text.strip(), re.ASCII)
    if match is None or not float(match[1]):
        shown = text if len(text) < 20 else f"{text[:17]}..."
        raise SelectionError(f"{flag} {shown!a}: expected a time above 0, such as 4m, 90s or 1h")
    return float(match[1]) * _UNITS_S[match[2]]


def config_names(texts: list[str] | None, flag: str = "--config") -> tuple[str, ...]:
    """Return the names of configs in the values of a repeatable option or argument, each a comma-separated list.

    Spaces around "+", as charts write them, are removed. Raises SelectionError, which quotes `flag`, for an empty name.
    """
    names = tuple(re.sub(r"\s*\+\s*", "+", name.strip()) for text in texts or () for name in text.split(","))
    if any(not name for name in names):
        raise SelectionError(f"{flag}: expected a name or a glob, got nothing; `tcbench list` shows the configs")
    return names


def model_names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in the comma-separated value of --model, without duplicates; None if `text` is None. Raises
    SelectionError for an empty name."""
    names = None if text is None else tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if names is not None and not all(names):
        raise SelectionError("--model: expected a name, got nothing; `tcbench list` shows the models")
    return names


def _parse_input(text: str | None) -> Input | None:
    """Return the input that --data names; None if `text` is None. Raises SelectionError."""
    from tcbench.core.record import Input

    if text is None:
        return None
    if text == "synthetic":
        return Input(kind="synthetic")
    kind, _, rate = text.partition(":")
    if kind == "modelled":
        if not re.fullmatch(r"[1-9][0-9]{0,8}", rate, re.ASCII):
            raise SelectionError(f"--data {text!a}: expected a decoding rate in images/s, such as modelled:2000")
        return Input(kind="modelled", images_per_s=float(rate))
    if not text.isprintable():
        raise SelectionError(f"--data {text!a}: expected a path of printable UTF-8 characters")
    return Input(kind="folder", path=str(Path(text).absolute()))


def _checked_launcher(text: str | None) -> str | None:
    """Return the value of --launcher unchanged. Raises SelectionError if it is neither a known name nor a valid
    command line."""
    if text is not None:
        from tcbench.run import launcher

        if text not in launcher.NAMED:
            launcher.command_line(text)
    return text


COUNTS = "whole numbers from 1 to 999999"
NETWORKS = "networks that `tcbench list` shows"
CONFIGS = "configs by name or glob; commands that plan cells also accept rungs joined by `+`"
TIMES = "a time above 0: seconds, or with `s`, `m`, `min` or `h`"
RUN = "results: a file, a folder, or a run's id"
BASELINE = "a baseline that `tcbench baseline list` shows"
"""Descriptions of valid values, for options of several commands."""


def scenario_argument(default: str = "") -> Any:
    """Return the argument SCENARIO. It is required unless the help names a `default`."""
    help_text = f"A scenario's name or the path of a TOML file.{default}"
    required = None if default else ...
    return typer.Argument(required, metavar="SCENARIO", help=help_text, autocompletion=completion("complete_scenario"))


SELECTION = {
    "scenario": OptionField(scenario_argument(" Default: naruse2018 on a GPU, cpu on a CPU.")),
    "batch_sizes": CELLS.field("--bs N,N,...", "Batch sizes. Default: all.", takes=COUNTS, read=batch_sizes),
    "ranks": CELLS.field(
        "--ranks N,N,...",
        "Processes that train together, each with its own batch (--bs). Default: the scenario's, else 1.",
        takes=COUNTS,
        read=rank_counts,
    ),
    "configs": CELLS.field(
        "--config NAME",
        "Configs by name or glob, or rungs joined by '+'; separate with commas or repeat --config. Default: all.",
        list[str] | None,
        takes=CONFIGS,
        read=config_names,
        complete=completion("complete_config"),
    ),
    "device": CELLS.field(
        "--device DEVICE",
        "auto, cpu, cuda:N, or virtual:CARD (a simulated V100, H100, ... or a file).",
        str,
        "auto",
        takes="`auto`, `cpu`, a GPU of this machine, or `virtual:` and a supported card or a JSON file",
        complete=completion("complete_device"),
    ),
    "input": CELLS.field(
        "--data PATH",
        "A folder with one folder of JPEGs per class; 'synthetic': one batch kept in memory; on a virtual device also "
        "'modelled:RATE': decoding at RATE images/s. Default: JPEGs, generated once.",
        takes="a folder, `synthetic`, or on a virtual device `modelled:1` to `modelled:999999999`",
        read=_parse_input,
    ),
    "models": CELLS.field(
        "--model NAME,NAME,...",
        "Networks, such as resnet18 (`tcbench list` shows all). Default: the scenario's.",
        takes=NETWORKS,
        read=model_names,
        complete=completion("complete_model"),
    ),
    "image_size": CELLS.field(
        "--image-size PIXELS", "Side of the square images. Default: the scenario's.", int | None, within=(1, 8192)
    ),
    "quick": CELLS.field(
        "--quick", "Only the base and the best config, three trials each at one batch size: is it faster?", bool
    ),
    "trials": MEASURING.field(
        "--trials N",
        "Trials per cell, each in its own process. Default: the scenario's, else 5 if the budget allows.",
        int | None,
        within=(1, 1_000_000),
    ),
    "budget_s": MEASURING.field(
        "--budget TIME",
        "Measure all cells round after round for this time, e.g. 4m or 90s; the first round is always completed. "
        "Default: none with --trials or --quick, else the scenario's, else 4m on a CPU, 10m on a GPU.",
        takes=TIMES,
        read=functools.partial(seconds, "--budget"),
    ),
    "target": MEASURING.field(
        "--target SHARE",
        "End a trial when the half-width of its 95% interval is this share of the mean, e.g. 0.02. Default: the "
        "scenario's.",
        float | None,
        takes="a share between 0 and 1, such as 0.02",
        holds=lambda x: 0 < x < 1,
    ),
    "max_time_s": MEASURING.field(
        "--max-time SECONDS",
        "End a trial after this time in timed steps, even if --target is not reached. Default: the scenario's.",
        float | None,
        takes="seconds above 0 and up to 1000000000",
        holds=lambda x: 0 < x <= 1e9,
    ),
    "timeout_s": MEASURING.field(
        "--timeout SECONDS",
        "End a trial that takes longer. Default: the scenario's.",
        float | None,
        takes="seconds above 0 and up to 1000000",
        holds=lambda x: 0 < x <= 1e6,
    ),
    "fresh_autotune": MEASURING.field(
        "--fresh-autotune", "Time cuDNN's or oneDNN's plans again, ignoring cached choices.", bool
    ),
    "tuning_budget_s": MEASURING.field(
        "--tuning-budget TIME",
        "On a GPU: the time a trial may take to tune cuDNN's plans; each operation's first plans are always timed. "
        "Default: 60s.",
        takes=TIMES,
        read=functools.partial(seconds, "--tuning-budget"),
    ),
    "goes_on": MEASURING.field(
        "--whole", "Let a program of your own run to its end after its last measured step.", bool
    ),
    "seed": MEASURING.field("--seed N", "Seed of the weights and the input.", int, 0, within=(0, 2**32 - 1)),
    "threads": MEASURING.field(
        "--threads N",
        "Threads per rank for BLAS, ops and input. Default: all usable cores, shared by the ranks.",
        int | None,
        within=(1, 4096),
    ),
    "host_speed": MEASURING.field(
        "--host-speed TIMES",
        "On a virtual GPU: simulate a host this many times as fast, e.g. 0.5.",
        float,
        1.0,
        takes="a factor from 0.01 to 100",
        holds=lambda x: 0.01 <= x <= 100,
    ),
    "launcher": MEASURING.field(
        "--launcher COMMAND",
        "Starts the ranks: mpirun, srun, or a command line such as 'mpirun -np {n} --hostfile HOSTS'. Default: srun "
        "inside a Slurm allocation, else mpirun.",
        takes="`mpirun`, `srun`, or a command line with `{n}`",
        read=_checked_launcher,
    ),
}
"""The fields of Selection as options, in the order of the help."""


def selects(fields: str = "...", *, without: str = "", **replaced: OptionField) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that replaces a command's parameter `chosen`, a Selection, by options for its fields.

    `fields` lists them in order; "..." stands for the fields not listed, except those in `without`. `replaced` holds
    fields that this command declares in its own way."""
    rest = [name for name in SELECTION if name not in fields.split() + without.split()]
    names = [name for word in fields.split() for name in (rest if word == "..." else [word])]
    declarations = {name: (SELECTION | replaced)[name] for name in names}

    def decorate(function: Callable[..., None]) -> Any:
        """Return a function that takes the declared options and calls `function` with the Selection of their values."""
        hints = typing.get_type_hints(function, localns={"Selection": None})
        parameters = []
        for parameter in inspect.signature(function).parameters.values():
            declared = [(parameter.name, hints[parameter.name], parameter.default)]
            if parameter.name == "chosen":
                declared = [(name, field.kind, field.info) for name, field in declarations.items()]
            parameters += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
                for name, hint, default in declared
            ]

        @functools.wraps(function)
        def command(**values: Any) -> None:
            """Call the command with the Selection that its options describe."""
            from tcbench.core.record import Selection

            chosen = Selection(**{name: field.read(values.pop(name)) for name, field in declarations.items()})
            function(**values, chosen=chosen)

        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def words(chosen: Selection) -> list[str]:
    """Return a selection as options of the command line, without the scenario (an argument) and without defaults."""
    words = []
    for name, field in SELECTION.items():
        value = getattr(chosen, name)
        if value == field.read(field.info.default) or not field.flag:
            continue
        if name == "input":
            value = f"modelled:{value.images_per_s:.0f}" if value.kind == "modelled" else value.path or value.kind
        parts = value if isinstance(value, tuple) else (value,)
        texts = [f"{part:.12g}" if isinstance(part, float) else str(part) for part in parts]
        words += [field.flag] if value is True else [field.flag, ",".join(texts)]
    return words


def export_tuning_options(chosen: Selection) -> None:
    """Pass the options for tuning plans to the workers, through environment variables."""
    from tcbench.core import messages

    if chosen.fresh_autotune:
        os.environ[messages.FRESH_AUTOTUNE] = "1"
    if chosen.tuning_budget_s is not None:
        os.environ[messages.TUNING_BUDGET] = str(chosen.tuning_budget_s)


ALLOW_CODE = OUTPUT.option(
    "--allow code",
    "With --resume: add to a run that was measured with other code; charts then name every commit. Default: none.",
)
RESULTS_FOLDER = OUTPUT.option(
    "--out FOLDER", "The folder of results, where ids of runs and baselines are looked up.", OUT, takes="a folder"
)
QUIET = OUTPUT.option("--quiet -q", "Show no progress.")


def details_option(also: str = "") -> Any:
    """Return the option --details. `also` says what it shows in addition to all notes."""
    return OUTPUT.option("--details", f"{also}Show all notes, not only the most important.")


DETAILS = details_option()


def out_option(noun: str = "Records") -> Any:
    """Return the option --out of a command that writes into this machine's folder of results."""
    help_text, takes = f"{noun} go to FOLDER/MACHINE/.", "a writable folder; it is created"
    return OUTPUT.option("--out FOLDER", help_text, OUT, takes=takes)


OUT_FOLDER = out_option()


def results_argument(more: str = "", default: str = "the newest run") -> Any:
    """Return the argument RESULTS of a command that reads results. `more` names what else it accepts."""
    text = f"Files or folders of records, or ids of runs{more}. Default: {default}."
    return typer.Argument(None, metavar="RESULTS", help=text)


RESULTS = results_argument()


def output_option(text: str, read: Callable[[Path], object] | None = None) -> Any:
    """Return the option -o of a command that writes one file."""
    expected = "a file of a format that the command writes, and not one that it reads; `-`: standard output"
    return OUTPUT.option("-o --output FILE", text, takes=expected, read=read)


PICTURES = (".png", ".svg", ".pdf")


def check_picture(path: Path) -> None:
    """Raise SelectionError if the path is a terminal, or its suffix is none of PICTURES."""
    if streams.is_terminal(path):
        raise SelectionError("--output -: a terminal cannot show a picture; name a file, or redirect standard output")
    if path != streams.STANDARD_OUTPUT and path.suffix.lower() not in PICTURES:
        raise SelectionError(f"--output {path}: expected a file name that ends in {', '.join(PICTURES)}")


def picture_option(text: str = "A .png, .svg or .pdf file. Default: next to the results.") -> Any:
    """Return the option -o of a command that draws."""
    return output_option(text, check_picture)


def format_option(names: Iterable[str], default: str | None = "table", more: str = "") -> Any:
    """Return the option --format. `GroupedCommand` adds its short form --json."""
    text = f"{', '.join(names)}. --json is short for --format json. {more}"
    return OUTPUT.option("--format FORMAT", text.rstrip(), default)


TableOrJson = Literal["table", "json"]
FORMAT = format_option(get_args(TableOrJson))
