"""The schema of results: Cell, Measurement, Environment, GpuSamples and Record.

Records hold raw data only; `tcbench.analysis` derives statistics from it. Readers ignore unknown fields, so that a
schema version may gain optional fields. Fields that were added to a cell have a default and are left out of the JSON if
they have it, so that cells keep their keys.

History of SCHEMA_VERSION:

1  first form."""

import functools
import hashlib
import math
import operator
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from tcbench.core.text import cleaned, may_need_cleaning

SCHEMA_VERSION = 1

Status = Literal["ok", "skipped", "oom", "failed", "timeout", "crashed"]
STATUSES: tuple[Status, ...] = ("ok", "skipped", "oom", "failed", "timeout", "crashed")
FINAL_STATUSES: frozenset[Status] = frozenset({"ok", "skipped", "oom"})
"""Statuses that answer whether a cell runs. `--resume` repeats trials with any other status."""

# Bounds that no measurement reaches, so that no computation with a record's figures overflows.
Seconds = Annotated[float, Meta(ge=1e-9, le=1e9)]
PhaseSeconds = Annotated[float, Meta(ge=-1e9, le=1e9)]
Bytes = Annotated[int, Meta(ge=0, le=2**60)]

InputKind = Literal["generated", "folder", "synthetic", "modelled", "own"]

