"""Techniques, jobs, runs and the document of `tcbench numerics`, and their JSON.

Everything in a document is raw: shares, safe scales and verdicts are derived from it
(`tcbench.commands.numerics.judgement`). Unknown fields are ignored when read.

History of SCHEMA_VERSION:

1  first form.
"""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from tcbench.core import files, text
from tcbench.core.errors import StoreError
from tcbench.core.record import Cell, Environment

SCHEMA = "tcbench-numerics"
SCHEMA_VERSION = 1

Scaling = Literal["none", "static", "dynamic"]
Sharding = Literal["whole", "ranks", "turns"]
"""All images of a step at once; in shards whose gradients are averaged, as ranks do; in shards that are steps of their
own, as one rank does at its own batch size."""
Rate = Literal["constant", "own", "scaled", "warm-up"]
"""The learning rate: the setting's throughout; or by P. Goyal et al. ("Accurate, Large Minibatch SGD", 2017) that of
one rank, ranks times that, or ranks times that after a gradual warm-up, each divided by 10 as the run goes on."""
GradientKind = Literal["weights", "activations"]
KINDS: tuple[GradientKind, ...] = ("weights", "activations")
"""Gradients of the parameters, and those that flow back into each convolution's and the classifier's output."""


class Technique(msgspec.Struct, frozen=True, kw_only=True):
    """The way a run stores and updates: the talk's two techniques, each there or not. `rung`: that of the dtype.
    `batch` and `rate`: how the images of a step and its learning rate depend on the setting's ranks."""

    name: str
    label: str
    rung: str
    scaling: Scaling
    masters: bool
    batch: Sharding = "whole"
    rate: Rate = "constant"


BASE, ONE_RANK = "fp32", "one-rank"
"""The techniques that others are held against: of those on one rank, and of those on many."""


def _by_name(*techniques: Technique) -> dict[str, Technique]:
    return {technique.name: technique for technique in techniques}


TECHNIQUES = _by_name(
    Technique(name=BASE, label="fp32", rung=BASE, scaling="none", masters=False),
    Technique(name="neither", label="fp16, neither", rung="fp16", scaling="none", masters=False),
    Technique(name="scaling", label="fp16, loss scaling only", rung="fp16", scaling="static", masters=False),
    Technique(name="masters", label="fp16, fp32 master weights only", rung="fp16", scaling="none", masters=True),
    Technique(name="both", label="fp16, both, static scale", rung="fp16", scaling="static", masters=True),
    Technique(name="dynamic", label="fp16, both, dynamic scale", rung="fp16", scaling="dynamic", masters=True),
    Technique(name="bf16", label="bf16, fp32 master weights", rung="bf16", scaling="none", masters=True),
)
"""In the order in which they are run and shown. Slides 5 and 6 of the talk; P. Micikevicius et al., "Mixed Precision
Training", 2018, sections 3.1 and 3.2; D. Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019."""


def _of_ranks(name: str, label: str, batch: Sharding, rate: Rate) -> Technique:
    return Technique(name=name, label=label, rung=BASE, scaling="none", masters=False, batch=batch, rate=rate)


RANKS_TECHNIQUES = _by_name(
    _of_ranks(ONE_RANK, "one rank, global batch", "whole", "warm-up"),
    _of_ranks("ranks", "ranks, linear scaling, warm-up", "ranks", "warm-up"),
    _of_ranks("no-warm-up", "ranks, linear scaling alone", "ranks", "scaled"),
    _of_ranks("unscaled", "ranks, one rank's rate", "ranks", "own"),
    _of_ranks("own-batch", "one rank, its own batch and rate", "turns", "own"),
)
"""Of a run with many ranks, in the same order. The linear scaling rule and gradual warm-up: P. Goyal et al., 2017,
sections 2.1 and 2.2; `own-batch` is what they hold theirs against."""

ALL_TECHNIQUES = TECHNIQUES | RANKS_TECHNIQUES

WARM_UP, DECAYS = 5 / 90, (30 / 90, 60 / 90, 80 / 90)
"""Shares of a run: the warm-up, and where the rate is divided by 10 (Goyal 2017, sections 2.2 and 5.1)."""


class TrainingSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all runs of a document share. With many `ranks`, `batch_size` is that of all ranks together and
    `learning_rate` that of one. `loss_divisor`: what the mean loss of a batch is divided by, since it is one replica's
    share of the mean over a global batch of `global_batch` images. `data`: the folder of images, or None for generated
    patterns with noise of `noise` standard deviations. `image_size` in pixels. `skipped`: techniques that the device
    does not run."""

    scenario: str
    model: str
    variant: str
    image_size: int
    n_classes: int
    batch_size: int
    steps: int
    learning_rate: float
    momentum: float
    weight_decay: float
    global_batch: int
    loss_divisor: float
    growth_interval: int
    train_images: int
    test_images: int
    device: str
    threads: int
    rungs: tuple[str, ...]
    data: str | None = None
    noise: float = 0.0
    skipped: tuple[str, ...] = ()
    ranks: int = 1

    @property
    def base(self) -> Technique:
        return ALL_TECHNIQUES[BASE if self.ranks == 1 else ONE_RANK]

    def learning_rate_at(self, step: int, rate: Rate) -> float:
        if rate == "constant":
            return self.learning_rate
        top = self.learning_rate * (1 if rate == "own" else self.ranks)
        warm_up = max(1, round(WARM_UP * self.steps))
        if rate == "warm-up" and step < warm_up:
            return self.learning_rate + (top - self.learning_rate) * step / warm_up
        return top * 0.1 ** sum(step >= at * self.steps for at in DECAYS)


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """One training run for a process of its own. `cell` is its config, seed, batch size, device and input; `loss_scale`
    is where the scale stands or begins. Gradients are counted at the steps `observe_at`."""

    cell: Cell
    setting: TrainingSetting
    technique: Technique
    loss_scale: float = 1.0
    observe_at: tuple[int, ...] = ()


class ParityCell(msgspec.Struct, frozen=True, kw_only=True):
    """A config to hold against another: `cell`, its last rung `rung`, and the config without it (None: the float64
    reference). `asked`: whether the scenario names it, rather than it being on the way to one."""

    cell: Cell
    rung: str
    without: str | None
    asked: bool = True


class ParityJob(msgspec.Struct, frozen=True, kw_only=True, tag="parity"):
    """Every config `steps` steps from the same weights over the same batches, in one process."""

    cells: tuple[ParityCell, ...]
    steps: int

    @property
    def cell(self) -> Cell:
        return self.cells[0].cell


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """One config's distance from another. `loss`: largest relative distance of a step's loss. `update`: relative, of
    what training did to all parameters, in the L2 norm. None of them is a number where a run went to infinity: then
    `finite` is False.

    Of gradients at the first weights, None where the step is one launch: `gradient`, the same of the parameter
    `gradient_of`, which is farthest; `length`, how much longer or shorter, relative, those of the kind of parameter
    `length_of` are, which differ most."""

    loss: float
    update: float
    gradient: float | None = None
    gradient_of: str | None = None
    length: float | None = None
    length_of: str | None = None
    finite: bool = True


class ParityRun(msgspec.Struct, frozen=True, kw_only=True):
    """A config's distances to the config without its last rung and to fp32, or why there are none. `seen` and
    `seen_without`: what it and the config without are seen to do, by what is looked at. `optimizer`: the relative L2
    distance of what a few updates from given gradients did to the parameter `optimizer_of`, which is farthest from what
    SGD with momentum and weight decay does in float64."""

    config: str
    rung: str
    without: str | None
    asked: bool
    storage: str = "float32"
    to_without: Distance | None = None
    to_fp32: Distance | None = None
    seen: dict[str, str] = {}
    seen_without: dict[str, str] = {}
    optimizer: float | None = None
    optimizer_of: str | None = None
    reason: str | None = None


class ParityFinished(msgspec.Struct, frozen=True, tag="parity-finished"):
    """The last message of a parity job. `reason`: why nothing could be compared."""

    runs: tuple[ParityRun, ...]
    reason: str | None = None
    environment: Environment | None = None


class Magnitudes(msgspec.Struct, frozen=True, kw_only=True):
    """A count of values by power of two: bin i holds 2^(lowest+i) <= |g| < 2^(lowest+i+1). `powers`, `almost` and
    `nearly` count in the same bins those on float16's rounding borders: |g| an exact power of two; |g| at least (2 -
    2^-10) and at least (2 - 2^-11) times the bin's begin. `zeros` and `not_finite` are in no bin."""

    lowest: int
    counts: tuple[int, ...]
    powers: tuple[int, ...]
    almost: tuple[int, ...]
    nearly: tuple[int, ...]
    zeros: int = 0
    not_finite: int = 0

    @property
    def non_zero(self) -> int:
        return sum(self.counts)


def total_magnitudes(magnitudes: Iterable[Magnitudes]) -> Magnitudes:
    """Return the sum of several counts."""
    parts = list(magnitudes)
    filled = [part for part in parts if part.counts]
    zeros, not_finite = sum(p.zeros for p in parts), sum(p.not_finite for p in parts)
    lowest = min((part.lowest for part in filled), default=0)
    bins = max((part.lowest + len(part.counts) for part in filled), default=0) - lowest

    def added(name: str) -> tuple[int, ...]:
        sums = [0] * bins
        for part in filled:
            for i, n in enumerate(getattr(part, name)):
                sums[part.lowest - lowest + i] += n
        return tuple(sums)

    columns = {name: added(name) for name in ("counts", "powers", "almost", "nearly")}
    return Magnitudes(lowest=lowest, zeros=zeros, not_finite=not_finite, **columns)


