"""Marks the steps of a user's own training loop, so that `tcbench run` can time them: `steps`, `phase`, `StepMarker`.

This module runs in the user's process and imports the standard library only. If nothing measures, it does nothing. Else
the environment variable `TCBENCH_STEPS` names a Unix socket, over which the process exchanges lines of JSON with
`tcbench.engine.measure.program`, which describes the messages."""

import contextlib
import itertools
import json
import math
import os
import socket
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

SOCKET = "TCBENCH_STEPS"
"""The environment variable with the abstract name (unix(7)) of the socket. It is set while tcbench measures."""

INPUT = "input"
"""The phase in which the loop waits for its next batch."""

_REPORT_S = 0.5
"""The least number of seconds between two reports of progress."""


def steps(loader: Any, items: Any = None, unit: str = "samples", every: int = 1, name: str = "train") -> Any:
    """Return `loader` unchanged, or, under `tcbench run`, a proxy for it whose iteration times the steps.

    - `items`: how many samples or tokens a batch holds: a number, or a function of a batch that returns it. It is
      called once, outside the timed steps. Default: the loader's `batch_size`, or else the scenario's.
    - `unit`: the noun for the items. One that you name must be the scenario's `unit` too.
    - `every`: the number of batches in a step, for gradient accumulation.
    - `name`: the name of the loop. tcbench measures the loop `train` unless the scenario names another one.

    After the last step to be measured the iteration raises SystemExit(0). Raises TypeError or ValueError for arguments
    that are none of these."""
    if SOCKET not in os.environ:
        return loader
    if name not in _markers:  # a program may call this function anew for each epoch
        _markers[name] = StepMarker(name, items, unit, every, loader)
    return _MeasuredLoader(loader, _markers[name])


def phase(name: str, counted: bool = True) -> contextlib.AbstractContextManager[object]:
    """Return a context whose time in a step is reported as the phase `name`. With `counted=False` its time is left out
    of the step, e.g. for an evaluation. The time in an inner phase does not count for the outer one."""
    marker = StepMarker.running
    if marker is not None and not (isinstance(name, str) and name):
        raise TypeError(f"tcbench.phase: expected a name, got {name!r}")
    return _NOTHING if marker is None else _Phase(marker, name if counted else None)


_markers: dict[str, "StepMarker"] = {}
"""The markers of this process's loops by name."""

_NOTHING = contextlib.nullcontext()


class _MeasuredLoader:
    """A proxy for a loader. Each iteration over it is an epoch."""

    def __init__(self, loader: Any, marker: "StepMarker") -> None:
        self._loader, self._marker = loader, marker
        self._only_iteration: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # asked for while an object is copied, before it has a loader
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, setting: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, setting)
        else:
            setattr(self._loader, name, setting)

    def __copy__(self) -> "_MeasuredLoader":
        return _MeasuredLoader(self._loader, self._marker)

    def __reduce__(self) -> Any:
        return _identity, (self._loader,)  # another process gets the loader

    def __getitem__(self, key: Any) -> Any:
        return self._loader[key]

    def __next__(self) -> Any:
        if self._only_iteration is None:
            self._only_iteration = iter(self)
        return next(self._only_iteration)

    next = __next__  # Chainer's updaters call it

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        self._marker.begin_epoch()
        try:
            while True:
                if self._marker.next_batch() and not self._marker.goes_on:
                    sys.exit(0)
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                self._marker.arrived(batch)
                yield batch
        finally:
            self._marker.pause()


def _identity(loader: Any) -> Any:
    """Return the loader."""
    return loader