UnitName = Annotated[str, Meta(pattern=r"^\w[\w -]{0,31}\Z")]
"""The plural noun for the elements of a batch, such as "images"."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """The source of images. `path` is the user's folder, if any. `images_per_s` is the rate of a modelled input.
    `hw_decoder_load` is the share of images that DALI decodes by the GPU's JPEG decoder, if the scenario sets it."""

    kind: InputKind
    path: str | None = None
    images_per_s: Annotated[float, Meta(gt=0, le=1e9)] | msgspec.UnsetType = msgspec.UNSET
    hw_decoder_load: Annotated[float, Meta(ge=0, le=1)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def label(self) -> str:
        """The name of the input in tables and charts."""
        return f"{self.kind} at {self.images_per_s:g} images/s" if self.images_per_s else self.kind


# Upper bounds beyond any machine: they keep infinities and typing errors out of a plan.
PositiveInt = Annotated[int, Meta(ge=1, le=1_000_000)]
DEFAULT_BACKEND = "chainer"
"""The backend of a config that names none."""
COMMAND_BACKEND = "command"
"""The backend of a config that runs a program of the user's."""

Positive = Annotated[float, Meta(gt=0, le=1e9)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class KfacSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the rung kfac. `damping` is added to the curvature factors, which are moving averages with the decay
    `decay`. Factors and inverses are updated every `interval` steps."""

    damping: Positive = 1e-2
    decay: Decay = 0.95
    interval: PositiveInt = 1


class TrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a training step that do not depend on the rungs."""

    learning_rate: Positive = 0.01
    momentum: Decay = 0.9
    weight_decay: Annotated[float, Meta(ge=0, le=1e3)] = 1e-4
    loss_scale: Positive = 128.0
    kfac: KfacSettings | msgspec.UnsetType = msgspec.UNSET


class CudnnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of cuDNN (slide 10 of the talk). They affect GPUs only."""

    workspace_bytes: int = 512 * 2**20
    autotune: bool = True
    fast_batch_norm: bool = True


class MeasureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for measuring a cell. The timed pass ends when the 95% confidence interval of the mean step time has the
    relative half-width `target`, or after `max_time_s` seconds. Of each `block_steps` steps, the first is ignored.
    `steps` is the number of counted steps in a trial of a user's program, if the scenario sets it."""

    target: float = 0.02
    max_time_s: float = 60.0
    min_warmup_steps: int = 3
    max_warmup_steps: int = 30
    block_steps: int = 6
    min_timed_steps: int = 10
    profiled_steps: int = 5
    steps: Annotated[int, Meta(ge=1, le=1_000_000_000)] | msgspec.UnsetType = msgspec.UNSET


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A user's program as a config. `line` is its command line, in which `{batch_size}`, `{ranks}`, `{seed}` and
    `{steps}` stand for values; no shell runs it. `environment` holds further variables. `revision` is the commit id of
    the branch in which it runs, if not in the current folder. `loop` is the name of the measured loop. `goes_on` lets
    the program run to its end after its last measured step."""

    line: Annotated[str, Meta(min_length=1)]
    environment: tuple[tuple[str, str], ...] = ()
    revision: str | None = None
    loop: str = "train"
    goes_on: bool = False


MOST_RUNGS = 64
"""The most rungs that a config may have: more than exist, but few enough that a crafted record slows no command."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """One config at one batch size and number of ranks, with everything that a worker needs to run it.

    `batch_size` is per rank. `device` is "cpu", "cuda:N" or "virtual:CARD"; the ranks of a host take its devices in
    order. `scenario_cudnn` holds the scenario's settings if the config is an ablation, which changes `cudnn`; else
    None. `host_speed`: with a simulated device, results are as if the host were this many times as fast. `unit` is the
    noun for the elements of a batch. `base` is the config that speed-up factors refer to, if the scenario sets one.
    `command` is the user's program that the config runs, if it runs one."""

    scenario: str
    backend: str
    model: str
    variant: str
    config: str
    rungs: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_RUNGS)]
    batch_size: Annotated[int, Meta(ge=1, le=2**31)]
    image_size: Annotated[int, Meta(ge=1)]
    n_classes: int
    device: Annotated[str, Meta(min_length=1)]
    input: Input
    seed: int
    threads: int
    train: TrainSettings
    cudnn: CudnnSettings
    measure: MeasureSettings
    scenario_cudnn: CudnnSettings | None = None
    host_speed: Annotated[float, Meta(gt=0, le=1e3)] = 1.0
    ranks: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    unit: UnitName = "images"
    base: str | None = None
    command: Command | None = None

    @property
    def images_per_step(self) -> int:
        """The number of images in a step of all ranks together."""
        return self.batch_size * self.ranks

    @property
    def workers(self) -> int:
        """The number of processes that tcbench starts for a trial: one per rank, but a program starts its own ranks."""
        return 1 if self.command is not None else self.ranks

    @property
    def is_own(self) -> bool:
        """Whether the cell runs a user's own step. Fields about networks and images are meaningless then."""
        return self.input.kind == "own"

    @property
    def name(self) -> tuple[str, int, int]:
        """Config, batch size and ranks, by which cells of two results are paired."""
        return self.config, self.batch_size, self.ranks

    @property
    def key(self) -> str:
        """A short digest of all fields. Two cells have the same key if and only if they are equal."""
        return _key(self)

    @property
    def label(self) -> str:
        """The name of the cell in messages."""
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.config}, batch size {self.batch_size}{ranks}"


@dataclass(frozen=True)
class Selection:
    """The options of the command line that override a scenario; None keeps the scenario's setting.

    `device` may be "auto". `threads` is per rank; None divides the usable cores among the ranks of the largest cell, so
    that a single rank gets as many as one of many. `quick` selects only the base and the best config. Each field is an
    option (`tcbench.show.options.SELECTION`)."""

    scenario: str | None = None
    batch_sizes: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None
    configs: tuple[str, ...] = ()
    device: str = "auto"
    input: Input | None = None
    models: tuple[str, ...] | None = None
    image_size: int | None = None
    quick: bool = False
    trials: int | None = None
    budget_s: float | None = None
    target: float | None = None
    max_time_s: float | None = None
    timeout_s: float | None = None
    fresh_autotune: bool = False
    tuning_budget_s: float | None = None
    goes_on: bool = False
    seed: int = 0
    threads: int | None = 1
    host_speed: float = 1.0
    launcher: str | None = None


