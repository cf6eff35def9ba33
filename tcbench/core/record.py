"""The form of results: Cell, Measurement, Environment, GpuSamples, Record, and its version.

Everything stored is raw: statistics are derived in `tcbench.analysis`. Unknown fields are ignored when read, so that a
record may gain optional ones within a version. What came later to a cell or a measurement has a default, and is left
out of the JSON where it has that, so that cells keep their keys.

History of SCHEMA_VERSION:

1  first form.
"""

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
"""Statuses that are an answer. The others are run again by `--resume`."""

# Bounds that no measurement reaches, so that whoever computes with a record's figures need not fear to overflow.
Seconds = Annotated[float, Meta(ge=1e-9, le=1e9)]
PhaseSeconds = Annotated[float, Meta(ge=-1e9, le=1e9)]
Bytes = Annotated[int, Meta(ge=0, le=2**60)]

InputKind = Literal["generated", "folder", "synthetic", "modelled", "own"]

UnitName = Annotated[str, Meta(pattern=r"^\w[\w -]{0,31}$")]
"""The name of what a step works on, in the plural: "images"."""


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """The source of images. `path` is set for a folder of the user's, `images_per_s` where decoding is modelled: its
    rate. `hw_decoder_load`: the share of images that DALI gives to a GPU's JPEG decoder, where the scenario says."""

    kind: InputKind
    path: str | None = None
    images_per_s: Annotated[float, Meta(gt=0, le=1e9)] | msgspec.UnsetType = msgspec.UNSET
    hw_decoder_load: Annotated[float, Meta(ge=0, le=1)] | msgspec.UnsetType = msgspec.UNSET

    @property
    def label(self) -> str:
        return f"{self.kind} at {self.images_per_s:g} images/s" if self.images_per_s else self.kind


# Upper bounds far beyond any machine: they keep infinities and slips of the finger out of a plan.
PositiveInt = Annotated[int, Meta(ge=1, le=1_000_000)]
Positive = Annotated[float, Meta(gt=0, le=1e9)]
Decay = Annotated[float, Meta(ge=0, lt=1)]


class KfacSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the rung kfac. `damping` is added to the curvature, whose factors are averaged over time: each keeps
    the share `decay` of what it was. Factors and inverses are made anew every `interval` steps."""

    damping: Positive = 1e-2
    decay: Decay = 0.95
    interval: PositiveInt = 1


class TrainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the training step itself, beside the rungs."""

    learning_rate: Positive = 0.01
    momentum: Decay = 0.9
    weight_decay: Annotated[float, Meta(ge=0, le=1e3)] = 1e-4
    loss_scale: Positive = 128.0
    kfac: KfacSettings | msgspec.UnsetType = msgspec.UNSET


class CudnnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Slide 10's settings. They act on a GPU only."""

    workspace_bytes: int = 512 * 2**20
    autotune: bool = True
    fast_batch_norm: bool = True


class MeasureSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The measuring of a cell. `target` is the relative half-width of the 95% confidence interval of the mean step
    time at which the timed pass ends; `max_time_s` is the budget of the timed pass."""

    target: float = 0.02
    max_time_s: float = 60.0
    min_warmup_steps: int = 3
    max_warmup_steps: int = 30
    block_steps: int = 6
    min_timed_steps: int = 10
    profiled_steps: int = 5


MOST_RUNGS = 64
"""The most rungs of a config: many more than there are, and few enough that a crafted record slows no command."""


class Cell(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True):
    """One config x one batch size x one number of ranks, with everything a worker needs to run it. `batch_size` is that
    of one rank. `device` is "cpu", "cuda:N" or "virtual:CARD"; a host's ranks take its devices one after another.
    `scenario_cudnn` is set where the config is an ablation: the scenario's settings, of which `cudnn` changes one.
    `host_speed`: how many times as fast as it is the host is to seem to a simulated device.
    `unit`: the name of what a step works on `batch_size` of, and `base`: the config that factors are over, where the
    scenario says so."""

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

    @property
    def images_per_step(self) -> int:
        """Images that all ranks together train on in a step."""
        return self.batch_size * self.ranks

    @property
    def is_own(self) -> bool:
        """Whether it is a step of the user's own: fields of a network that trains on images say nothing of it."""
        return self.input.kind == "own"

    @property
    def name(self) -> tuple[str, int, int]:
        """Config, batch size and ranks: what the cells of two results pair by."""
        return self.config, self.batch_size, self.ranks

    @property
    def key(self) -> str:
        """A short digest of every field's value: two cells with one key are the same measurement, and equal cells have
        one key."""
        return _key(self)

    @property
    def label(self) -> str:
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.config}, batch size {self.batch_size}{ranks}"


