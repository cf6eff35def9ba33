"""Arguments and options that several commands take: their help, their completion, and what their text means."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from tcbench.core.errors import SelectionError

if TYPE_CHECKING:
    from tcbench.core.record import Input
    from tcbench.run.plan import Selection


def complete_scenario(incomplete: str) -> list[str]:
    """Names of the scenarios that come with tcbench."""
    from tcbench.run.scenario import shipped

    return [name for name in shipped() if name.startswith(incomplete)]


def complete_config(incomplete: str) -> list[str]:
    """Names of those scenarios' configs."""
    from tcbench.run.scenario import load, shipped

    names = dict.fromkeys(config.name for name in shipped() for config in load(name).configs)
    return [name for name in names if name.startswith(incomplete)]


def complete_device(incomplete: str) -> list[str]:
    """auto, and this machine's devices."""
    from tcbench.engine.accelerators.device import selectors

    return [name for name in selectors() if name.startswith(incomplete)]


def complete_gpu(incomplete: str) -> list[str]:
    """The GPUs whose facts come with tcbench."""
    from tcbench.hardware.gpus import names

    return [name for name in names() if name.lower().startswith(incomplete.lower())]


def complete_network(incomplete: str) -> list[str]:
    """The networks whose facts come with tcbench."""
    from tcbench.hardware.networks import names

    return [name for name in names() if name.startswith(incomplete.lower())]


def complete_model(incomplete: str) -> list[str]:
    """The models that backends build."""
    from tcbench.engine.models import MODELS

    return [name for name in MODELS if name.startswith(incomplete)]


ANOTHER_FILE = "name another file with -o"
ANOTHER_FOLDER = "name another folder with --out"
"""The remedy for a file that cannot be written, where the command has that option."""

WHAT, HOW, WHERE = "Cells", "Measuring", "Output"
"""Groups of options in help."""


def takes(expected: str, read: Callable[[Any], object] = lambda _: None) -> Callable[[Any], Any]:
    """The callback of an option, which docs/options.md says takes what is `expected`. `read` raises SelectionError for
    all other values; without it, that depends on what is there."""

    def check(value: Any) -> Any:
        if value is not None:
            read(value)
        return value

    check.__doc__ = expected
    return check


def within(option: str, expected: str, holds: Callable[[float], bool]) -> Callable[[Any], Any]:
    """The callback of an option that takes numbers that `expected` describes."""

    def read(value: float) -> None:
        if not holds(value):
            raise SelectionError(f"{option} {value:g}: expected {expected}")

    return takes(expected, read)


CONFIGS = takes(
    "configs by name or glob; where cells are planned, rungs that go together", lambda names: config_names(names)
)
NETWORKS = takes("networks that `tcbench list` shows", lambda text: model_names(text))
RANKS = takes("whole numbers from 1 to 999999", lambda text: rank_counts(text))
RUN = takes("results: a file, a folder, or a run's id")
BASELINE = takes("a baseline that `tcbench baseline list` shows")
FOLDER = takes("a folder that can be written; it is made")
TIMEOUT = within("--timeout", "seconds above 0 and up to 1000000", lambda x: 0 < x <= 1e6)
"""Callbacks of several options."""

_TIMES = "a time above 0: seconds, or with `s`, `m`, `min` or `h`"
BUDGET = takes(_TIMES, lambda text: seconds("--budget", text))

ScenarioArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SCENARIO",
        help="A scenario's name or the path of a TOML file. Default: naruse2018 on a GPU, cpu on a CPU.",
        autocompletion=complete_scenario,
    ),
]