COPIED_FIELDS = frozenset(
    {*Cell.__struct_fields__}
    & {name for name, value in vars(Selection(threads=None)).items() if value is not None} - {"device"}
)
"""The fields that a cell copies from the selection, whatever the scenario and the machine are: those that both have,
without None as the default, except the device."""


def cell_settings(part: msgspec.Struct, prefix: str = "") -> dict[str, Any]:
    """Return the fields of a cell that are set, by name. Fields of nested structs have names such as `train.momentum`.
    For the recursion, `part` may be a nested struct, whose names begin with `prefix`."""
    settings: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(part).items():
        if isinstance(value, msgspec.Struct):
            settings |= cell_settings(value, f"{prefix}{name}.")
        elif value is not None and value is not msgspec.UNSET:
            settings[prefix + name] = value
    return settings


@functools.lru_cache(4096)
def _key(cell: Cell) -> str:
    """Return a digest of the cell's values, without fields that have their default value. The fields in
    `_ALWAYS_IN_KEY` always count."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Cell)}
    values = {
        name: value
        for name, value in _values(cell).items()
        if name in _ALWAYS_IN_KEY or getattr(cell, name) != defaults[name]
    }
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:16]


_ALWAYS_IN_KEY = ("host_speed",)
"""Fields that are part of a key even at their default, because the first records with them had such keys."""


def _values(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct, with nested structs as dictionaries, in a form that is the same for equal structs.

    `msgspec.to_builtins` would not do: an integer in a float field (128 for 128.0) is encoded differently, and whether
    a default is left out depends on the identity of the object."""
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, msgspec.Struct):
            value = _values(value)
        elif isinstance(field.default, float):
            value = float(value)
        if value is not msgspec.UNSET:
            values[field.name] = value
    return values


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one phase, one per step of the profiled pass or per counted step of the timed pass. If a step's work
    repeats with a period of several steps, there is one mean time per period."""

    name: str
    host_s: tuple[PhaseSeconds, ...]
    device_s: tuple[PhaseSeconds, ...] | None = None


class PlanChoice(msgspec.Struct, frozen=True, array_like=True):
    """The implementation chosen for an operation: cuDNN's plan, or on a CPU oneDNN's implementation or "numpy".

    JSON stores it as a list in this order, so new fields go to the end.

    - `from_cache`: an earlier process made the choice.
    - `time_s`, `first_time_s`: device times of the chosen plan and of the heuristic's first, if autotuning timed them.
    - `timed`, `left_out`: numbers of candidates that were timed and that were not.
    - `budget_s`: the trial's time limit for tuning all of its plans, if it timed any.
    - `provisional`: the times were taken while other work was running.
    - `choices`: on a CPU, a digest of the choice for each work if several implementations have the same name.
    - `ahead`: the number of timed candidates that were compiled before the trial."""

    work: str
    plan: str
    workspace_bytes: int
    from_cache: bool
    time_s: float | None = None
    first_time_s: float | None = None
    timed: int = 0
    left_out: int = 0
    budget_s: float | None = None
    provisional: bool = False
    choices: str = ""
    ahead: int = 0


class DeclaredWork(msgspec.Struct, frozen=True, kw_only=True):
    """The FLOPs and bytes of a phase in one step of one rank, as the author of the step declares them. An empty `phase`
    stands for the whole step."""

    phase: str
    flops: Annotated[float, Meta(ge=0, le=1e30)] = 0
    bytes: Annotated[float, Meta(ge=0, le=1e30)] = 0


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a trial: where it ran, and its times over the steps that all ranks took together. `cores` are
    the Linux core numbers that it was bound to, if any. Memory is defined as in Measurement."""

    rank: int
    host: str
    cores: tuple[int, ...]
    device: str
    step_times_s: tuple[Seconds, ...]
    phases: tuple[PhaseTimes, ...]
    peak_memory_bytes: Bytes


