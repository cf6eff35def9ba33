"""Devices and kinds of devices: finding, describing, watching and profiling a device, and opening a session on it.

Each kind is a folder next to this module with a module `kind` that defines KIND. No code outside that folder tests for
the kind's name. This module defines the interface of a kind, the table of kinds, and what a selector (`auto`, `cpu`,
`cuda:N`) means."""

import contextlib
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from tcbench.core.errors import SelectionError
from tcbench.core.finding import Finding
from tcbench.core.packages import Package
from tcbench.core.progress import Progress
from tcbench.core.record import CudnnSettings, GpuFacts, GpuSamples, PlanChoice, Simulated
from tcbench.core.recording import Activity, ApiCall
from tcbench.engine import accelerators
from tcbench.engine.accelerators.protocol import Accelerator, Array, Reducer, use
from tcbench.engine.session import Clock
from tcbench.engine.work import Work
from tcbench.engine.world import World
from tcbench.hardware import machine
from tcbench.hardware.gpus import GpuFile, GpuProperties
from tcbench.hardware.software import Support


@dataclass(frozen=True)
class Device:
    """A device.

    `name` is the kind's name, with a number if there can be several ("cpu", "cuda:0"). `title` is the manufacturer's
    name. `instructions` are a processor's features by their names in Linux."""

    name: str
    title: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    instructions: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        """The name of the device's kind."""
        return self.name.partition(":")[0]

    @property
    def machine(self) -> str:
        """The name of the folder for results of this device."""
        return kind_of(self.name).machine(self.title)


class Watch(Protocol):
    """A sampler of a device's clocks, power and temperature during a trial."""

    def stop(self, timed_from_s: float | None, timed_to_s: float | None) -> GpuSamples:
        """Stop sampling and return the samples. The arguments are the begin and end of the timed pass, in seconds since
        the trial's start."""


class Activities(Protocol):
    """A recorder, in this process, of a device's activities and of the API calls that caused them."""

    @property
    def calls(self) -> tuple[ApiCall, ...]: ...
    @property
    def activities(self) -> tuple[Activity, ...]: ...
    @property
    def dropped(self) -> int: ...

    def recording(self) -> contextlib.AbstractContextManager[None]:
        """Record while the context lasts."""


def _no_reducer(world: World) -> Reducer:
    raise NotImplementedError("this kind of device cannot run several ranks")


@dataclass(frozen=True)
class OpenDevice:
    """An accelerator that is open on a device, with its clock and memory counter.

    `enter` is a context that the accelerator needs while it is used. `plans` returns the plans that a library chose.
    `memory_of` says whose memory `peak_bytes` counts. `busy_s` returns the device's busy time so far, or None if
    unknown. `reducer` returns the object that sums arrays over the ranks of a world."""

    accelerator: Accelerator
    clock: Clock
    peak_bytes: Callable[[], int]
    enter: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    plans: Callable[[], tuple[PlanChoice, ...]] = tuple
    memory_of: Literal["process", "device"] = "device"
    busy_s: Callable[[], float | None] = lambda: None
    reducer: Callable[[World], Reducer] = _no_reducer

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Return a context in which operations launch on this accelerator. It lasts as long as a session."""
        with self.enter(), use(self.accelerator):
            yield

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Return the peak memory in bytes, and whether it is the process's or the device's."""
        return self.peak_bytes(), self.memory_of

    def value(self, array: Array) -> float | None:
        """Wait for an array of one number and return the number; None on an accelerator that does not compute."""
        number = float(self.accelerator.download(array))
        return number if self.accelerator.computes else None


@dataclass(frozen=True)
class Way:
    """The plan or kernel with which a device would do an operation.

    `implementation` is the plan's tag or the kernel's name. It is None if there is none (`problem` says why) or if it
    was not checked. `workspace_bytes` is needed in addition to the operands."""

    implementation: str | None
    workspace_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Prospects:
    """The plans and kernels with which a device that need not be present would do some operations.

    `way` takes an operation and its cell's workspace limit in bytes. `library` is the version that made the plans.
    `plans_unchecked` and `kernels_unchecked` say why this machine could not determine plans or kernels, or are None.
    An unchecked plan is assumed to need the whole workspace limit."""

    way: Callable[[Work, int], Way]
    library: str | None
    plans_unchecked: str | None
    kernels_unchecked: str | None