@dataclass(frozen=True)
class Selection:
    """The command line's request on top of the scenario; None leaves the scenario's word. `device` may be "auto";
    `threads` are those of one rank; None: all usable cores, shared by the ranks of the largest cell, so that one rank
    has what it has among many. `quick`: the base and the best alone. Each field is an option
    (`tcbench.show.options.SELECTION`)."""

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
    seed: int = 0
    threads: int | None = 1
    host_speed: float = 1.0
    launcher: str | None = None


AS_GIVEN = frozenset(
    {*Cell.__struct_fields__}
    & {name for name, value in vars(Selection(threads=None)).items() if value is not None} - {"device"}
)
"""The fields that a cell has as they are given, without a look at the scenario and the machine."""


def settings(of: msgspec.Struct, within: str = "") -> dict[str, Any]:
    """The fields of a cell that are set, those of its parts by names such as `train.momentum`."""
    values: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(of).items():
        if isinstance(value, msgspec.Struct):
            values |= settings(value, f"{within}{name}.")
        elif value is not None and value is not msgspec.UNSET:
            values[within + name] = value
    return values


@functools.lru_cache(4096)
def _key(cell: Cell) -> str:
    defaults = {field.name: field.default for field in msgspec.structs.fields(Cell)}
    values = {
        name: value
        for name, value in _values(cell).items()
        if name in _ALWAYS_IN_KEY or getattr(cell, name) != defaults[name]
    }
    return hashlib.sha256(msgspec.json.encode(values)).hexdigest()[:16]


_ALWAYS_IN_KEY = ("host_speed",)
"""Fields that count in a key at their default too, as they did in the keys of the first records that have them."""


def _values(struct: msgspec.Struct) -> dict[str, Any]:
    """The values of a struct's fields, those of its parts as dictionaries, with floats where floats belong: 128 equals
    128.0, and is written otherwise. Whether msgspec leaves out a default depends on the object's identity."""
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
    """Times of one phase, one entry per step of the profiled pass or, by the host's clock, per counted step; where what
    steps do repeats after some of them, one per such period, the mean of its steps."""

    name: str
    host_s: tuple[PhaseSeconds, ...]
    device_s: tuple[PhaseSeconds, ...] | None = None


class PlanChoice(msgspec.Struct, frozen=True, array_like=True):
    """The way in which a piece of work was done: cuDNN's plan, or on a processor, for each kind of work, oneDNN's
    implementation or "numpy". Stands in JSON as a list in this order: fields are added at the end only. `from_cache`:
    found by an earlier process. `time_s` and `first_time_s`: device time of the chosen plan and of the heuristic's
    first, where autotuning timed them. `timed`: the number of candidates that it timed, `left_out`: of others that
    might have served. `budget_s`: the trial's time for tuning all of its plans, where it timed any. `provisional`: by
    times that were taken beside other work. `choices`: on a processor, where implementations have names in common, a
    digest of which candidate was taken for which of these works. `ahead`: the number of timed
    candidates that were compiled before the trial."""

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
    """The work of a phase in one step of one rank, as the step's author declares it; `phase` is empty for what is known
    of the whole step alone."""

    phase: str
    flops: Annotated[float, Meta(ge=0, le=1e30)] = 0
    bytes: Annotated[float, Meta(ge=0, le=1e30)] = 0


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part in a trial: where it ran, and its times over the same steps as every other's. `cores`: those that
    it was bound to, by Linux's numbers; none where it was not. Memory as in Measurement."""

    rank: int
    host: str
    cores: tuple[int, ...]
    device: str
    step_times_s: tuple[Seconds, ...]
    phases: tuple[PhaseTimes, ...]
    peak_memory_bytes: Bytes


