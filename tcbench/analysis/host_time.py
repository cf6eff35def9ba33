"""Self time by function in a host profile, and whose code it is. Pure functions."""

from dataclasses import dataclass
from typing import Literal

from tcbench.analysis.bottleneck import INPUT
from tcbench.core.groups import summed
from tcbench.core.host_profile import Frame, HostProfile

Origin = Literal["framework", "tcbench", "compute"]
"""Whose code runs: Chainer's or PyTorch's; ours, or a step of the user's own; or NumPy's, another library's or a
driver's, which counts to the Python function that calls it: a function of our accelerators, or of the library."""

_FRAMEWORKS = ("chainer/", "chainermn/", "torch/")
_ACCELERATORS = "tcbench/engine/accelerators/"
_OURS = "tcbench/"
_PYTHON = ("python/", "<")


@dataclass(frozen=True)
class FunctionTime:
    """A function's own time in a phase, seconds per step, and its share of the phase."""

    frame: Frame
    origin: Origin
    seconds: float
    share: float


def origin(frames: tuple[Frame, ...]) -> Origin:
    """Whose code the last of these frames is. A built-in function and Python's own library are their caller's."""
    for frame in reversed(frames):
        if not frame.file or frame.file.startswith(_PYTHON):
            continue
        if frame.file.startswith(_FRAMEWORKS):
            return "framework"
        if frame.file.startswith(_OURS) and not frame.file.startswith(_ACCELERATORS):
            return "tcbench"
        # A file outside of every package is the user's.
        return "tcbench" if frame.file.startswith("/") else "compute"
    return "tcbench"


def functions(profile: HostProfile, phase: str) -> tuple[FunctionTime, ...]:
    """The functions of a phase, by their own time, the costliest first."""
    stacks = (stack for stack in profile.stacks if stack.phase == phase)
    spent = summed(((stack.frames[-1], origin(stack.frames)), stack.seconds) for stack in stacks)
    total = sum(spent.values()) or 1.0
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    return tuple(FunctionTime(frame, whose, seconds, seconds / total) for (frame, whose), seconds in ordered)


def phase_s(profile: HostProfile, phase: str) -> float:
    """Seconds per step of a phase."""
    return sum(stack.seconds for stack in profile.stacks if stack.phase == phase)


def longest_phase(profile: HostProfile, verdict: str) -> str | None:
    """The phase that holds the step back where input or host do: the input's, or else the longest of the others; None
    where neither does, or the profile has no such phase."""
    phases = {*profile.phases}
    wanted = {"input-bound": {INPUT}, "host-bound": phases - {INPUT}, "balanced": phases}.get(verdict, set())
    times_s = {phase: phase_s(profile, phase) for phase in profile.phases if phase in wanted}
    return max(times_s, key=lambda phase: times_s[phase]) if any(times_s.values()) else None