class StepMarker:
    """Marks the steps of one loop in one process, for loops that own their iteration: call `next_batch` when the next
    batch is requested, `arrived` when it is there, and `pause` before anything that is not training.

    The parameters are those of `steps`, and `loader` is asked for its batch size and its workers. `items`,
    `batches_per_step` and `loader` can be set until the first step. The process connects at its first step, so a
    process that only loads data never does, and a forked child marks nothing. All marks are kept in flat arrays,
    which Python's garbage collector does not visit: it would take more time with every step."""

    running: "StepMarker | None" = None
    """The marker whose step is running in this process."""

    def __init__(
        self, name: str = "train", items: Any = None, unit: str = "samples", every: int = 1, loader: Any = None
    ) -> None:
        if not (isinstance(name, str) and isinstance(unit, str)):
            raise TypeError(f"tcbench.steps: name and unit: expected texts, got {name!r} and {unit!r}")
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"tcbench.steps: every: expected a whole number of batches of at least 1, got {every!r}")
        if items is not None and not callable(items):
            _count(items, None)
        self._name, self._unit = name, unit
        self.items, self.batches_per_step, self.loader = items, every, loader
        self._connection: _Connection | None = None
        self._process = 0
        self._over, self._is_complete = SOCKET not in os.environ, False
        self.goes_on = False
        self._warm_up_steps = self._steps = self._block = self._reported_ns = self._in_steps_ns = 0
        self._clock = _Clock()
        self._names: list[str | None] = [None]
        self._done = array("q")  # of each finished step: begin, end, whether it is the first of an epoch
        self._spans = array("q")  # of each part of a step in a phase: step, name, begin, end
        self._in_step, self._starts_epoch = False, True
        self._begin = self._batches = self._first_span = self._left_out_ns = self._entered = 0
        self._phases: list[int] = []

    @property
    def measuring(self) -> bool:
        """Whether tcbench still needs steps of this loop from this process."""
        return not self._over and self._process in (0, os.getpid())

    @property
    def needs_batch(self) -> bool:
        """Whether `arrived` needs the batch, to count its items."""
        is_counted = self._connection is not None and self._connection.items is not None
        return self.measuring and callable(self.items) and not is_counted

    @property
    def in_step(self) -> int | None:
        """The number of the running step; None between steps."""
        return self._finished if self._in_step else None

    @property
    def _finished(self) -> int:
        """The number of finished steps."""
        return len(self._done) // 3

    def begin_epoch(self) -> None:
        """Check that no other iteration is within a step. Raises RuntimeError: the steps would be mixed up."""
        if self._in_step and self.measuring:
            raise RuntimeError(f"tcbench.steps: two loops named {self._name!r} run at once: give each a name=")

    def next_batch(self) -> bool:
        """Mark that the loop requests its next batch: this ends the running step, and another one begins. Return True
        when all steps have been measured, so that the loop can end; unless `goes_on`, it should."""
        if not self.measuring:
            return self._is_complete
        if self._connection is None and not self._connect():
            return False
        now = self._clock.mark()
        if self._in_step:
            self._batches += 1
            if self._batches < self.batches_per_step:
                self.enter(INPUT, now)
                return False
            now = self._end_step(now)
            if self._over:
                return self._is_complete
        if self._finished == self._warm_up_steps:
            _synchronise()
            now = self._clock.mark()
        self._in_step, StepMarker.running = True, self
        self._begin, self._batches, self._first_span, self._left_out_ns = now, 0, len(self._spans), 0
        self._phases.clear()
        self.enter(INPUT, now)
        return False

    def arrived(self, batch: Any = None) -> None:
        """Mark that the batch is there, which ends the phase `input`."""
        if not self._in_step or not self.measuring:
            return
        self.leave()
        if self._connection is not None and self._connection.items is None:
            self._connection.items = _count(self.items, batch)

    def pause(self) -> None:
        """Mark that what follows does not train, such as an evaluation. The step that has begun is dropped. The next
        one counts as the first step of an epoch."""
        if self._in_step:
            del self._spans[self._first_span :]
        self._in_step, self._starts_epoch = False, True
        if StepMarker.running is self:
            StepMarker.running = None
        if self._connection is not None and self.measuring:
            self._report()

    def enter(self, name: str | None, now: int | None = None) -> None:
        """Begin a phase in the running step, inside any phase that has begun. Time in the phase None is left out."""
        self._close_span(self._clock.mark() if now is None else now)
        if name not in self._names:
            self._names.append(name)
        self._phases.append(self._names.index(name))

    def leave(self) -> None:
        """End the phase that began last."""
        self._close_span(self._clock.mark())
        if self._phases:
            self._phases.pop()

    def _connect(self) -> bool:
        """Connect this process, and return whether tcbench measures this loop in it."""
        self._process = os.getpid()
        self._connection = _Connection(os.environ[SOCKET])
        workers, factor = (getattr(self.loader, key, None) or 0 for key in ("num_workers", "prefetch_factor"))
        plan = self._connection.ask(
            "hello",
            name=self._name,
            unit=self._unit,
            rank=_rank(),
            pid=self._process,
            batch_size=None if self.items is not None else _positive_int(getattr(self.loader, "batch_size", None)),
            batches_per_step=self.batches_per_step,
            prefetch=workers * factor,
        )
        self._over = not plan["measured"]
        if not self._over:
            self._warm_up_steps, self.goes_on = plan["warm_up"], plan["goes_on"]
        return not self._over

    def _close_span(self, now: int) -> None:
        """Add the time since the last change of phase to the innermost phase."""
        if self._phases and self._in_step:
            self._spans.extend((self._finished, self._phases[-1], self._entered, now))
            if not self._phases[-1]:
                self._left_out_ns += self._clock.ns[now] - self._clock.ns[self._entered]
        self._entered = now

    def _end_step(self, now: int) -> int:
        """End the running step at `now`, and return the begin of the next one. It is later than `now` after warm-up,
        after a block of steps in a gate, and after the last step, since the device is then synchronised."""
        connection = self._connection
        assert connection is not None
        step_ns = self._clock.ns[now] - self._clock.ns[self._begin]
        self._done.extend((self._begin, now, self._starts_epoch))
        self._in_step = self._starts_epoch = False
        timed = self._finished - self._warm_up_steps
        if timed > 0:
            self._in_steps_ns += step_ns - self._left_out_ns
        if timed > 0 and timed == self._steps:
            self._finish()
            return now
        if timed == 0 or (timed > 0 and self._block and timed % self._block == 0):
            _synchronise()
            answer = connection.ask("advance", finished=self._finished, step_s=max(1e-9, step_ns * 1e-9), waits=True)
            if timed == 0:
                self._steps, self._block = answer.get("steps", 0), answer.get("block", 0)
                self._over = not self._steps
                self._clock.use_device()
            return self._clock.mark()
        if self._clock.ns[now] - self._reported_ns > _REPORT_S * 1e9:
            self._report(max(1e-9, step_ns * 1e-9))
        return now

    def _report(self, step_s: float | None = None) -> None:
        """Tell tcbench how many steps are finished."""
        self._reported_ns = time.perf_counter_ns()
        if self._connection is not None:
            self._connection.tell("advance", finished=self._finished, step_s=step_s, waits=False)

    def _finish(self) -> None:
        """Send what was measured. The loop is over for tcbench."""
        connection, clock = self._connection, self._clock
        assert connection is not None
        clock.mark()
        _synchronise()
        synchronised_ns = time.perf_counter_ns()
        pass_ns = synchronised_ns - clock.ns[self._done[3 * self._warm_up_steps]]
        over = {"finished": self._finished, "left_out_s": max(0.0, (pass_ns - self._in_steps_ns) * 1e-9)}
        # The result of many steps takes long to send.
        connection.tell("advance", **over, step_s=None, waits=False, resident_bytes=_peak_resident_bytes())
        connection.tell(
            "result",
            warm_up=self._warm_up_steps,
            names=self._names,
            steps=self._done.tolist(),
            spans=self._spans.tolist(),
            host_ns=clock.ns.tolist(),
            device_s=clock.device_s(),
            synchronised_ns=synchronised_ns,
            items=connection.items,
            **_facts(),
        )
        self._over, self._is_complete, StepMarker.running = True, True, None


