"""A host profile: in which Python functions the thread of the steps spends its time, phase by phase.

Whoever makes one (py-spy from outside, cProfile within) makes this; analysis, pictures and files read nothing else.
"""

from typing import Literal

import msgspec

HostTool = Literal["py-spy", "cProfile"]


class Frame(msgspec.Struct, frozen=True):
    """A Python function (`line`: its first), or a built-in one (no file, line 0). `file`: from the package on."""

    name: str
    file: str = ""
    line: int = 0


class Stack(msgspec.Struct, frozen=True, array_like=True):
    """Seconds per step that a phase spends in the last of these frames, called through the others, outermost first."""

    phase: str
    frames: tuple[Frame, ...]
    seconds: float


class HostProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's steps. `step_s` is the median step while it was profiled, `timed_step_s` without, and `timed_spread` how
    far the middle half of those lies apart, as a part of it; `samples` is 0 where nothing was sampled. The stacks of a
    phase add up to its time. `taken_at`: UTC, ISO 8601; those of older profiles do not say it."""

    label: str
    machine: str
    device: str
    device_name: str
    image_size: int
    model: str
    tool: HostTool
    steps: int
    samples: int
    step_s: float
    timed_step_s: float
    timed_spread: float
    phases: tuple[str, ...]
    stacks: tuple[Stack, ...] = ()
    taken_at: str | None = None

    @property
    def overhead(self) -> float:
        """The part by which profiled steps took longer than timed ones. Below `timed_spread` it is noise, which may be
        negative."""
        return self.step_s / self.timed_step_s - 1