MOST_PHASE_TIMES = 1000
"""The number of counted steps, the last ones, for which phase times are stored. Short steps come in millions."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The raw result of one trial. With several ranks it is the result of the one whose timed pass took longest.

    - `step_times_s`: all timed steps, in blocks of `block_steps`. The first step of each block is stored but not
      counted: a full prefetch queue and an idle GPU make it too fast.
    - `stopped_by`: the rule that ended the timed pass.
    - `phases`: phases of the counted steps if the host's clock can time them, else of a separate profiled pass.
    - `warmup_loss`, `last_loss`: None if the device is simulated and nothing is computed.
    - `peak_memory_bytes`: the peak of the worker process (CPU) or of the device's memory pools (GPU) over the trial.
    - `plans`: one per cuDNN graph, or on a CPU one per kind of work and implementation.
    - `turns_max_time_s`: the limit of the timed pass, if it was not the cell's because the trial took turns in a run.
    - `busy_s`: the device's working time per step. On a GPU it is measured in steps that are launched completely before
      the device starts them, so that the device never waits for the host.
    - `decoding`: how the device decoded the images; None if the host decoded them.
    - `ranks`: each rank's part, in order. A cell of one rank has a part if it was bound to cores as ranks are.
    - `reduced_bytes`: the bytes of gradients that one rank passes to the all-reduce in a step.
    - `reduce_overlaps`: the all-reduce overlaps with other phases; the phase `allreduce` is the remaining wait.
    - `declared`: the work of phases as the author of an own step declares it.
    - `items`: the number of items in a step of all ranks, if a user's program counts them; else the cell's batch sizes.
    - `epoch_starts`: the timed steps, counted from 0, that were the first of an epoch. They are stored but not counted.
    - `runs`: the runs of a user's program that marks no steps: the number of steps (0: unknown) and the duration of
      each. The step times are derived from them.
    - `checks`: the checks of whether the result can be true that were made, by name, each with its doubt or ""."""

    warmup_times_s: tuple[Seconds, ...]
    warmup_settled: bool
    step_times_s: tuple[Seconds, ...]
    block_steps: Annotated[int, Meta(ge=2)]
    stopped_by: Literal["target", "budget"]
    phases: tuple[PhaseTimes, ...]
    warmup_loss: float | None
    last_loss: float | None
    peak_memory_bytes: Bytes
    peak_memory_of: Literal["process", "device"]
    prefetch_depth: int
    parameters: int
    macs_per_image: int
    gc_frozen: bool
    plans: tuple[PlanChoice, ...] = ()
    busy_s: Seconds | None = None
    turns_max_time_s: Seconds | msgspec.UnsetType = msgspec.UNSET
    decoding: str | None = None
    ranks: tuple[RankPart, ...] = ()
    reduced_bytes: Bytes = 0
    reduce_overlaps: bool = False
    declared: tuple[DeclaredWork, ...] | msgspec.UnsetType = msgspec.UNSET
    items: Positive | msgspec.UnsetType = msgspec.UNSET
    epoch_starts: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    runs: tuple[tuple[int, Seconds], ...] | msgspec.UnsetType = msgspec.UNSET
    checks: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reasons to doubt the result."""
        return tuple(filter(None, self.checks.values())) if self.checks else ()

    @property
    def counted_times_s(self) -> tuple[float, ...]:
        """The times of the counted steps: all but the first of each block and of each epoch."""
        times_s = list(self.step_times_s)
        if self.epoch_starts:
            first_steps = {*range(0, len(times_s), self.block_steps), *self.epoch_starts}
            return tuple(time_s for place, time_s in enumerate(times_s) if place not in first_steps)
        del times_s[:: self.block_steps]
        return tuple(times_s)

    @property
    def epoch_first_s(self) -> float | None:
        """The mean time of an epoch's first step, of those not counted for it; None without any."""
        firsts_s = [self.step_times_s[place] for place in self.epoch_starts or ()]
        return statistics.fmean(firsts_s) if firsts_s else None

    @property
    def step_kind(self) -> str | None:
        """How the steps of a user's program were found; None for other measurements."""
        if not self.runs:
            return None if self.items is msgspec.UNSET else "marked in its loop"
        return "the difference of two runs" if self.runs[-2][0] else "a run of the program"

    @property
    def startup_s(self) -> float | None:
        """The time of a program's run outside of its steps, if runs of two lengths tell it."""
        if not self.runs or not (steps := self.runs[-2][0]):
            return None
        return self.runs[-2][1] - steps * self.step_times_s[-1]

    @property
    def phases_are_timed(self) -> bool:
        """Whether the phases were measured in the timed steps, so that they add up to the step times."""
        times_s = [statistics.fmean(phase.host_s) for phase in self.phases if phase.host_s]
        steps_s = self.counted_times_s[-MOST_PHASE_TIMES:]
        return bool(times_s and steps_s) and math.isclose(sum(times_s), statistics.fmean(steps_s), rel_tol=1e-6)

    @property
    def warmup_steps(self) -> int:
        """The number of warm-up steps."""
        return len(self.warmup_times_s)

    @property
    def timed_steps(self) -> int:
        """The number of timed steps, whether they are counted or not."""
        return len(self.step_times_s)

    @property
    def profiled_steps(self) -> int:
        """The number of steps for which every phase has a time."""
        return min((len(phase.host_s) for phase in self.phases), default=0)


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a GPU. `driver` is the driver's version, `driver_cuda` the newest CUDA version that it supports."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: Bytes
    pci_bus_id: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated device: a model supplies its times while a real host drives it. `card` is the modelled GPU, `host`
    the CPU that drove it. The host's time was scaled by `host_speed` (0.5: half as fast). `attained` is a digest of the
    model that timed the works."""

    card: str
    host: str
    host_speed: float
    attained: str

    @property
    def says(self) -> str:
        """One line that introduces simulated figures to users."""
        speed = "" if self.host_speed == 1 else f" at {self.host_speed:g} times its speed"
        return f"simulated: a modelled {self.card}, driven by {self.host}{speed}; attained fractions: {self.attained}"


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks of a trial ran. `launcher` is the command that started them, without the worker's own part;
    `engine` is the library that reduced the gradients, with its version; `hosts` lists each host once; `binding`
    describes in words how ranks shared cores."""

    launcher: str
    engine: str
    hosts: tuple[str, ...]
    binding: str


