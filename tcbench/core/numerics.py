"""The schema of `tcbench numerics`: techniques, jobs, runs and the document that is stored as JSON.

A document holds raw data only; `tcbench.commands.numerics.judgement` derives shares, safe scales and verdicts from it.
Readers ignore unknown fields.

History of SCHEMA_VERSION:

1  first form."""

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from tcbench.core import files, text
from tcbench.core.errors import StoreError
from tcbench.core.groups import by_name
from tcbench.core.record import Cell, Environment

SCHEMA = "tcbench-numerics"
SCHEMA_VERSION = 1

Scaling = Literal["none", "static", "dynamic"]
Sharding = Literal["whole", "ranks", "turns"]
"""How a step processes its images. `whole`: all at once. `ranks`: in shards, with averaged gradients, as ranks do.
`turns`: in shards one after the other, with an update after each, as a single rank trains at one rank's batch size."""
Rate = Literal["constant", "own", "scaled", "warm-up"]
"""The learning rate schedule. `constant`: the setting's rate. The others follow P. Goyal et al. ("Accurate, Large
Minibatch SGD", 2017) and are divided by 10 three times. `own`: one rank's rate. `scaled`: one rank's rate times the
number of ranks. `warm-up`: the scaled rate after a gradual rise from one rank's."""
GradientKind = Literal["weights", "activations"]
KINDS: tuple[GradientKind, ...] = ("weights", "activations")
"""Gradients of the parameters, and gradients of the outputs of each convolution and of the classifier."""


