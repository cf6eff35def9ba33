"""Taking turns: the worker of one trial steps while the workers of others wait.

A worker reads a byte before each of its turns, and writes a byte when the turn is over
(`tcbench.engine.measure.pipe.in_turns` is its side)."""

import contextlib
import math
import os
import select
import time
from collections import deque
from collections.abc import Iterator

from tcbench.core.messages import YOUR_TURN
from tcbench.hardware import machine

MEMORY_MARGIN = 3
"""A further process starts if this multiple of what the largest one took is still available."""
LEAST_BYTES = 2**28
"""The least memory that a process is taken to use."""


class Turns:
    """The turns of trials that run at the same time. Trials are known by their numbers.

    A worker that has ended has closed its pipes and gets no more turns."""

    def __init__(self) -> None:
        self._pipes: deque[tuple[int, int, int]] = deque()  # trial, where its turns are given, where it answers
        self._turns_s: dict[int, float] = {}
        self._closed_s: dict[int, float] = {}  # when workers closed their pipes
        self._began_s = 0.0

    @contextlib.contextmanager
    def first_turn(self, trial: int) -> Iterator[tuple[int, int]]:
        """Give the first turn to the worker of a trial, which is started in this context. Yields its descriptors: it
        reads its turns from one, and writes to the other when a turn is over."""
        (turn, give), (answer, over) = os.pipe(), os.pipe()
        self._pipes.append((trial, give, answer))
        self._turns_s[trial] = 0.0
        try:
            self._give()
            yield turn, over
        finally:
            os.close(turn)
            os.close(over)

    @property
    def answers(self) -> list[int]:
        """The descriptor that becomes readable when the present turn is over; none without workers."""
        return [self._pipes[-1][2]] if self._pipes else []

    def is_over(self) -> bool:
        """Return whether the present turn is over, or nobody has a turn."""
        if not self._pipes:
            return True
        if not select.select(self.answers, [], [], 0.0)[0]:
            return False
        trial, _, answer = self._pipes[-1]
        self._turns_s[trial] = self.spent_s(trial)
        self._began_s = math.inf
        if not os.read(answer, 1):
            self._drop()
        return True

    def give_next(self) -> None:
        """Give the next worker its turn. The present turn must be over."""
        while self._pipes:
            self._pipes.rotate(-1)
            try:
                self._give()
                return
            except BrokenPipeError:
                self._drop()

    def spent_s(self, trial: int) -> float:
        """Return the seconds of all turns of a trial so far, and since its worker closed its pipes, if it did."""
        has_turn = bool(self._pipes) and self._pipes[-1][0] == trial
        since_s = self._began_s if has_turn else self._closed_s.get(trial, math.inf)
        return self._turns_s[trial] + max(0.0, time.monotonic() - since_s)

    def close(self) -> None:
        """Close all descriptors. A worker that still runs would then step without waiting for its turn."""
        while self._pipes:
            self._drop()

    def _give(self) -> None:
        os.write(self._pipes[-1][1], YOUR_TURN)
        self._began_s = time.monotonic()

    def _drop(self) -> None:
        trial, give, answer = self._pipes.pop()
        self._closed_s[trial] = time.monotonic()
        os.close(give)
        os.close(answer)


class FreeMemory:
    """Tells whether a further process fits into memory, by what each of the processes so far has taken: at least
    `LEAST_BYTES`, since another program may free memory meanwhile. `had_room`: whether any further process fitted."""

    def __init__(self) -> None:
        self._available_bytes = machine.available_memory_bytes()
        self._largest_bytes = LEAST_BYTES
        self.had_room = False

    def has_room(self) -> bool:
        """Return whether a further process fits. Called once after each process has been built."""
        before, self._available_bytes = self._available_bytes, machine.available_memory_bytes()
        self._largest_bytes = max(self._largest_bytes, before - self._available_bytes)
        fits = self._available_bytes > MEMORY_MARGIN * self._largest_bytes
        self.had_room = self.had_room or fits
        return fits