class LayerGradients(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's gradients, over all observed steps."""

    kind: GradientKind
    layer: str
    magnitudes: Magnitudes


class StepGradients(msgspec.Struct, frozen=True, kw_only=True):
    """The whole model's gradients at one step, and the loss of its batch."""

    kind: GradientKind
    step: int
    loss: float
    magnitudes: Magnitudes


class Gradients(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one fp32 run, without loss scaling."""

    seed: int
    layers: tuple[LayerGradients, ...]
    steps: tuple[StepGradients, ...]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One training run, whatever happened to it. `losses`: the batches', before they are divided; `test_loss` and
    `accuracy` are of images that it never trained on. Memory is the peak of the process (CPU) or the device."""

    technique: str
    seed: int
    status: Literal["ok", "diverged", "oom", "failed"]
    reason: str | None = None
    losses: tuple[float, ...] = ()
    test_loss: float | None = None
    accuracy: float | None = None
    train_time_s: float | None = None
    peak_memory_bytes: int | None = None
    peak_memory_of: Literal["process", "device"] = "process"
    first_scale: float = 1.0
    last_scale: float = 1.0
    skipped_steps: int = 0


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """The document that `tcbench numerics` keeps. `created_at` is UTC, ISO 8601."""

    schema: str = SCHEMA
    schema_version: int = SCHEMA_VERSION
    created_at: str
    setting: TrainingSetting
    gradients: Gradients
    runs: tuple[Run, ...]
    static_scale: float
    static_scale_chosen: bool
    duration_s: float
    environment: Environment | None = None


class StepsDone(msgspec.Struct, frozen=True, tag="progress"):
    """So many steps of the job are done."""

    steps: int


class TrainingFinished(msgspec.Struct, frozen=True, tag="finished"):
    """A worker's last message."""

    run: Run
    gradients: Gradients | None
    environment: Environment | None


NumericsMessage = StepsDone | TrainingFinished | ParityFinished
AnyJob = TrainingJob | ParityJob


class _Head(msgspec.Struct):
    schema: str = ""
    schema_version: int = 0


def _version(data: bytes) -> int | None:
    try:
        head = msgspec.json.decode(data, type=_Head)
    except (msgspec.DecodeError, RecursionError):
        return None
    return head.schema_version if head.schema == SCHEMA else None


def is_document(data: bytes) -> bool:
    """Whether a file's bytes are a document of this schema, of whatever version."""
    return _version(data) is not None


def read(path: Path) -> Document:
    """A document from its file. Raises StoreError for none, another version's, or one that says what cannot be."""
    try:
        data = files.read(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); `tcbench numerics` makes one") from None
    if (version := _version(data)) is None:
        raise StoreError(f"{path}: expected a document of `tcbench numerics` (schema {SCHEMA})")
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path}: schema version {version}, expected {SCHEMA_VERSION}; use the tcbench that wrote it")
    try:
        document: Document = text.decode(data, Document)
        if fault := next(_faults(document), None):
            raise msgspec.DecodeError(fault)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: not a valid document of `tcbench numerics` ({error})") from None
    return document


def _faults(document: Document) -> Iterator[str]:
    """Faults that types do not forbid, in what readers of a document rely on."""
    setting = document.setting
    if math.frexp(document.static_scale)[0] != 0.5 or not math.isfinite(document.static_scale):
        yield f"static_scale {document.static_scale:g}: expected a power of two"
    for name in ("steps", "batch_size", "n_classes", "test_images", "loss_divisor", "ranks"):
        if not 0 < getattr(setting, name) < math.inf:
            yield f"setting.{name} {getattr(setting, name):g}: expected a number above 0"
    gradients = document.gradients
    for counted in (*(x.magnitudes for x in gradients.layers), *(x.magnitudes for x in gradients.steps)):
        if {len(counted.powers), len(counted.almost), len(counted.nearly)} != {len(counted.counts)}:
            yield "gradients: expected as many powers, almost and nearly as counts"
        if min((*counted.counts, *counted.powers, *counted.almost, *counted.nearly), default=0) < 0:
            yield "gradients: expected counts from 0"
    if not document.runs:
        yield "runs: there is none"
    seen = set[tuple[str, int]]()
    for run in document.runs:
        name = f"{run.technique}, seed {run.seed}"
        known = TECHNIQUES if setting.ranks == 1 else RANKS_TECHNIQUES
        if run.technique not in known:
            yield f"technique '{run.technique}': expected one of {', '.join(known)}"
        if (run.technique, run.seed) in seen:
            yield f"{name}: twice"
        seen.add((run.technique, run.seed))
        if not (0 < run.first_scale < math.inf and 0 < run.last_scale < math.inf):
            yield f"{name}: expected loss scales above 0"
        if run.status == "ok" and not _is_finished(run):
            yield f"{name} is ok: expected losses, a test loss, an accuracy from 0 to 1, a time and a memory"


def _is_finished(run: Run) -> bool:
    """Whether all figures of a run that got to the end are there and finite."""
    figures = (run.test_loss, run.accuracy, run.train_time_s, run.peak_memory_bytes)
    if not run.losses or not all(map(math.isfinite, run.losses)):
        return False
    return all(x is not None and 0 <= x < math.inf for x in figures) and (run.accuracy or 0) <= 1