class _Clock:
    """Marks of the host's time and, from `use_device` on, events in the GPU's current stream. A mark is its index in
    `ns`."""

    def __init__(self) -> None:
        self.ns = array("q")
        self._record: Callable[[], Any] | None = None
        self._events: list[Any] = []

    def use_device(self) -> None:
        """Record an event at each further mark if the process uses a GPU."""
        self._record = _event_recorder()

    def mark(self) -> int:
        """Set a mark and return its number."""
        self.ns.append(time.perf_counter_ns())
        if self._record is not None:
            self._events.append(self._record())
        return len(self.ns) - 1

    def device_s(self) -> list[float] | None:
        """Return the device's time of each event in seconds since the first; None without events. They must be done.
        Adds up times between neighbours, since CUDA gives the time between two events in single precision."""
        between_s = itertools.starmap(_elapsed_s, itertools.pairwise(self._events))
        return [*itertools.accumulate(between_s, initial=0.0)] if self._events else None


def _elapsed_s(begin: Any, end: Any) -> float:
    """Return the seconds between two events of PyTorch or CuPy."""
    if hasattr(begin, "elapsed_time"):
        return float(begin.elapsed_time(end)) * 1e-3
    return float(sys.modules["cupy"].cuda.get_elapsed_time(begin, end)) * 1e-3