class Code(NamedTuple):
    """A version of the code: the commit of the user's project, tcbench's version and commit, and digests of code that
    no commit identifies (`Environment.sources`). `beneath` describes in words how the libraries differ from those of
    other results on the same machine."""

    project: str | None
    version: str
    commit: str | None
    sources: frozenset[tuple[str, str]] = frozenset()
    beneath: tuple[str, ...] = ()


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its software, as the worker saw them.

    - `commit`, `project_commit`: the commits of tcbench's checkout and of the user's project in which the worker ran,
      each with `+` if tracked files differed from the commit.
    - `gpu`: set for cells on a GPU; `simulated`: set for simulated devices; `ranks`: set for several ranks.
    - `emulated`: the rungs of the cell for which the CPU lacks instructions.
    - `accelerator`: the library that computed, with its version, if `packages` does not contain it.
    - `shortfall`: why no faster library was used, with the command that installs it.
    - `sources`: digests of code that no commit identifies: the loaded files of a user's own step by relative path, and
      `tcbench/` if tcbench has no commit or its files differ from it.
    - `variables`: environment variables that may change results (`tcbench.core.variables`); None in old records.
    - `processor`: identifies the CPU model, which the name in `cpu` may not; empty in old records.
    - `cpu_quota`: the number of CPUs that a quota allows (0: no quota); None in old records.
    - `threads`: PyTorch's numbers of threads in a user's own step or program, if it loaded PyTorch."""

    machine: str
    device_name: str
    cpu: str
    cpus: int
    memory_bytes: Bytes
    os: str
    kernel: str
    python: str
    packages: Mapping[str, str]
    blas: str
    tcbench: str
    commit: str | None = None
    gpu: GpuFacts | None = None
    project_commit: str | None = None
    emulated: tuple[str, ...] = ()
    accelerator: str | None = None
    shortfall: str | None = None
    simulated: Simulated | None = None
    ranks: Ranks | None = None
    sources: Mapping[str, str] = {}
    variables: Mapping[str, str] | None = None
    processor: str = ""
    cpu_quota: float | None = None
    threads: Mapping[str, int] | msgspec.UnsetType = msgspec.UNSET

    @property
    def code(self) -> Code:
        """The version of the code. Trials of different versions are never summarised together."""
        return Code(self.project_commit, self.tcbench, self.commit, frozenset(self.sources.items()))


THROTTLE_REASONS: Mapping[int, str] = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
"""Names of the bits of a throttle mask (NVML API Reference Guide, "Clocks Event Reasons"; the last two are older)."""


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Return the names of the bits that are set in a throttle mask."""
    bits = (1 << n for n in range(mask.bit_length()))
    return tuple(THROTTLE_REASONS.get(bit, f"bit {bit:#x}") for bit in bits if mask & bit)


