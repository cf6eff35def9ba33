"""Messages that a worker sends to its runner, one JSON line each, over a pipe that carries nothing else."""

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Literal

import msgspec

from tcbench.core import text
from tcbench.core.record import Environment, HostLoad, Measurement, Seconds, check_end

FRESH_AUTOTUNE = "TCBENCH_FRESH_AUTOTUNE"
"""The environment variable that is "1" if a worker is to ignore cached plan times of cuDNN and oneDNN."""

CORES = "TCBENCH_CORES"
"""The environment variable with the number of cores that a worker of one rank may use. It is set for a cell that
multi-rank cells are compared with, to the number of cores that each of their ranks has."""


def core_limit() -> int:
    """Return the number of cores that this worker may use (`TCBENCH_CORES`); 0 means all."""
    return int(os.environ.get(CORES, "0"))


TURNS = "TCBENCH_TURNS"
"""The environment variable with two file descriptors, "IN,OUT", of a worker that takes turns with others. The worker
reads its turn from IN, works, and writes to OUT when the turn is over."""

TURNS_MAX_TIME = "TCBENCH_TURNS_MAX_TIME_S"
"""The environment variable with the limit of a worker's timed pass in seconds, in place of the cell's, if it takes
turns in a run."""


def turns_max_time_s() -> float | None:
    """Return the limit of this worker's timed pass if it takes turns in a run (`TURNS_MAX_TIME`), else None."""
    text = os.environ.get(TURNS_MAX_TIME)
    return float(text) if text else None


YOUR_TURN = b"."


def fresh_autotune() -> bool:
    """Return whether this worker is to ignore cached plan times (`--fresh-autotune`)."""
    return os.environ.get(FRESH_AUTOTUNE) == "1"


SIDE = "TCBENCH_SIDE"
"""The environment variable that names the side of a gate that a worker measures, `base` or `current`.

Both sides share their plan times and choose plans by all of them. Otherwise a lucky choice on one side would look like
a change of the code. If code, libraries or candidates of the sides differ, they cannot share times. Then every trial
times its plans anew, so that luck becomes part of the noise between trials."""

CPU_TIMES, GPU_PLANS = "onednn-v3", "plans-v3"
SHARED_FOLDERS = (CPU_TIMES, GPU_PLANS)
"""The cache folders that both sides of a gate share: times of oneDNN's and cuDNN's candidates."""


def side() -> str:
    """Return the side of a gate that this process measures, or "" outside of gates."""
    return os.environ.get(SIDE, "")


TUNING_BUDGET = "TCBENCH_TUNING_BUDGET_S"
"""The environment variable with the seconds that a trial may spend on finding and timing cuDNN's plans."""


def tuning_budget_s() -> float:
    """Return the seconds that a trial may spend on cuDNN's plans (`--tuning-budget`); the default is 60."""
    return float(os.environ.get(TUNING_BUDGET, "60"))


STEP_COUNT = "TCBENCH_STEP_COUNT"
"""The environment variable with the number of counted steps that a trial of a user's program takes. Without it, the
trial is a pilot, which finds the number and sends `Piloted`."""


class Piloted(msgspec.Struct, frozen=True, tag="piloted"):
    """A message: the number of counted steps that further trials of this cell are to take."""

    steps: Annotated[int, msgspec.Meta(ge=1)]


class Building(msgspec.Struct, frozen=True, tag="building"):
    """A message: the worker imports or builds `part`. `pid` is the worker's process id."""

    part: str = msgspec.field(name="what")  # the key that workers of older revisions send
    pid: int | None = None


class Tuning(msgspec.Struct, frozen=True, tag="tuning"):
    """A message: within a step another cuDNN plan was tuned. `plans` counts those tuned so far, and `spent_s` of the
    `budget_s` seconds are spent."""

    plans: int
    spent_s: float
    budget_s: float


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """A message: `steps` steps of a stage are done. `at_s` is the time of sending by `time.monotonic`, a clock that all
    processes of a host share; it is None from a rank, which may run on another host. The first message of the profiled
    pass ends the timed pass: its `facts_s` is the time since the last step that the session spent on reading facts such
    as the loss."""

    stage: Literal["warm-up", "timed", "profiled"]
    steps: Annotated[int, msgspec.Meta(ge=0)]
    step_time_s: Seconds
    at_s: float | None = None
    facts_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class TimedPassLoad(msgspec.Struct, frozen=True, tag="took-turns"):
    """A message: the host's load during the timed pass of a worker of one rank. If two workers alternate, only this
    worker's turns count. The tag is the one that workers of older revisions send."""

    load: HostLoad | None


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """A rank's first message: its number among `size` ranks, where it runs, and the cores that it is bound to (empty:
    not bound). `bound` describes in words how the ranks of a host share its cores."""

    rank: int
    size: int
    host: str
    pid: int
    cores: tuple[int, ...]
    bound: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """A worker's last message: the status of the trial and, if it is ok, the measurement."""

    status: Literal["ok", "oom", "failed"]
    reason: str | None
    measurement: Measurement | None
    environment: Environment | None

    def __post_init__(self) -> None:
        check_end(self.status, self.reason, self.measurement)


class ProfileRequest(msgspec.Struct, frozen=True):
    """A request to a worker to record its profiled pass in the file `path`: with layers if `layers` is set, and with
    the device's activities if `activities` is set. The pass takes at least `least_s` seconds. A worker gets the request
    as its second argument, in JSON."""

    path: str
    activities: bool = False
    layers: bool = True
    least_s: float = 0.0

    def for_rank(self, rank: int) -> "ProfileRequest":
        """Return the request for one of many ranks: a file of its own, layers included, and no least duration."""
        return ProfileRequest(f"{self.path}.rank{rank}", self.activities)


Message = Building | Tuning | Piloted | Stepped | TimedPassLoad | Joined | Finished

SEND: ContextVar[Callable[[Message], None]] = ContextVar("send", default=lambda _: None)
"""The function that sends a message to the runner. Outside of a worker it does nothing."""

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message:
    """Return the message of a JSON line. Raises msgspec.DecodeError if the line is no complete message."""
    if text.may_need_cleaning(line):
        message: Message = text.decode(line, Message)
        return message
    return _decoder.decode(line)
