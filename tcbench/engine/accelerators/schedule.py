"""Launches that are recorded once and made again, without the program that asked for them.

While a program is recorded it runs as ever, and each launch is prepared, made and noted. The schedule makes the same
launches again, in the same order, on the same arrays: no graph, no shapes, no allocations.

Memory is static: arrays that are made while recording stay the schedules'. Where the program drops one, the next of its
size is made in its place, as in every replay, so that schedules hold no more than the program did."""

import itertools
import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute, use
from tcbench.engine.session import Layers
from tcbench.engine.work import Norm, Work

Result = TypeVar("Result")

NO_LAYER = "recorded graph"
"""Names launches that were made within no layer."""


class Schedule:
    """Launches in order. Called with as many arrays as there were inputs, of the same sizes and dtypes, it reads these
    in their place; all others are those that were recorded. `layers` is told of the layers that these belong to."""

    def __init__(self, accelerator: Accelerator, inputs: Sequence[Array]) -> None:
        self._accelerator = accelerator
        # By address: an operation may launch on a view of an input.
        self._inputs = {accelerator.address(array): place for place, array in enumerate(inputs)}
        self._launches: list[Callable[[], None]] = []
        self._layers: list[str] = []
        self._arguments: list[list[Array]] = []
        self._reading_inputs: list[tuple[int, Work]] = []

    def __call__(self, *inputs: Array, layers: Layers | None = None) -> None:
        for number, work in self._reading_inputs:
            arrays = (inputs[given] if isinstance(given, int) else given for given in self._arguments[number])
            self._launches[number] = self._accelerator.prepare(work, *arrays)
        if layers is None:
            for launch in self._launches:
                launch()
            return
        for layer, launches in itertools.groupby(zip(self._layers, self._launches, strict=True), lambda pair: pair[0]):
            layers.begin(layer)
            for _, launch in launches:
                launch()
            layers.end()

    def add(self, work: Work, arrays: Sequence[Array], layer: str) -> None:
        """Make a launch now, and at every call."""
        launch = self._accelerator.prepare(work, *arrays)
        launch()
        # The arrays are kept for their memory; an input by its place.
        given = [self._inputs.get(self._accelerator.address(array), array) for array in arrays]
        if any(isinstance(argument, int) for argument in given):
            self._reading_inputs.append((len(self._launches), work))
        self._launches.append(launch)
        self._layers.append(layer)
        self._arguments.append(given)


class ScheduleRecorder:
    """The memory of what is recorded on an accelerator, in as many schedules as run in turn. While a program runs, it
    is the current accelerator, and has only what a schedule can do again: a copy, say, cannot be asked for. It is
    told of layers (a `Layers`), so that a schedule knows the layer of each launch."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.adds_to_dgrad = accelerator.adds_to_dgrad
        self._dropped: defaultdict[tuple[int, Any], list[Array]] = defaultdict(list)
        self._schedule = Schedule(accelerator, ())
        self._layer = NO_LAYER

    def record(self, run: Callable[..., Result], *inputs: Array) -> tuple[Schedule, Result]:
        """Run a program on inputs, of which every call of the schedule gets others; and the program's result."""
        self._schedule = schedule = Schedule(self._accelerator, inputs)
        with use(cast("Accelerator", self)):
            return schedule, run(*inputs)

    def begin(self, name: str) -> None:
        self._layer = name

    def end(self) -> None:
        self._layer = NO_LAYER

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return self._accelerator.batch_norm(norm, eps, momentum)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        size, dtype = math.prod(shape), np.dtype(dtype)
        dropped = self._dropped[size, dtype]
        memory = dropped.pop() if dropped else self._accelerator.empty((size,), dtype)
        array = memory.reshape(shape)
        weakref.finalize(array, dropped.append, memory)
        return array

    def launch(self, work: Work, *arrays: Array) -> None:
        # Views: the schedule keeps the memory, and not the arrays, which the program may drop.
        self._schedule.add(work, [array.reshape(array.shape) for array in arrays], self._layer)
