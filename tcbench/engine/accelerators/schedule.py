"""Recording a program's launches once and repeating them without the program.

While a program is recorded, it runs as usual. A schedule then repeats its launches in the same order on the same
arrays, without computation graphs, shape inference or allocations.

Memory is static: the recorded arrays belong to the schedules. When the program frees an array, its memory is reused for
the next array of the same size, so that schedules need no more memory than the program."""

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
"""The layer name of launches outside any layer."""


class Schedule:
    """Recorded launches, repeated by a call.

    A call takes new arrays in place of the recorded inputs, of the same sizes and dtypes; all other arrays are the
    recorded ones. `layers`, if given, is notified as each layer begins and ends."""

    def __init__(self, accelerator: Accelerator, inputs: Sequence[Array]) -> None:
        self._accelerator = accelerator
        # By address: an operation may launch on a view of an input.
        self._inputs = {accelerator.address(array): place for place, array in enumerate(inputs)}
        self._launches: list[Callable[[], None]] = []
        self._layers: list[str] = []
        self._arguments: list[list[Array]] = []
        self._reading_inputs: list[tuple[int, Work]] = []

    def __call__(self, *inputs: Array, layers: Layers | None = None) -> None:
        """Repeat all launches, in order. Those that read a recorded input are prepared again for the new input."""
        for number, work in self._reading_inputs:
            arguments = self._arguments[number]
            arrays = (inputs[argument] if isinstance(argument, int) else argument for argument in arguments)
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
        """Launch an operation now and at every call of the schedule."""
        launch = self._accelerator.prepare(work, *arrays)
        launch()
        # An input is stored as its place, any other array as itself, which keeps its memory alive.
        arguments = [self._inputs.get(self._accelerator.address(array), array) for array in arrays]
        if any(isinstance(argument, int) for argument in arguments):
            self._reading_inputs.append((len(self._launches), work))
        self._launches.append(launch)
        self._layers.append(layer)
        self._arguments.append(arguments)


class ScheduleRecorder:
    """A recorder of schedules, which share memory and run one at a time.

    While a program is recorded, the recorder is the current accelerator. It offers only what a schedule can repeat, so
    no copies. It is also a `Layers`, so that schedules know the layer of each launch."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.adds_to_dgrad = accelerator.adds_to_dgrad
        self._free: defaultdict[tuple[int, Any], list[Array]] = defaultdict(list)
        self._schedule = Schedule(accelerator, ())
        self._layer = NO_LAYER

    def record(self, run: Callable[..., Result], *inputs: Array) -> tuple[Schedule, Result]:
        """Run a program. Return the schedule of its launches, which takes new inputs at each call, and its result."""
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
        """Return an array in memory that the recorded program has freed, or else in new memory."""
        size, dtype = math.prod(shape), np.dtype(dtype)
        free = self._free[size, dtype]
        memory = free.pop() if free else self._accelerator.empty((size,), dtype)
        array = memory.reshape(shape)
        weakref.finalize(array, free.append, memory)
        return array

    def launch(self, work: Work, *arrays: Array) -> None:
        # Pass views: the schedule then holds the memory but not the arrays, whose end marks the memory as free.
        self._schedule.add(work, [array.reshape(array.shape) for array in arrays], self._layer)