_SLOWDOWN = 0x008 | 0x020 | 0x040 | 0x080
"""Bits of a throttle mask that report a slowdown by heat or lack of power. The software power cap is not among them:
many GPUs reach it in every trial."""


class GpuSample(msgspec.Struct, frozen=True, array_like=True):
    """NVML's readings at one time; None for readings that the GPU does not support. `time_s` counts from the start of
    the trial, `energy_j` from the first sample. `memory_used_bytes` includes other processes. JSON stores it as a list
    in this order, so new fields go to the end."""

    time_s: PhaseSeconds
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    temperature_c: int | None = None
    throttle_mask: int | None = None
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    energy_j: Annotated[float, Meta(ge=0, le=1e15)] | None = None


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU's settings at the start of a trial; None for settings that it does not report. `sm_clock_set_mhz` and
    `memory_clock_set_mhz` are the application clocks, `default_sm_clock_mhz` is the default of `sm_clock_set_mhz`. With
    MIG, samples describe the whole GPU, not one slice, and have no energy."""

    driver: str | None = None
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None
    max_sm_clock_mhz: int | None = None
    max_memory_clock_mhz: int | None = None
    sm_clock_set_mhz: int | None = None
    default_sm_clock_mhz: int | None = None
    memory_clock_set_mhz: int | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None


class GpuSamples(msgspec.Struct, frozen=True, kw_only=True):
    """Samples of a GPU over a whole trial, taken by the runner. The timed pass lasted from `timed_from_s` to
    `timed_to_s` (seconds from the start of the trial; None if the trial did not get there)."""

    state: GpuState
    samples: tuple[GpuSample, ...]
    timed_from_s: float | None = None
    timed_to_s: float | None = None

    @property
    def timed(self) -> tuple[GpuSample, ...]:
        """The samples of the timed pass."""
        if self.timed_from_s is None or self.timed_to_s is None:
            return ()
        return tuple(sample for sample in self.samples if self.timed_from_s <= sample.time_s <= self.timed_to_s)

    @property
    def slowdowns(self) -> tuple[str, ...]:
        """The reasons, such as heat or lack of power, why the GPU slowed down during the timed pass."""
        masks = (sample.throttle_mask or 0 for sample in self.timed)
        return throttle_reasons(functools.reduce(operator.or_, masks, 0) & _SLOWDOWN)

    @property
    def mean_power_w(self) -> float | None:
        """Mean power in the timed pass: from the energy counter if the GPU has one, else the mean of the power
        readings, which many GPUs average over a second. None with MIG, where both describe the whole GPU."""
        timed = () if self.state.mig else self.timed
        counted = [(s.time_s, s.energy_j) for s in timed if s.energy_j is not None]
        if len(counted) > 1 and counted[-1][1] > counted[0][1]:
            (from_s, from_j), (to_s, to_j) = counted[0], counted[-1]
            return (to_j - from_j) / (to_s - from_s)
        powers_w = [sample.power_w for sample in timed if sample.power_w]
        return sum(powers_w) / len(powers_w) if powers_w else None

    @property
    def energy_j(self) -> float | None:
        """The energy used from the first to the last sample."""
        return next((s.energy_j for s in reversed(self.samples) if s.energy_j is not None), None)


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU time of one host during a trial's timed pass: who used it, in CPU seconds."""

    elapsed_s: Annotated[float, Meta(gt=0, le=1e9)]
    processors: Annotated[int, Meta(ge=1, le=2**20)]  # that the trial may use
    own_s: Annotated[float, Meta(ge=0, le=1e12)]  # used by the trial's processes
    waited_s: Annotated[float, Meta(ge=0, le=1e12)]  # the trial's threads were ready and waited for a processor
    others_s: Annotated[float, Meta(ge=0, le=1e12)]  # used by other processes on these processors
    stolen_s: Annotated[float, Meta(ge=0, le=1e12)]  # given to others by a hypervisor
    throttled_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0  # withheld from the trial's control group by a quota
    step_waited_s: Annotated[float, Meta(ge=0, le=1e12)] | msgspec.UnsetType = msgspec.UNSET
    # the part of waited_s of the thread that takes the steps

    @property
    def lost(self) -> float:
        """The share of the CPU time that the trial demanded and did not get.

        The trial's threads also wait for each other, so the waits count only up to the time that others used. The
        demand is at least the elapsed time. The time withheld by a quota may include other processes of the control
        group, so it counts only up to the time that the trial did not compute."""
        lost_s = min(self.waited_s, self.others_s) + self.stolen_s
        if self.throttled_s:
            not_computed_s = max(0.0, self.processors * self.elapsed_s - self.own_s)
            lost_s = max(lost_s, min(lost_s + self.throttled_s, not_computed_s))
        return lost_s / max(self.own_s + lost_s, self.elapsed_s)

    @property
    def throttled(self) -> bool:
        """Whether a quota cost the trial more CPU time than other processes did."""
        return self.throttled_s > min(self.waited_s, self.others_s) + self.stolen_s


