"""The Python functions in which each phase spends its time, by cProfile: one profile per phase, so that a function that
two phases call is not mixed up. It sees every call and return of the thread of the steps, which is what it costs."""

import contextlib
import cProfile
from collections.abc import Callable, Iterator
from typing import Any

from tcbench.core.host_profile import Frame, Stack

_LEAST = 5e-4
"""Of a phase: calls that take less are counted to their caller."""


class Tracer:
    """Profiles each phase while `phase` is held; then `stacks`."""

    def __init__(self) -> None:
        self._profiles: dict[str, cProfile.Profile] = {}

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Hold it around one run of the phase."""
        profile = self._profiles.setdefault(name, cProfile.Profile())
        profile.enable()
        try:
            yield
        finally:
            profile.disable()

    def stacks(self, steps: int) -> tuple[Stack, ...]:
        """Seconds per step of each phase's stacks, with files as Python names them."""
        return tuple(
            Stack(name, frames, seconds / steps)
            for name, profile in self._profiles.items()
            for frames, seconds in stacks_of(profile.getstats())
        )


def stacks_of(entries: Any) -> list[tuple[tuple[Frame, ...], float]]:
    """Stacks with the seconds spent in their last frame, from cProfile's calls between pairs of functions. cProfile
    knows how long a function took for each of its callers, not for each of theirs. Below a function its time is shared
    out in proportion to that, as gprof did (S. Graham et al., "gprof", SIGPLAN 17(6), 1982)."""
    by_code = {entry.code: entry for entry in entries}
    called = {call.code for entry in entries for call in entry.calls or () if call.code != entry.code}
    roots = [entry for entry in entries if entry.code not in called and not _is_our_own(entry.code)]
    total = sum(entry.totaltime for entry in roots)
    stacks: list[tuple[tuple[Frame, ...], float]] = []

    def walk(entry: Any, share: float, above: tuple[Frame, ...], open_: frozenset[Any]) -> None:
        frames, own = (*above, _frame(entry.code)), entry.inlinetime * share
        for call in entry.calls or ():
            inner, seconds = by_code[call.code], call.totaltime * share
            if call.code in open_:
                continue  # what it does in there is in the outer call's figures already
            if seconds < _LEAST * total or inner.totaltime == 0:
                own += seconds
            else:
                walk(inner, seconds / inner.totaltime, frames, open_ | {call.code})
        stacks.append((frames, own))

    for root in roots:
        walk(root, 1.0, (), frozenset({root.code}))
    return [(frames, seconds) for frames, seconds in stacks if seconds > 0]


def place(run: Callable[[], None]) -> str:
    """The file and first line of a phase's function or callable object, as "FILE:LINE"; "" for one in C."""
    code = getattr(run, "__code__", None) or getattr(type(run).__call__, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def _frame(code: Any) -> Frame:
    if isinstance(code, str):
        return Frame(code)
    return Frame(getattr(code, "co_qualname", code.co_name), code.co_filename, code.co_firstlineno)


def _is_our_own(code: Any) -> bool:
    """The end of `Tracer.phase` itself."""
    return "_lsprof.Profiler" in code if isinstance(code, str) else code.co_filename == __file__