class DeviceKind:
    """A kind of device, such as CPUs or CUDA GPUs.

    Subclasses declare its properties and override what it can do. By default, devices of a kind cannot be watched,
    profiled or forecast, and cannot run tcbench's own operations."""

    name: ClassVar[str]
    noun: ClassVar[str]
    """The word for one device in a sentence: "GPU"."""
    is_host: ClassVar[bool] = False
    """Whether this kind is the host's processor: it always exists, has no number, and is the fallback of `auto`."""
    simulates: ClassVar[str | None] = None
    """The name of the kind that this kind simulates, whose program it runs; `auto` never selects a simulated device."""
    assumed_flops_s: ClassVar[float]
    """The rate of a typical device in training, from which a run's time is estimated before any trial."""
    assumed_startup_s: ClassVar[float] = 5.0
    """The start-up time of a trial, for the same estimate."""
    budget_s: ClassVar[float] = 240.0
    """The default time budget of a run."""
    packages: tuple[Package, ...] = ()
    """Packages that tcbench's operations on this kind need, in addition to those that are always installed."""
    distributions: tuple[str, ...] = ()
    """Distributions whose versions a record of a run on this kind stores."""
    recorder: ClassVar[str | None] = None
    """The name in `profile --tool` of the tool that `activities` uses."""

    @property
    def selector(self) -> str:
        """The placeholder for a device of this kind on the command line: "cpu", "cuda:N"."""
        return self.name if self.is_host else f"{self.name}:N"

    def devices(self) -> tuple[Device, ...]:
        """Return all devices of this kind on this machine; a device's number is its index."""
        raise NotImplementedError

    def select(self, number: str) -> Device:
        """Return the device that a selector names after the colon ("" if it has no colon). Raises SelectionError."""
        if not re.fullmatch(r"\d*", number, re.ASCII) or (self.is_host and number):
            raise SelectionError(f"expected {_expected()}")
        if absence := self.absence():
            raise SelectionError(f"{absence}; check with `tcbench doctor`, or use --device {host_device().name}")
        devices = self.devices()
        if int(number or 0) >= len(devices):
            names = ", ".join(f"{device.name} ({device.title})" for device in devices)
            raise SelectionError(f"no such {self.noun}; this machine has {names}")
        return devices[int(number or 0)]

    def of_rank(self, device: str, local_rank: int) -> str:
        """Return the device of rank `local_rank` on a host whose first rank has `device`. By default ranks share it."""
        return device

    def rank_problem(self, device: str, local_ranks: int) -> str | None:
        """Return why this machine lacks devices for `local_ranks` ranks, the first of which has `device`; else None."""
        return None

    def absence(self) -> str | None:
        """Return why there is no device of this kind, on one line; None if there is one."""
        return None if self.devices() else f"no {self.noun}"

    def machine(self, title: str) -> str:
        """Return the name of the folder under `results/` for a device with this title."""
        return machine.slug(title)

    def facts(self, device: str) -> GpuFacts | None:
        """Return the device's facts for a record; None for a device that is not present."""
        return None

    def simulated(self, device: str, host_speed: float) -> Simulated | None:
        """Return the facts of a simulation for a record; None for real devices."""
        return None

    def library(self) -> str | None:
        """Return the library that computes tcbench's operations, with its version. None if the versions of packages,
        which a record stores anyway, determine it."""
        return None

    def shortfall(self) -> str | None:
        """Return why no faster library is used and the command that installs it; None if the fastest is used."""
        return None

    def findings(self) -> Iterator[Finding]:
        """Yield findings of `doctor` on this kind's drivers, libraries and devices. Never raises."""
        return iter(())

    def watch(self, device: str, start: float) -> Watch | None:
        """Start a sampler in another process; None if there is nothing to sample. `start` is the trial's start by
        `time.monotonic`."""
        return None

    def synchronize(self) -> None:
        """Wait for all work that this process has given to its device, on every stream."""

    def profiled(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which an external profiler records the steps."""
        return contextlib.nullcontext()

    def activities(self) -> Activities:
        """Return a recorder that works inside this process. Raises TraceError if it is not installed."""
        raise NotImplementedError

    def recorder_problem(self) -> str | None:
        """Return why `activities` cannot record here and the remedy; None if it can."""
        return f"no tool records the activity of a {self.noun}"

    def nsys_options(self, version: tuple[int, int]) -> tuple[str, ...]:
        """Return the options of this version of Nsight Systems that select what it traces."""
        return ("--trace=nvtx",)

    def out_of_memory(self, device: str, error: Exception) -> Exception | None:
        """Return an out-of-memory error with details if `error` means that; otherwise None."""
        return None

    def open(self, device: str, settings: CudnnSettings, threads: int, host_speed: float = 1.0) -> OpenDevice:
        """Open an accelerator on the device. Imports the libraries that drive it.

        `threads` is the number of host threads. `host_speed` is 1 except on simulated devices
        (`tcbench.core.record.Cell`)."""
        raise NotImplementedError

    def build_ahead(
        self, device: str, works: Callable[[GpuProperties], Iterable[tuple[Work, CudnnSettings]]], progress: Progress
    ) -> str:
        """Build in parallel, before a run, what its trials would otherwise build one after another.

        `works` takes a GPU's properties and returns the run's operations with their cells' settings. Returns a sentence
        for the user about what already existed, or "". Callers must expect any exception and continue without it:
        trials build what is missing."""
        return ""

    def ceilings(self, device: str, threads: int) -> dict[str, Any]:
        """Measure the device's ceilings, in the form that `tcbench.run.ceilings` stores."""
        raise NotImplementedError

    def absent(self, figures: GpuFile) -> Device | None:
        """Return the device that published figures describe; None if it is not of this kind."""
        return None

    def support(self, compute_capability: tuple[int, int]) -> Support | None:
        """Return the software versions that support a compute capability; None if unknown."""
        return None

    def misfit(self, figures: GpuFile) -> str | None:
        """Return why the software installed here does not support an absent device and the remedy; None if it does."""
        return None

    def prospects(
        self, works: Iterable[tuple[Work, int]], figures: GpuFile, *, fresh: bool, processes: int, progress: Progress
    ) -> Prospects:
        """Return how an absent device would do some operations. `works` has operations with their workspace limits.

        Limits are in bytes. `figures` are the device's published figures. `fresh` ignores cached answers. `processes`
        is the number of processes to use."""
        raise NotImplementedError


@functools.cache
def device_kinds() -> Mapping[str, DeviceKind]:
    """Return all kinds of devices by name: the host first, the others in alphabetical order."""
    folders = [module.name for module in pkgutil.iter_modules(accelerators.__path__) if module.ispkg]
    kinds = [importlib.import_module(f"{accelerators.__name__}.{folder}.kind").KIND for folder in folders]
    return {kind.name: kind for kind in sorted(kinds, key=lambda kind: (not kind.is_host, kind.name))}


def kind_of(device: str) -> DeviceKind:
    """Return the kind of a device by the device's name. Raises SelectionError for an unknown kind."""
    kind = device_kinds().get(device.partition(":")[0])
    if kind is None:
        raise SelectionError(f"device {device}: expected {_expected()}")
    return kind


def index_of(device: str) -> int:
    """Return the number in a device's name; 0 if it has none."""
    return int(device.partition(":")[2] or 0)


def host_device() -> Device:
    """Return the host's processor."""
    return host_kind().devices()[0]


def find_device(selector: str, serving: Mapping[str, Package | None]) -> Device:
    """Return the device that a selector means. Raises SelectionError.

    `serving` maps each kind that a backend runs on to a package that is missing for it, or None. `auto` selects the
    first real device other than the host whose packages are installed, otherwise the host."""
    if selector == "auto":
        real_kinds = (kind for kind in device_kinds().values() if not kind.is_host and kind.simulates is None)
        ready = (kind for kind in real_kinds if serving.get(kind.name, _NONE) is None)
        return next((device for kind in ready for device in kind.devices()), host_device())
    name, _, number = selector.partition(":")
    kind = device_kinds().get(name)
    if kind is None or selector.endswith(":"):
        raise SelectionError(f"--device {selector}: expected {_expected()}")
    try:
        device = kind.select(number)
    except SelectionError as error:
        raise SelectionError(f"--device {selector}: {error}") from None
    missing = None if kind.is_host else serving.get(kind.name, _NONE)
    if missing is _NONE:
        raise SelectionError(
            f"--device {selector}: no backend of this scenario runs on a {kind.noun}; use --device {host_device().name}"
        )
    if missing is not None:
        raise SelectionError(f"--device {selector}: needs the package {missing.module}: {missing.install}")
    return device


_NONE = Package("", "")
"""A placeholder for a kind that no backend runs on."""


def host_kind() -> DeviceKind:
    """Return the kind that is the host's processor."""
    return next(kind for kind in device_kinds().values() if kind.is_host)


def _expected() -> str:
    *selectors, last = ["auto", *(kind.selector for kind in device_kinds().values())]
    return f"{', '.join(selectors)} or {last}"