class Technique(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stores and updates weights: with or without loss scaling and fp32 master weights. `rung` is the rung of
    the dtype. `batch` and `rate` define how a step's images and its learning rate depend on the number of ranks."""

    name: str
    label: str
    rung: str
    scaling: Scaling = "none"
    masters: bool = False
    batch: Sharding = "whole"
    rate: Rate = "constant"


BASE, ONE_RANK = "fp32", "one-rank"
"""The techniques that others are compared with: `BASE` on one rank, `ONE_RANK` on several."""

TECHNIQUES: dict[str, Technique] = by_name(
    [
        Technique(name=BASE, label="fp32", rung=BASE, scaling="none", masters=False),
        Technique(name="neither", label="fp16, neither", rung="fp16", scaling="none", masters=False),
        Technique(name="scaling", label="fp16, loss scaling only", rung="fp16", scaling="static", masters=False),
        Technique(name="masters", label="fp16, fp32 master weights only", rung="fp16", scaling="none", masters=True),
        Technique(name="both", label="fp16, both, static scale", rung="fp16", scaling="static", masters=True),
        Technique(name="dynamic", label="fp16, both, dynamic scale", rung="fp16", scaling="dynamic", masters=True),
        Technique(name="bf16", label="bf16, fp32 master weights", rung="bf16", scaling="none", masters=True),
    ]
)
"""The techniques on one rank, in the order in which they run and are shown. Slides 5 and 6 of the talk; P. Micikevicius
et al., "Mixed Precision Training", 2018, sections 3.1 and 3.2; D. Kalamkar et al., "A Study of BFLOAT16 for Deep
Learning Training", 2019."""


RANKS_TECHNIQUES: dict[str, Technique] = by_name(
    [
        Technique(name=ONE_RANK, label="one rank, global batch", rung=BASE, batch="whole", rate="warm-up"),
        Technique(name="ranks", label="ranks, linear scaling, warm-up", rung=BASE, batch="ranks", rate="warm-up"),
        Technique(name="no-warm-up", label="ranks, linear scaling alone", rung=BASE, batch="ranks", rate="scaled"),
        Technique(name="unscaled", label="ranks, one rank's rate", rung=BASE, batch="ranks", rate="own"),
        Technique(name="own-batch", label="one rank, its own batch and rate", rung=BASE, batch="turns", rate="own"),
    ]
)
"""The techniques on several ranks, in the order in which they run and are shown. P. Goyal et al., 2017, sections 2.1
(linear scaling rule) and 2.2 (gradual warm-up); `own-batch` is the reference there."""

ALL_TECHNIQUES = TECHNIQUES | RANKS_TECHNIQUES

WARM_UP, DECAYS = 5 / 90, (30 / 90, 60 / 90, 80 / 90)
"""The share of a run that is warm-up, and the points where the rate is divided by 10 (Goyal 2017, sections 2.2,
5.1)."""


class TrainingSetting(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all runs of a document share.

    With several `ranks`, `batch_size` counts the images of all ranks and `learning_rate` is that of one rank. The mean
    loss of a batch is divided by `loss_divisor`: it is one replica's share of the mean over `global_batch` images.
    `data` is the folder of images; None means generated patterns with noise of `noise` standard deviations.
    `image_size` is in pixels. `skipped` lists techniques that the device cannot run."""

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
        """The technique that others are compared with."""
        return ALL_TECHNIQUES[BASE if self.ranks == 1 else ONE_RANK]

    def learning_rate_at(self, step: int, rate: Rate) -> float:
        """Return the learning rate of the step with this index, in the schedule `rate`."""
        if rate == "constant":
            return self.learning_rate
        top = self.learning_rate * (1 if rate == "own" else self.ranks)
        warm_up = max(1, round(WARM_UP * self.steps))
        if rate == "warm-up" and step < warm_up:
            return self.learning_rate + (top - self.learning_rate) * step / warm_up
        return top * 0.1 ** sum(step >= share * self.steps for share in DECAYS)


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True, tag="train"):
    """One training run, in a process of its own. `cell` has its config, seed, batch size, device and input;
    `loss_scale` is the static or the first dynamic scale. Gradients are counted at the steps `observe_at`."""

    cell: Cell
    setting: TrainingSetting
    technique: Technique
    loss_scale: float = 1.0
    observe_at: tuple[int, ...] = ()


class ParityCell(msgspec.Struct, frozen=True, kw_only=True):
    """A config to compare with another: `cell`, its last rung `rung`, and the config `without` that rung (None: the
    float64 reference). `in_scenario` is False for a config that only leads to one of the scenario's."""

    cell: Cell
    rung: str
    without: str | None
    in_scenario: bool = True


class ParityJob(msgspec.Struct, frozen=True, kw_only=True, tag="parity"):
    """A job that trains each config for `steps` steps from the same weights on the same batches, in one process."""

    cells: tuple[ParityCell, ...]
    steps: int

    @property
    def cell(self) -> Cell:
        """The cell that determines device and environment of the process."""
        return self.cells[0].cell


class Distance(msgspec.Struct, frozen=True, kw_only=True):
    """The distance of one config's training from another's.

    - `loss`: the largest relative difference of a step's loss.
    - `update`: the relative L2 distance of the change of all parameters by training.
    - `gradient`: the relative L2 distance of the gradients at the first weights, for the parameter `gradient_of`, whose
      distance is largest.
    - `length`: the relative difference of the gradients' L2 norms, for the kind of parameter `length_of`, where it is
      largest.
    - `finite`: False if a run diverged to infinity, so that none of the others is a number.

    The fields about gradients are None if the whole step is one launch."""

    loss: float
    update: float
    gradient: float | None = None
    gradient_of: str | None = None
    length: float | None = None
    length_of: str | None = None
    finite: bool = True


class ParityRun(msgspec.Struct, frozen=True, kw_only=True):
    """A config's distances to the config without its last rung and to fp32, or the `reason` why there are none.

    `without` is the config without the rung (None: the float64 reference), `to_without` the distance to it, and
    `to_fp32` the distance to fp32. `seen` and `seen_without` are the observed properties of the sessions with and
    without the rung.
    `optimizer_distance` is the largest relative L2 distance, over parameters, between a few updates with fixed
    gradients and those of SGD with momentum and weight decay in float64; `optimizer_parameter` is the parameter with
    that distance."""

    config: str
    rung: str
    without: str | None
    in_scenario: bool = msgspec.field(name="asked")
    storage: str = "float32"
    to_without: Distance | None = None
    to_fp32: Distance | None = None
    seen: dict[str, str] = {}
    seen_without: dict[str, str] = {}
    optimizer_distance: float | None = msgspec.field(default=None, name="optimizer")
    optimizer_parameter: str | None = msgspec.field(default=None, name="optimizer_of")
    reason: str | None = None


class ParityFinished(msgspec.Struct, frozen=True, tag="parity-finished"):
    """The last message of a parity job. `reason` is set if nothing could be compared."""

    runs: tuple[ParityRun, ...]
    reason: str | None = None
    environment: Environment | None = None


class Magnitudes(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of gradients by power of two: bin i counts 2^(lowest+i) <= |g| < 2^(lowest+i+1).

    `powers`, `almost` and `nearly` count, in the same bins, values that float16 may round to another bin: exact powers
    of two, and values of at least (2 - 2^-10) and (2 - 2^-11) times the bin's lower edge. `zeros` and `not_finite` are
    in no bin."""

    lowest: int
    counts: tuple[int, ...]
    powers: tuple[int, ...]
    almost: tuple[int, ...]
    nearly: tuple[int, ...]
    zeros: int = 0
    not_finite: int = 0

    @property
    def non_zero(self) -> int:
        """The number of finite values other than zero."""
        return sum(self.counts)


def total_magnitudes(magnitudes: Iterable[Magnitudes]) -> Magnitudes:
    """Return the sum of several histograms, which may begin at different bins. It has no bins if all are empty."""
    parts = list(magnitudes)
    filled = [part for part in parts if part.counts]
    zeros, not_finite = sum(p.zeros for p in parts), sum(p.not_finite for p in parts)
    lowest = min((part.lowest for part in filled), default=0)
    bins = max((part.lowest + len(part.counts) for part in filled), default=0) - lowest

    def added(name: str) -> tuple[int, ...]:
        """Return the sum of one kind of counts over all parts, by bin."""
        sums = [0] * bins
        for part in filled:
            for i, n in enumerate(getattr(part, name)):
                sums[part.lowest - lowest + i] += n
        return tuple(sums)

    columns = {name: added(name) for name in ("counts", "powers", "almost", "nearly")}
    return Magnitudes(lowest=lowest, zeros=zeros, not_finite=not_finite, **columns)


class LayerGradients(msgspec.Struct, frozen=True, kw_only=True):
    """The histogram of one layer's gradients over all observed steps."""

    kind: GradientKind
    layer: str
    magnitudes: Magnitudes


class StepGradients(msgspec.Struct, frozen=True, kw_only=True):
    """The histogram of the whole model's gradients at one step, and the loss of its batch."""

    kind: GradientKind
    step: int
    loss: float
    magnitudes: Magnitudes


class Gradients(msgspec.Struct, frozen=True, kw_only=True):
    """The gradient histograms of one fp32 run without loss scaling."""

    seed: int
    layers: tuple[LayerGradients, ...]
    steps: tuple[StepGradients, ...]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one training run. `losses` are those of the batches, before division by `loss_divisor`;
    `test_loss` and `accuracy` are measured on held-out images. Memory is the peak of the process (CPU) or the device.
    """

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
    """The document that `tcbench numerics` stores. `created_at` is UTC in ISO 8601."""

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
    """A progress message: the number of steps that are done."""

    steps: int


class TrainingFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The last message of a training job."""

    run: Run
    gradients: Gradients | None
    environment: Environment | None


NumericsMessage = StepsDone | TrainingFinished | ParityFinished
AnyJob = TrainingJob | ParityJob


class _Head(msgspec.Struct):
    schema: str = ""
    schema_version: int = 0


def _version(content: bytes) -> int | None:
    """Return the schema version of a document, or None if the content is no document."""
    try:
        head = msgspec.json.decode(content, type=_Head)
    except (msgspec.DecodeError, RecursionError):
        return None
    return head.schema_version if head.schema == SCHEMA else None


def is_document(content: bytes) -> bool:
    """Return whether the content of a file is a document of this schema, of any version."""
    return _version(content) is not None


def read(path: Path) -> Document:
    """Read a document. Raises StoreError if the file is no document, has another version or has impossible figures."""
    try:
        content = files.read(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}); `tcbench numerics` writes one") from None
    if (version := _version(content)) is None:
        raise StoreError(f"{path}: expected a document of `tcbench numerics` (schema {SCHEMA})")
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path}: schema version {version}, expected {SCHEMA_VERSION}; use the tcbench that wrote it")
    try:
        document: Document = text.decode(content, Document)
        if fault := next(_faults(document), None):
            raise msgspec.DecodeError(fault)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: not a valid document of `tcbench numerics` ({error})") from None
    return document


def _faults(document: Document) -> Iterator[str]:
    """Yield impossible figures of a document that the types of its fields allow."""
    setting = document.setting
    if math.frexp(document.static_scale)[0] != 0.5 or not math.isfinite(document.static_scale):
        yield f"static_scale {document.static_scale:g}: expected a power of two"
    for name in ("steps", "batch_size", "n_classes", "test_images", "loss_divisor", "ranks"):
        if not 0 < getattr(setting, name) < math.inf:
            yield f"setting.{name} {getattr(setting, name):g}: expected a number above 0"
    layers, steps = document.gradients.layers, document.gradients.steps
    for histogram in (*(layer.magnitudes for layer in layers), *(step.magnitudes for step in steps)):
        counts = (histogram.counts, histogram.powers, histogram.almost, histogram.nearly)
        if len(set(map(len, counts))) != 1:
            yield "gradients: expected as many powers, almost and nearly as counts"
        if min(itertools.chain(*counts), default=0) < 0:
            yield "gradients: expected counts from 0"
    if not document.runs:
        yield "runs: expected at least one"
    seen = set[tuple[str, int]]()
    for run in document.runs:
        name = f"{run.technique}, seed {run.seed}"
        techniques = TECHNIQUES if setting.ranks == 1 else RANKS_TECHNIQUES
        if run.technique not in techniques:
            yield f"technique '{run.technique}': expected one of {', '.join(techniques)}"
        if (run.technique, run.seed) in seen:
            yield f"{name}: listed twice"
        seen.add((run.technique, run.seed))
        if not (0 < run.first_scale < math.inf and 0 < run.last_scale < math.inf):
            yield f"{name}: expected loss scales above 0"
        if run.status == "ok" and not _is_finished(run):
            yield f"{name}, status ok: expected losses, a test loss, an accuracy from 0 to 1, a time and a memory"


def _is_finished(run: Run) -> bool:
    """Return whether all figures of a completed run are present and finite."""
    figures = (run.test_loss, run.accuracy, run.train_time_s, run.peak_memory_bytes)
    if not run.losses or not all(map(math.isfinite, run.losses)):
        return False
    return all(figure is not None and 0 <= figure < math.inf for figure in figures) and (run.accuracy or 0) <= 1