MOST_PHASE_TIMES = 1000
"""Of a phase the times of the last so many counted steps are kept: where steps take microseconds there are millions."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The raw result of one trial.

    `step_times_s` holds every timed step, block after block of `block_steps`; the first step of each block is stored
    but not counted (a full prefetch queue and an empty GPU flatter it). `phases` are of the counted steps where the
    host's clock tells them, else of a profiled pass of their own. `stopped_by` says which rule ended the timed pass.
    Memory is the peak of the worker process (CPU) or of the device (GPU), over the whole trial: there, what the memory
    pools held. `plans`: one for each different cuDNN graph, or on a processor for each kind of work and library's
    implementation. Losses are None where nothing computes.
    `busy_s`: the time per step in which the device works: of a simulated one in the timed pass, of a GPU in steps whose
    parts were launched before it began with them, so that it did not wait. `decoding`: how the device decoded the
    images; None where the host did, always in the same way.
    With many ranks it is the result of the one whose timed pass took longest; `ranks` has a part of each, in order
    (that of a base of one rank too, where it was bound to processors as they are), and
    `reduced_bytes` is the size of the gradients that one rank gives to the all-reduce in a step. `reduce_overlaps`: it
    runs beside other phases, so that `allreduce` is the wait that is left of it.
    """

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
    decoding: str | None = None
    ranks: tuple[RankPart, ...] = ()
    reduced_bytes: Bytes = 0
    reduce_overlaps: bool = False
    declared: tuple[DeclaredWork, ...] | msgspec.UnsetType = msgspec.UNSET

    @property
    def counted_times_s(self) -> tuple[float, ...]:
        """The timed steps that count: all but the first of each block."""
        times_s = list(self.step_times_s)
        del times_s[:: self.block_steps]
        return tuple(times_s)

    @property
    def phases_are_timed(self) -> bool:
        """Whether the phases are those of the timed steps, which they add up to then."""
        times_s = [statistics.fmean(phase.host_s) for phase in self.phases if phase.host_s]
        steps_s = self.counted_times_s[-MOST_PHASE_TIMES:]
        return bool(times_s and steps_s) and math.isclose(sum(times_s), statistics.fmean(steps_s), rel_tol=1e-6)

    @property
    def warmup_steps(self) -> int:
        return len(self.warmup_times_s)

    @property
    def timed_steps(self) -> int:
        return len(self.step_times_s)

    @property
    def profiled_steps(self) -> int:
        """Steps that every phase has its time of."""
        return min((len(phase.host_s) for phase in self.phases), default=0)


class GpuFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a GPU. `driver` is the driver's version, `driver_cuda` the newest CUDA version that it runs."""

    name: str
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: Bytes
    pci_bus_id: str | None = None
    driver: str | None = None
    driver_cuda: str | None = None


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """A device whose times were modelled while the host ran for real. `card` is the modelled device's title, `host` the
    processor that drove it; its own time was scaled by `host_speed` (1: as it is; 0.5: half as fast). `attained` names
    the model of the card by which works were timed, by a digest of its figures and of what it computes."""

    card: str
    host: str
    host_speed: float
    attained: str

    @property
    def says(self) -> str:
        """One line for people, to stand before the figures."""
        speed = "" if self.host_speed == 1 else f" at {self.host_speed:g} times its speed"
        return f"simulated: a modelled {self.card}, driven by {self.host}{speed}; attained fractions: {self.attained}"


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a trial: their start and their talk. `launcher` is the command that started them, up to the
    worker's, `engine` what reduced the gradients, with its version, `hosts` are those that they ran on, each once, and
    `binding` says in words how they shared the cores."""

    launcher: str
    engine: str
    hosts: tuple[str, ...]
    binding: str


class Code(NamedTuple):
    """A state of the code: the commit of the user's project, tcbench's version and commit, and digests of what these do
    not tell (`Environment.sources`). `beneath`: how its software stack differs from others on its machine, in words."""

    project: str | None
    version: str
    commit: str | None
    sources: frozenset[tuple[str, str]] = frozenset()
    beneath: tuple[str, ...] = ()


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and its software, as the worker saw them. `commit` is that of tcbench's own checkout,
    `project_commit` that of the user's in which the worker ran, each with `+` when tracked files differed from it.
    `gpu` is set for a cell on a GPU. `emulated`: the cell's rungs whose instructions the processor lacks.
    `accelerator`: the library that computed, with its version, where our operations did and the packages do not say it;
    `shortfall`: why it was not a faster one, with the command that puts that right. `simulated` is set where nothing
    was measured on a device. `ranks` is set where there were many. `sources`: digests of code that no commit tells: of
    each file of a step of the user's own that was loaded, by its path from the working folder, and as `tcbench/` of
    tcbench where it has no commit or its files differ from that. `variables`: the environment variables by which
    results may differ (`tcbench.core.variables`); None in records from before they were kept. `processor` identifies
    the kind of processor, which its name in `cpu` does not, and `cpu_quota` is the number of processors whose time a
    quota allowed (0: no quota); earlier records have neither, and agree with any."""

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

    @property
    def code(self) -> Code:
        """Trials of different code are never of one cell."""
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
    """The names of the bits that are set."""
    bits = (1 << n for n in range(mask.bit_length()))
    return tuple(THROTTLE_REASONS.get(bit, f"bit {bit:#x}") for bit in bits if mask & bit)


_SLOWDOWN = 0x008 | 0x020 | 0x040 | 0x080
"""Bits of a throttle mask by which heat or a lack of power slows a GPU down. The software power cap is none: many GPUs
reach it in every trial."""