BUSY = 0.05
"""A trial that lost at least this share of its CPU time to other processes is marked "busy machine"."""

ENOUGH_TRIALS = 5
"""The recommended number of trials of a cell that is to be compared. A run takes as many if its budget allows
(docs/method.md says which differences they detect)."""

TAKE_ENOUGH = f"one trial does not show how much trials vary: measure {ENOUGH_TRIALS} (--trials {ENOUGH_TRIALS})"
"""The advice to take more trials."""


def check_end(status: Status, reason: str | None, measurement: Measurement | None) -> None:
    """Check that a trial has the measurement or the reason that its status requires. Raises ValueError."""
    if status == "ok" and measurement is None:
        raise ValueError("a record that is ok needs a measurement")
    if measurement is not None and len(measurement.step_times_s) < 2:  # the first of a block is not counted
        raise ValueError("a measurement needs a counted step")
    if status != "ok" and not reason:
        raise ValueError(f"a record that is {status} needs a reason")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, whether it succeeded or not. `started_at` is UTC in ISO 8601. `reason` is one line, set unless the
    status is ok. `gpu` is set for a trial on a GPU if NVML is available, `host` if the timed pass was completed. `plan`
    is a key of all cells of the run, `place` is the cell's position among them, by which tables are sorted.
    `turns_began_at` is when the trials of a run that took turns began (UTC in ISO 8601), equal for all of them."""

    schema_version: int
    run_id: str
    cell: Cell
    trial: int
    status: Status
    reason: str | None = None
    started_at: str
    duration_s: float = 0.0
    measurement: Measurement | None = None
    environment: Environment | None = None
    log: str | None = None
    gpu: GpuSamples | None = None
    host: HostLoad | None = None
    plan: str | None = None
    place: Annotated[int, Meta(ge=0)] | None = None
    turns_began_at: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        check_end(self.status, self.reason, self.measurement)

    @property
    def images_per_step(self) -> float:
        """The number of images, or of a program's items, in a step of all ranks together."""
        return (self.measurement.items if self.measurement else None) or self.cell.images_per_step