class _Phase:
    """The context of a phase in a running step."""

    def __init__(self, marker: StepMarker, name: str | None) -> None:
        self._marker, self._name, self._step = marker, name, marker.in_step

    def __enter__(self) -> None:
        if self._step is not None:
            self._marker.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._step is not None and self._step == self._marker.in_step:
            self._marker.leave()


class _Connection:
    """A connection to tcbench, one line of JSON per message. `items` is what a batch counts, if the loop says so."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(f"\0{name}")
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self.items: float | None = None

    def tell(self, kind: str, **message: Any) -> None:
        """Send a message."""
        self._socket.sendall(json.dumps({"type": kind, **message}).encode() + b"\n")

    def ask(self, kind: str, **message: Any) -> Any:
        """Send a message, wait for the answer and return it."""
        self.tell(kind, **message)
        return json.loads(self._lines.readline() or '{"measured": false}')


def _count(items: Any, batch: Any) -> float | None:
    """Return how many items a batch holds: `items`, or what it returns for the batch; None if unknown. Raises
    ValueError unless it is a finite number above 0."""
    if items is None:
        return None
    count = items(batch) if callable(items) else items
    with contextlib.suppress(TypeError, ValueError):
        if 0 < float(count) < math.inf:
            return float(count)
    raise ValueError(f"tcbench.steps: items: expected a number above 0, got {count!r}")


def _peak_resident_bytes() -> int:
    """Return the peak resident memory of this process (VmHWM); 0 if it is unknown."""
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/self/status", encoding="utf-8") as lines:
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 0


def _positive_int(number: Any) -> int | None:
    """Return a number if it is an int above 0, else None."""
    return number if isinstance(number, int) and number > 0 else None


def _rank() -> int | None:
    """Return this process's number among the ranks, as launchers set it; None without one."""
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdecimal()), None)


def _cuda(name: str) -> Any:
    """Return the module `torch` or `cupy` if the process has loaded it and uses a GPU with it, else None."""
    module = sys.modules.get(name)
    try:
        if module is None or not module.cuda.is_available():
            return None
        return module if name == "cupy" or module.cuda.is_initialized() else None
    except Exception:  # a partly imported or broken module computes nothing on a GPU
        return None


def _event_recorder() -> Callable[[], Any] | None:
    """Return a function that records an event in the GPU's current stream; None without a GPU."""
    torch, cupy = _cuda("torch"), _cuda("cupy")
    if torch is None and cupy is None:
        return None

    def record() -> Any:
        event = torch.cuda.Event(enable_timing=True) if torch is not None else cupy.cuda.Event()
        event.record()
        return event

    return record


def _synchronise() -> None:
    """Wait until everything that PyTorch, CuPy or JAX has launched in this process is done."""
    if (torch := _cuda("torch")) is not None:
        torch.cuda.synchronize()
    if (cupy := _cuda("cupy")) is not None:
        cupy.cuda.Device().synchronize()
    if (jax := sys.modules.get("jax")) is not None and hasattr(jax, "live_arrays"):
        jax.block_until_ready(jax.live_arrays())


def torch_threads() -> dict[str, int] | None:
    """Return PyTorch's numbers of threads within and between operators; None unless this process has loaded it."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        return {"intra": torch.get_num_threads(), "inter": torch.get_num_interop_threads()} if torch else None
    return None


def _facts() -> dict[str, Any]:
    """Return facts about the process for the record: packages with a version, PyTorch's threads and memory, files."""
    loaded = dict(sys.modules)
    versions = {
        name: version
        for name, module in loaded.items()
        # Read without `getattr`, by which a lazy module may import others. The user's own modules have no say.
        if isinstance(version := getattr(module, "__dict__", {}).get("__version__"), str)
        and "." not in name
        and "-packages/" in (getattr(module, "__file__", None) or "")
    }
    cuda = _cuda("torch")
    return {
        "packages": versions,
        "threads": torch_threads(),
        "device_peak_bytes": None if cuda is None else cuda.cuda.max_memory_reserved(),
        "files": sorted({file for module in loaded.values() if (file := getattr(module, "__file__", None))}),
    }
