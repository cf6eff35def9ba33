"""Messages from a worker to its runner, one JSON line each, over a pipe of their own. Nothing else is sent."""

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import Annotated, Literal

import msgspec

from tcbench.core import text
from tcbench.core.record import Environment, HostLoad, Measurement, Seconds, check_end

FRESH_AUTOTUNE = "TCBENCH_FRESH_AUTOTUNE"
"""The environment variable that is "1" where a worker is to time cuDNN's or oneDNN's plans anew, whatever was kept."""

CORES = "TCBENCH_CORES"
"""The environment variable with the number of processors that a worker of one rank is to run on, where it is the base
of cells of many: as many as a rank of theirs has."""


def cores() -> int:
    """That number; 0 where it may run on all."""
    return int(os.environ.get(CORES, "0"))


TURNS = "TCBENCH_TURNS"
"""The environment variable with the two file descriptors, "IN,OUT", of a worker that steps in turns with another: it
works while it has the turn, which it reads from one and hands on by the other."""

YOUR_TURN = b"."


def fresh_autotune() -> bool:
    """Whether kept times are to be ignored (`--fresh-autotune`)."""
    return os.environ.get(FRESH_AUTOTUNE) == "1"


SIDE = "TCBENCH_SIDE"
"""The environment variable that names the side of a gate that a worker measures, `base` or `current`.

Both sides share what they timed, and choose by both sides' times: a choice by one side's luck would look like a change
of the code. Times that the other side does not share, since its code, libraries or candidates differ, are measured anew
by every trial, so that this luck is part of the noise between trials.
"""

CPU_TIMES, GPU_PLANS = "onednn-v3", "plans-v3"
SHARED_FOLDERS = (CPU_TIMES, GPU_PLANS)
"""The folders in the cache that both sides share: of the times of oneDNN's and cuDNN's candidates."""


def side() -> str:
    """Return the side of a gate that this process measures; nothing outside gates."""
    return os.environ.get(SIDE, "")


TUNING_BUDGET = "TCBENCH_TUNING_BUDGET_S"
"""The environment variable that holds a trial's time for finding and timing cuDNN's plans, in seconds."""


def tuning_budget_s() -> float:
    """`--tuning-budget`; a minute without it."""
    return float(os.environ.get(TUNING_BUDGET, "60"))


class Building(msgspec.Struct, frozen=True, tag="building"):
    """The worker has started and is importing and building; `what` says which part. `pid` is the worker's process."""

    what: str
    pid: int | None = None


class Tuning(msgspec.Struct, frozen=True, tag="tuning"):
    """Another of cuDNN's plans was found and tuned, within a step: so many by now. What follows may take the rest of
    the budget, or come from the cache."""

    plans: int
    spent_s: float
    budget_s: float


class Stepped(msgspec.Struct, frozen=True, tag="stepped"):
    """Steps are going on. `at_s` is the time of sending by `time.monotonic`, which the processes of a host share; None
    from a rank, which may run on another host. The first message of the profiled pass ends the timed pass: `facts_s`
    says how much of the time since the last step went into the session's facts alone, its loss above all."""

    stage: Literal["warm-up", "timed", "profiled"]
    steps: Annotated[int, msgspec.Meta(ge=0)]
    step_time_s: Seconds
    at_s: float | None = None
    facts_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class TimedPassLoad(msgspec.Struct, frozen=True, tag="took-turns"):
    """The timed pass of a worker of one rank is over: the host's load in it. Where the worker steps in turns with
    another, only its own turns count. The tag is the one that older revisions send."""

    load: HostLoad | None


class Joined(msgspec.Struct, frozen=True, tag="joined"):
    """A rank's first message: its place among `size` ranks, where it runs, and the processors that it is bound to
    (none: it is not). `bound` says in words how the ranks of its host share them."""

    rank: int
    size: int
    host: str
    pid: int
    cores: tuple[int, ...]
    bound: str


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """The worker's last message."""

    status: Literal["ok", "oom", "failed"]
    reason: str | None
    measurement: Measurement | None
    environment: Environment | None

    def __post_init__(self) -> None:
        check_end(self.status, self.reason, self.measurement)


class ProfileRequest(msgspec.Struct, frozen=True):
    """A request to a worker beyond its cell, when it is profiled: to record its profiled pass, with its layers where
    `layers` is set and with what the device does where `activities` is, and to leave the recording in the file `path`.
    The pass takes `least_s` seconds at least. It is the worker's second argument, as JSON. Each of many ranks leaves a
    file of its own."""

    path: str
    activities: bool = False
    layers: bool = True
    least_s: float = 0.0

    def of_rank(self, rank: int) -> "ProfileRequest":
        return ProfileRequest(f"{self.path}.rank{rank}", self.activities)


Message = Building | Tuning | Stepped | TimedPassLoad | Joined | Finished

SEND: ContextVar[Callable[[Message], None]] = ContextVar("send", default=lambda _: None)
"""Sends a message of what this process measures; nowhere unless a worker runs."""

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode(line: bytes) -> Message:
    """Raises msgspec.DecodeError for anything but a whole message."""
    if text.may_need_cleaning(line):
        message: Message = text.decode(line, Message)
        return message
    return _decoder.decode(line)