BatchSizesOption = Annotated[
    str | None,
    typer.Option(
        "--bs",
        metavar="N,N,...",
        help="Batch sizes. Default: all.",
        callback=takes("whole numbers from 1 to 999999", lambda text: batch_sizes(text)),
        rich_help_panel=WHAT,
    ),
]
RanksOption = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        metavar="N,N,...",
        help="Processes that train together, each on a batch of its own (--bs). Default: the scenario's, else 1.",
        callback=RANKS,
        rich_help_panel=WHAT,
    ),
]
LauncherOption = Annotated[
    str | None,
    typer.Option(
        "--launcher",
        metavar="COMMAND",
        help="Starts the ranks: mpirun, srun, or a command line such as 'mpirun -np {n} --hostfile HOSTS'. Default: "
        "srun within an allocation of Slurm's, else mpirun.",
        callback=takes("`mpirun`, `srun`, or a command line with `{n}`", lambda text: launcher_words(text)),
        rich_help_panel=HOW,
    ),
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="NAME",
        help="Configs by name or glob, or rungs joined by '+'; several with commas or by more than one --config. "
        "Default: all.",
        autocompletion=complete_config,
        callback=CONFIGS,
        rich_help_panel=WHAT,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME,NAME,...",
        help="Networks, such as resnet18 (`tcbench list` shows all). Default: the scenario's.",
        autocompletion=complete_model,
        callback=NETWORKS,
        rich_help_panel=WHAT,
    ),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        min=1,
        max=8192,
        help="Side of the square images. Default: the scenario's.",
        rich_help_panel=WHAT,
    ),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="DEVICE",
        help="auto, cpu, cuda:N, or virtual:CARD (a simulated V100, H100, ... or a file).",
        autocompletion=complete_device,
        callback=takes("`auto`, `cpu`, a GPU that is here, or a card that `virtual` knows"),
        rich_help_panel=WHAT,
    ),
]
DataOption = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="A folder of class folders of JPEGs; 'synthetic': one batch kept in memory; on a virtual device also "
        "'modelled:RATE': decoding at a rate in images/s. Default: JPEGs generated once.",
        callback=takes(
            "a folder, `synthetic`, or on a virtual device `modelled:1` to `modelled:999999999`",
            lambda text: images(text),
        ),
        rich_help_panel=WHAT,
    ),
]
TargetOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="A cell is done when the half-width of its 95% interval is this share of the mean, e.g. 0.02... Default: "
        "the scenario's.",
        callback=within("--target", "a share between 0 and 1, such as 0.02", lambda x: 0 < x < 1),
        rich_help_panel=HOW,
    ),
]
MaxTimeOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="...or when its timed steps have taken so long. Default: the scenario's.",
        callback=within("--max-time", "seconds above 0 and up to 1000000000", lambda x: 0 < x <= 1e9),
        rich_help_panel=HOW,
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="A trial that takes longer is ended. Default: the scenario's.",
        callback=TIMEOUT,
        rich_help_panel=HOW,
    ),
]
FreshAutotuneOption = Annotated[
    bool,
    typer.Option(
        "--fresh-autotune", help="Time cuDNN's or oneDNN's plans again, ignoring kept choices.", rich_help_panel=HOW
    ),
]
TuningBudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="On a GPU: the time a trial may take to tune cuDNN's plans; each work's first are always timed. "
        "Default: 60s.",
        callback=takes(_TIMES, lambda text: seconds("--tuning-budget", text)),
        rich_help_panel=HOW,
    ),
]
SeedOption = Annotated[
    int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Seed of the weights and the input.", rich_help_panel=HOW)
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=4096,
        help="Threads for BLAS, ops and input of a rank. Default: all usable cores, shared by the ranks.",
        rich_help_panel=HOW,
    ),
]
HostSpeedOption = Annotated[
    float,
    typer.Option(
        metavar="TIMES",
        help="On a virtual GPU: as if this host were so many times as fast, e.g. 0.5.",
        callback=within("--host-speed", "how many times as fast, from 0.01 to 100", lambda x: 0.01 <= x <= 100),
        rich_help_panel=HOW,
    ),
]
TrialsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=1_000_000,
        help="Trials per cell, each a process of its own. Default: the scenario's, else 5 where the budget allows.",
        rich_help_panel=HOW,
    ),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Measure all cells round after round for so long, e.g. 4m or 90s; the first round is always completed. "
        "Default: without --trials the scenario's, else 4m on a CPU, 10m on a GPU.",
        callback=BUDGET,
        rich_help_panel=HOW,
    ),
]
AllowCodeOption = Annotated[
    Literal["code"] | None,
    typer.Option(
        "--allow",
        metavar="code",
        help="With --resume: add to a run that was measured with other code; pictures then name every commit. "
        "Default: nothing.",
        rich_help_panel=WHERE,
    ),
]
OutOption = Annotated[
    Path,
    typer.Option(metavar="FOLDER", help="Records go to FOLDER/MACHINE/.", callback=FOLDER, rich_help_panel=WHERE),
]
ResultsFolderOption = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FOLDER",
        help="The folder of results: ids of runs and baselines are looked up in it.",
        callback=takes("a folder"),
        rich_help_panel=WHERE,
    ),
]


def results_argument(more: str = "", default: str = "the newest run") -> Any:
    """The argument RESULTS of a command that reads results; `more` says what else it takes."""
    text = f"Files or folders of records, or ids of runs{more}. Default: {default}."
    return typer.Argument(metavar="RESULTS", help=text)


ResultsArgument = Annotated[list[str] | None, results_argument()]


def output_option(text: str = "A .png, .svg or .pdf file. Default: beside the results.") -> Any:
    """-o of a command that writes one file."""
    expected = "a file that the command does not read, of a kind that it writes"
    return typer.Option("-o", "--output", metavar="FILE", help=text, callback=takes(expected), rich_help_panel=WHERE)