class GpuSample(msgspec.Struct, frozen=True, array_like=True):
    """NVML's readings at one moment; None for what this GPU does not say. `time_s` and `energy_j` count from the
    trial's start and the first sample. `memory_used_bytes` is the whole device's, whoever uses it. Stands in JSON as a
    list in this order: fields may be added at the end only."""

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
    """A GPU's settings when a trial began; None for what it does not say. `sm_clock_set_mhz` and
    `memory_clock_set_mhz` are the application clocks, `default_sm_clock_mhz` what they are unless set. With MIG,
    samples are those of the whole GPU, not of a slice, and have no energy."""

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
    """A GPU over a whole trial, as the runner saw it. The timed pass lay between `timed_from_s` and `timed_to_s` (from
    the trial's start; None when it was not reached)."""

    state: GpuState
    samples: tuple[GpuSample, ...]
    timed_from_s: float | None = None
    timed_to_s: float | None = None

    @property
    def timed(self) -> tuple[GpuSample, ...]:
        if self.timed_from_s is None or self.timed_to_s is None:
            return ()
        return tuple(sample for sample in self.samples if self.timed_from_s <= sample.time_s <= self.timed_to_s)

    @property
    def slowdowns(self) -> tuple[str, ...]:
        """The reasons for which heat or a lack of power slowed the GPU down during the timed pass."""
        masks = (sample.throttle_mask or 0 for sample in self.timed)
        return throttle_reasons(functools.reduce(operator.or_, masks, 0) & _SLOWDOWN)

    @property
    def mean_power_w(self) -> float | None:
        """Over the timed pass: by the energy counter where the GPU has one, else of its readings, which many GPUs
        average over a second. None under MIG, where both are the whole GPU's."""
        timed = () if self.state.mig else self.timed
        counted = [(s.time_s, s.energy_j) for s in timed if s.energy_j is not None]
        if len(counted) > 1 and counted[-1][1] > counted[0][1]:
            (from_s, from_j), (to_s, to_j) = counted[0], counted[-1]
            return (to_j - from_j) / (to_s - from_s)
        powers_w = [sample.power_w for sample in timed if sample.power_w]
        return sum(powers_w) / len(powers_w) if powers_w else None

    @property
    def energy_j(self) -> float | None:
        return next((s.energy_j for s in reversed(self.samples) if s.energy_j is not None), None)


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Who had the host's processors during a trial's timed pass, in processor seconds. Other hosts are not counted."""

    elapsed_s: Annotated[float, Meta(gt=0, le=1e9)]
    processors: Annotated[int, Meta(ge=1, le=2**20)]  # that the trial might use
    own_s: Annotated[float, Meta(ge=0, le=1e12)]  # its processes computed
    waited_s: Annotated[float, Meta(ge=0, le=1e12)]  # its threads were ready and waited for a processor
    others_s: Annotated[float, Meta(ge=0, le=1e12)]  # other processes computed on these processors
    stolen_s: Annotated[float, Meta(ge=0, le=1e12)]  # a hypervisor gave to others
    throttled_s: Annotated[float, Meta(ge=0, le=1e12)] = 0.0  # a quota withheld from its control group

    @property
    def lost(self) -> float:
        """The share of the processor time that the trial asked for and did not get. Its threads also wait for each
        other, so that at most what others computed counts; a trial that mostly sleeps is taken to ask for all its
        time. What a quota withheld includes what it withheld from others in the same control group: at most the time
        that the trial did not compute counts."""
        lost_s = min(self.waited_s, self.others_s) + self.stolen_s
        if self.throttled_s:
            not_computed_s = max(0.0, self.processors * self.elapsed_s - self.own_s)
            lost_s = max(lost_s, min(lost_s + self.throttled_s, not_computed_s))
        return lost_s / max(self.own_s + lost_s, self.elapsed_s)

    @property
    def throttled(self) -> bool:
        """Whether a quota took more of the trial's time than other work did."""
        return self.throttled_s > min(self.waited_s, self.others_s) + self.stolen_s


BUSY = 0.05
"""Of a trial that has lost so much of its processor time or more the machine was busy with something else."""

ENOUGH_TRIALS = 5
"""Of a cell that is to be compared: the number that tcbench recommends, and that a run takes where its budget allows
(docs/method.md has what is found with it)."""

TAKE_ENOUGH = f"one trial does not show how the next will differ: take {ENOUGH_TRIALS} (--trials {ENOUGH_TRIALS})"
"""The one sentence that recommends it."""