SHORTEST_STEP_S = 10e-6
"""The shortest step that can be timed: the loop and the clock themselves take about 0.6 us."""


def _contradiction(record: Record) -> str | None:
    """Return one line that says why a record's figures cannot all be right, or None if they can."""
    measured = record.measurement
    if record.status != "ok" or measured is None:
        return None
    counted = measured.counted_times_s
    step_s = sum(counted) / len(counted)
    if step_s < SHORTEST_STEP_S:
        shortest = f"{SHORTEST_STEP_S * 1e6:.0f} us"
        return f"its steps return at once, after {step_s * 1e6:.3g} us; nothing shorter than {shortest} can be timed"
    phases_s = sum(statistics.median(phase.host_s) for phase in measured.phases if phase.host_s)
    if step_s < phases_s / 10:
        return f"its steps took {step_s * 1e3:.3g} ms, but their phases took {phases_s * 1e3:.3g} ms"
    simulated = record.environment is not None and record.environment.simulated is not None
    if record.host is not None and not simulated and not measured.runs:
        timed_s, elapsed_s = sum(measured.step_times_s), record.host.elapsed_s
        if abs(timed_s - elapsed_s) > 0.1 * elapsed_s + _RUNNER_DELAY_S:
            return f"its steps took {timed_s:.3g} s by the session's clock, but {elapsed_s:.3g} s by tcbench's"
    return None


def reject_contradiction(record: Record) -> Record:
    """Return the record, or a failed one without a measurement if its figures contradict each other."""
    contradiction = _contradiction(record)
    if contradiction is None:
        return record
    return msgspec.structs.replace(
        record, status="failed", reason=f"contradictory times: {contradiction}", measurement=None
    )


_RUNNER_DELAY_S = 0.5
"""The delay with which the runner may learn that the timed pass began or ended, on a busy machine."""


class RecordError(ValueError):
    """A line is not a valid record. The message says what was expected."""


class RecordDecoder:
    """A decoder of the lines of a file. It lets records share equal cells and environments, which cuts the memory for a
    file of a hundred thousand trials to a third."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Record)
        self._cells: dict[Cell, Cell] = {}
        self._environments: dict[bytes, Environment] = {}

    def decode(self, line: bytes) -> Record:
        """Return the record of a line. Raises RecordError."""
        if may_need_cleaning(line):
            return decode(line)
        try:
            record = self._decoder.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return decode(line)  # reports the error
        if record.schema_version != SCHEMA_VERSION:
            return decode(line)
        cell, environment = self._cells.setdefault(record.cell, record.cell), record.environment
        if environment is not None:
            environment = self._environments.setdefault(msgspec.json.encode(environment), environment)
        return msgspec.structs.replace(record, cell=cell, environment=environment)


def encode(record: Record) -> bytes:
    """Return the record as one JSON line, without the line break."""
    return msgspec.json.encode(record)


def decode(line: bytes | str) -> Record:
    """Return the record of a JSON line, with strings that are safe to print. Raises RecordError if the line is not
    UTF-8, not JSON, not a record, or of a newer schema version."""
    try:
        raw = cleaned(msgspec.json.decode(line))
    except UnicodeDecodeError as error:
        raise RecordError(f"not UTF-8 ({error.reason})") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecordError(f"not JSON ({error})") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("schema_version"), int):
        raise RecordError("not a tcbench record (no schema_version)")
    version = raw["schema_version"]
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"schema version {version} is newer than this tcbench reads (up to {SCHEMA_VERSION}); upgrade tcbench"
        )
    if version < SCHEMA_VERSION:
        raise RecordError(f"unknown schema version {version}")
    try:
        return msgspec.convert(raw, Record)
    except msgspec.ValidationError as error:
        raise RecordError(f"not a valid record ({error})") from None