def format_option(names: Iterable[str], default: str = "") -> Any:
    """--format, of which --json is the short form (`GroupedCommand`)."""
    return typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"{', '.join(names)}. --json is short for --format json. {default}".rstrip(),
        rich_help_panel=WHERE,
    )


TableOrJson = Literal["table", "json"]
FormatOption = Annotated[TableOrJson, format_option(get_args(TableOrJson))]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=WHERE)]


def batch_sizes(text: str | None) -> tuple[int, ...] | None:
    """The batch sizes of --bs, each once. Raises SelectionError."""
    return _counts(text, "--bs", "a batch size", "32,64,128,256")


def rank_counts(text: str | None) -> tuple[int, ...] | None:
    """The numbers of ranks of --ranks, each once. Raises SelectionError."""
    return _counts(text, "--ranks", "a number of ranks", "1,2,4")


def _counts(text: str | None, option: str, one: str, example: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    counts = []
    for word in text.split(","):
        if not re.fullmatch(r"\s*0*[1-9][0-9]{0,5}\s*", word, re.ASCII):
            shown = word.strip() if len(word) < 20 else f"{word.strip()[:17]}..."
            raise SelectionError(f"{option}: '{shown}' is not {one}; expected 1 to 999999, e.g. {option} {example}")
        counts.append(int(word))
    return tuple(dict.fromkeys(counts))


_UNITS_S = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def launcher_words(text: str) -> None:
    """Check --launcher. Raises SelectionError."""
    from tcbench.run import launcher

    if text not in launcher.NAMED:
        launcher.command_line(text)


def seconds(option: str, text: str | None) -> float | None:
    """The seconds of a time such as 4m, 1.5h or 90. Raises SelectionError."""
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(s|m|min|h|)", text.strip(), re.ASCII)
    if match is None or not float(match[1]):
        shown = text if len(text) < 20 else f"{text[:17]}..."
        raise SelectionError(f"{option} {shown!a}: expected a time above 0, such as 4m, 90s or 1h")
    return float(match[1]) * _UNITS_S[match[2]]


def tune(fresh_autotune: bool, tuning_budget: str | None) -> None:
    """Hand on to workers, which inherit the environment, how they tune plans. Raises SelectionError."""
    from tcbench.core import messages

    budget_s = seconds("--tuning-budget", tuning_budget)
    if fresh_autotune:
        os.environ[messages.FRESH_AUTOTUNE] = "1"
    if budget_s is not None:
        os.environ[messages.TUNING_BUDGET] = str(budget_s)


def config_names(given: list[str] | None) -> tuple[str, ...]:
    """The names of --config, however often it was given; also as charts write them, "fp32 + dali". Raises
    SelectionError."""
    names = tuple(re.sub(r"\s*\+\s*", "+", name.strip()) for text in given or () for name in text.split(","))
    if any(not name for name in names):
        raise SelectionError("--config: expected a name or a glob, got nothing; `tcbench list` shows the configs")
    return names


def model_names(text: str | None) -> tuple[str, ...] | None:
    """The models of --model, each once. Raises SelectionError."""
    names = None if text is None else tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if names is not None and not all(names):
        raise SelectionError("--model: expected a name, got nothing; `tcbench list` shows the models")
    return names


def images(data: str | None) -> Input | None:
    """The input that --data names. Raises SelectionError."""
    from tcbench.core.record import Input

    if data is None:
        return None
    if data == "synthetic":
        return Input(kind="synthetic")
    kind, _, rate = data.partition(":")
    if kind == "modelled":
        if not re.fullmatch(r"[1-9][0-9]{0,8}", rate, re.ASCII):
            raise SelectionError(f"--data {data!a}: expected a rate of decoding in images/s, such as modelled:2000")
        return Input(kind="modelled", images_per_s=float(rate))
    if not data.isprintable():
        raise SelectionError(f"--data {data!a}: expected a path of printable UTF-8 characters")
    return Input(kind="folder", path=str(Path(data).absolute()))


def selection(
    *,
    bs: str | None,
    config: list[str] | None,
    data: str | None,
    image_size: int | None,
    target: float | None,
    max_time: float | None,
    timeout: float | None,
    seed: int,
    threads: int | None,
    trials: int | None = None,
    budget: str | None = None,
    host_speed: float = 1.0,
    ranks: str | None = None,
    model: str | None = None,
) -> Selection:
    """The selection that the options for cells and measuring make together. Raises SelectionError."""
    from tcbench.run.plan import Selection

    return Selection(
        batch_sizes=batch_sizes(bs),
        models=model_names(model),
        ranks=rank_counts(ranks),
        configs=config_names(config),
        input=images(data),
        image_size=image_size,
        trials=trials,
        budget_s=seconds("--budget", budget),
        target=target,
        max_time_s=max_time,
        timeout_s=timeout,
        seed=seed,
        threads=threads,
        host_speed=host_speed,
    )