def check_end(status: Status, reason: str | None, measurement: Measurement | None) -> None:
    """Check that a trial's end has what its status demands. Raises ValueError."""
    if status == "ok" and measurement is None:
        raise ValueError("a record that is ok needs a measurement")
    if measurement is not None and len(measurement.step_times_s) < 2:  # the first of a block is not counted
        raise ValueError("a measurement needs a counted step")
    if status != "ok" and not reason:
        raise ValueError(f"a record that is {status} needs a reason")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One trial, whatever happened to it. `started_at` is UTC, ISO 8601. `reason` is one line, set unless ok. `gpu` is
    set for a trial on a GPU where NVML can be asked, `host` where the timed pass came to its end. `plan` is the key of
    the run's plan (all its cells), `place` the cell's place in it, by which views order cells."""

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

    def __post_init__(self) -> None:
        check_end(self.status, self.reason, self.measurement)


SHORTEST_STEP_S = 10e-6
"""What the loop itself and the clock take, 0.6 us, would be a large part of a shorter step."""


def _contradiction(record: Record) -> str | None:
    """Why a record's figures cannot all be right, in one line; None where nothing speaks against them."""
    measured = record.measurement
    if record.status != "ok" or measured is None:
        return None
    counted = measured.counted_times_s
    step_s = sum(counted) / len(counted)
    if step_s < SHORTEST_STEP_S:
        least = f"{SHORTEST_STEP_S * 1e6:.0f} us"
        return f"its steps took {step_s * 1e6:.3g} us: shorter than {least}, nothing can be timed"
    phases_s = sum(statistics.median(phase.host_s) for phase in measured.phases if phase.host_s)
    if step_s < phases_s / 10:
        return f"its steps took {step_s * 1e3:.3g} ms, and their phases {phases_s * 1e3:.3g} ms: both cannot be"
    simulated = record.environment is not None and record.environment.simulated is not None
    if record.host is not None and not simulated:
        timed_s, passed_s = sum(measured.step_times_s), record.host.elapsed_s
        if abs(timed_s - passed_s) > 0.1 * passed_s + _BESIDE_STEPS_S:
            return f"its steps took {timed_s:.3g} s by their clock and {passed_s:.3g} s by the runner's"
    return None


def believed(record: Record) -> Record:
    """The record, or one that failed where its figures contradict each other: nothing is to be judged by them."""
    why = _contradiction(record)
    if why is None:
        return record
    return msgspec.structs.replace(record, status="failed", reason=f"not believed: {why}", measurement=None)


_BESIDE_STEPS_S = 0.5
"""The runner hears of the timed pass's ends through a pipe, and late on a machine that is busy."""


class RecordError(ValueError):
    """A line is not a record. The message says what was expected."""


_SHARED = {"cell": Cell, "environment": Environment | None}
"""Fields that many records of a file have in common."""

_Line: Any = msgspec.defstruct(
    "_Line",
    [
        (field.name, msgspec.Raw if field.name in _SHARED else field.type, msgspec.UNSET)
        for field in msgspec.structs.fields(Record)
    ],
    kw_only=True,
)


class RecordDecoder:
    """Decodes the lines of a file. Trials of one cell share one Cell and one Environment, which are decoded once; a
    file of a hundred thousand trials then needs a third of the time and of the memory."""

    def __init__(self) -> None:
        self._line = msgspec.json.Decoder(_Line)
        self._shared: dict[tuple[str, bytes], Any] = {}
        self._decoders = {name: msgspec.json.Decoder(type_) for name, type_ in _SHARED.items()}

    def decode(self, line: bytes) -> Record:
        if may_need_cleaning(line):
            return decode(line)
        try:
            fields = msgspec.structs.asdict(self._line.decode(line))
            if fields["schema_version"] == SCHEMA_VERSION:
                present = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
                for name in _SHARED.keys() & present.keys():
                    present[name] = self._shared_value(name, bytes(present[name]))
                return Record(**present)
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
            pass  # `decode` says what is wrong
        return decode(line)

    def _shared_value(self, name: str, text: bytes) -> Any:
        if len(self._shared) > 10_000:  # no file of ours; and it should not fill the memory
            self._shared.clear()
        key = name, text
        if key not in self._shared:
            self._shared[key] = self._decoders[name].decode(text)
        return self._shared[key]


def encode(record: Record) -> bytes:
    """One JSON line, without the line's end."""
    return msgspec.json.encode(record)


def decode(line: bytes | str) -> Record:
    """A record from its JSON line, its strings made safe to show. Raises RecordError: not UTF-8, not JSON, not a
    record, or of a newer version than this tcbench knows."""
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
        raise RecordError(f"schema version {version} is not known")
    try:
        return msgspec.convert(raw, Record)
    except msgspec.ValidationError as error:
        raise RecordError(f"not a valid record ({error})") from None
