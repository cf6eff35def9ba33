"""Devices, and the kinds of them: how one is found, described, watched, profiled, and how a session opens on it.

A kind is one folder beside this module, whose module `kind` has it as KIND; nothing outside that folder asks for its
name. Owns the contract of a kind, the table of kinds, and which device a selector (`auto`, `cpu`, `cuda:N`) means."""

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
    """A device. `name` is its kind's, with a number where there may be several ("cpu", "cuda:0"); `title` is what its
    maker calls it. `instructions`: a processor's features by Linux's names."""

    name: str
    title: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None
    instructions: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def machine(self) -> str:
        """The folder of its results."""
        return kind_of(self.name).machine(self.title)


class Watch(Protocol):
    """Something that watches a device while a trial runs."""

    def stop(self, timed_from_s: float | None, timed_to_s: float | None) -> GpuSamples:
        """End it. The times are those of the timed pass, since the trial's start."""


class Activities(Protocol):
    """Records in this process what a device does and which calls caused it."""

    @property
    def calls(self) -> tuple[ApiCall, ...]: ...
    @property
    def activities(self) -> tuple[Activity, ...]: ...
    @property
    def dropped(self) -> int: ...

    def recording(self) -> contextlib.AbstractContextManager[None]:
        """Record while it is held."""


def _no_reducer(world: World) -> Reducer:
    raise NotImplementedError("a kind of device without a reducer has no ranks")


@dataclass(frozen=True)
class OpenDevice:
    """An accelerator on a device, with its clock and its account of memory. `enter`: what the accelerator itself needs
    held. `plans`: those that a library chose. `busy_s`: the time it has worked so far, where that can be told.
    `reducer`: makes what sums its arrays over the ranks of a world."""

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
        """Held from build to end: operations launch here."""
        with self.enter(), use(self.accelerator):
            yield

    def peak_memory(self) -> tuple[int, Literal["process", "device"]]:
        """Bytes, and of what."""
        return self.peak_bytes(), self.memory_of

    def value(self, array: Array) -> float | None:
        """The one number in an array, once it is there; None where nothing computes."""
        number = float(self.accelerator.download(array))
        return number if self.accelerator.computes else None


@dataclass(frozen=True)
class Way:
    """The way in which a device would do a piece of work. `by`: the plan's tag or the kernel's name; None where nothing
    does it (`problem` says why) or it was not checked. `workspace_bytes` is beside the operands."""

    by: str | None
    workspace_bytes: int = 0
    problem: str | None = None


@dataclass(frozen=True)
class Prospects:
    """The ways in which a device that need not be here would do some work. `way` takes a work and its cell's workspace
    limit (bytes). `library`: the version whose plans they are. `plans_unchecked` and `kernels_unchecked`: why there
    are no plans or kernels, where this machine lacks what it takes; the workspace is then the limit's."""

    way: Callable[[Work, int], Way]
    library: str | None
    plans_unchecked: str | None
    kernels_unchecked: str | None


class DeviceKind:
    """A kind of device. Subclasses declare it and override what it can do; by default a kind has nothing that could be
    watched, recorded or forecast, and a device of it runs no program of ours."""

    name: ClassVar[str]
    noun: ClassVar[str]
    """One of them, in a sentence: "GPU"."""
    is_host: ClassVar[bool] = False
    """There is always one, without a number, and it is what `auto` means where nothing else serves."""
    simulates: ClassVar[str | None] = None
    """The name of the kind whose devices it models: it runs their program, and `auto` never means one of it."""
    assumed_flops_s: ClassVar[float]
    """Reached by an ordinary one in training: the first guess of how long a run takes, before anything ran."""
    assumed_startup_s: ClassVar[float] = 5.0
    """That of a trial, by the same guess."""
    budget_s: ClassVar[float] = 240.0
    """Of a run that says nothing else."""
    packages: tuple[Package, ...] = ()
    """Needed by our operations on it, beyond what is always installed."""
    distributions: tuple[str, ...] = ()
    """Of which the versions belong in a record of a run on it."""
    recorder: ClassVar[str | None] = None
    """The tool (`profile --tool`) by which `activities` records."""

    @property
    def selector(self) -> str:
        """The name of one on the command line."""
        return self.name if self.is_host else f"{self.name}:N"

    def devices(self) -> tuple[Device, ...]:
        """All that are there; the number of one is its place."""
        raise NotImplementedError

    def named(self, which: str) -> Device:
        """The device of this kind that a selector names behind the colon, "" without one. Raises SelectionError."""
        if not re.fullmatch(r"\d*", which, re.ASCII) or (self.is_host and which):
            raise SelectionError(f"expected {_expected()}")
        if absence := self.absence():
            raise SelectionError(f"{absence}; `tcbench doctor` tells more, --device {host_device().name} works")
        there = self.devices()
        if int(which or 0) >= len(there):
            names = ", ".join(f"{device.name} ({device.title})" for device in there)
            raise SelectionError(f"no such {self.noun}; there is {names}")
        return there[int(which or 0)]

    def of_rank(self, device: str, local_rank: int) -> str:
        """The device of a host's rank `local_rank`, where the first has `device`. Ranks share one without a number."""
        return device

    def rank_problem(self, device: str, local_ranks: int) -> str | None:
        """Why this machine has no devices for so many ranks, the first of which has `device`; None where it has."""
        return None

    def absence(self) -> str | None:
        """Why there is none, on one line; None where there is one."""
        return None if self.devices() else f"no {self.noun}"

    def machine(self, title: str) -> str:
        """The folder under `results/` of a device that its maker calls so."""
        return machine.slug(title)

    def facts(self, device: str) -> GpuFacts | None:
        """A record's facts of it; None for one that is not there."""
        return None

    def simulated(self, device: str, host_speed: float) -> Simulated | None:
        """A record's facts of its simulation; None where devices of this kind are real."""
        return None

    def library(self) -> str | None:
        """The library that computes our operations there, with its version; None: packages' versions say it."""
        return None

    def shortfall(self) -> str | None:
        """Why that is not a faster library, with the command that puts it right; None where it is the fastest."""
        return None

    def findings(self) -> Iterator[Finding]:
        """`doctor`'s findings on the way to one of them; never raises."""
        return iter(())

    def watch(self, device: str, start: float) -> Watch | None:
        """Begin to watch it from another process; None: nothing to ask. `start`: of the trial, by `time.monotonic`."""
        return None

    def profiled(self) -> contextlib.AbstractContextManager[None]:
        """Held around the steps that an outside tool is to record."""
        return contextlib.nullcontext()

    def activities(self) -> Activities:
        """A recorder within the process (`recorder`). Raises TraceError where that is not installed."""
        raise NotImplementedError

    def recorder_problem(self) -> str | None:
        """Why `activities` cannot record here, with what mends it; None: it can."""
        return f"nothing records a {self.noun}"

    def nsys_options(self, version: tuple[int, int]) -> tuple[str, ...]:
        """Options of Nsight Systems of this version: what it traces."""
        return ("--trace=nvtx",)

    def out_of_memory(self, device: str, error: Exception) -> Exception | None:
        """The error that says that the device's memory is spent, where this error means that."""
        return None

    def open(self, device: str, settings: CudnnSettings, threads: int, host_speed: float = 1.0) -> OpenDevice:
        """An accelerator on the device; `threads` are those of the host, and `host_speed` is 1 but on a simulated
        device (`tcbench.core.record.Cell`). Imports what drives it."""
        raise NotImplementedError

    def build_ahead(
        self, device: str, works: Callable[[GpuProperties], Iterable[tuple[Work, CudnnSettings]]], progress: Progress
    ) -> str:
        """Build, by all cores, what the trials of a run would build one after another for these works.

        Return a sentence about what was built before, for whoever runs; empty if there is nothing to say. May raise
        anything: it is not needed."""
        return ""

    def ceilings(self, device: str, threads: int) -> dict[str, Any]:
        """Measure what it does at most, as `tcbench.run.ceilings` keeps it."""
        raise NotImplementedError

    def absent(self, figures: GpuFile) -> Device | None:
        """A device of this kind that need not be here; None where the figures describe none of this kind."""
        return None

    def support(self, compute_capability: tuple[int, int]) -> Support | None:
        """The software that serves devices of this compute capability; None where nothing is known of it."""
        return None

    def misfit(self, figures: GpuFile) -> str | None:
        """Why what is installed here does not serve an absent device, with what mends it; None: it does."""
        return None

    def prospects(
        self, works: Iterable[tuple[Work, int]], figures: GpuFile, *, fresh: bool, processes: int, progress: Progress
    ) -> Prospects:
        """How an absent device would do each work within its workspace limit (bytes). `fresh` ignores what is kept."""
        raise NotImplementedError


@functools.cache
def device_kinds() -> Mapping[str, DeviceKind]:
    """All kinds by name, the host first, then in alphabetical order."""
    folders = [module.name for module in pkgutil.iter_modules(accelerators.__path__) if module.ispkg]
    every = [importlib.import_module(f"{accelerators.__name__}.{folder}.kind").KIND for folder in folders]
    return {kind.name: kind for kind in sorted(every, key=lambda kind: (not kind.is_host, kind.name))}


def kind_of(device: str) -> DeviceKind:
    """The kind of a device's name. Raises SelectionError for one that this version does not know."""
    kind = device_kinds().get(device.partition(":")[0])
    if kind is None:
        raise SelectionError(f"device {device}: expected {_expected()}")
    return kind


def index_of(device: str) -> int:
    """The number in a device's name; 0 without one."""
    return int(device.partition(":")[2] or 0)


def host_device() -> Device:
    """The host's processor."""
    return host_kind().devices()[0]


def find_device(selector: str, serving: Mapping[str, Package | None]) -> Device:
    """The device that a selector means. `serving`: the kinds that the backends run on, with the package that is missing
    for each. `auto` takes the first device that is not the host when there is one and all is there to use it, else the
    host. Raises SelectionError."""
    if selector == "auto":
        real = (kind for kind in device_kinds().values() if not kind.is_host and kind.simulates is None)
        ready = (kind for kind in real if serving.get(kind.name, _NONE) is None)
        return next((device for kind in ready for device in kind.devices()), host_device())
    name, _, which = selector.partition(":")
    kind = device_kinds().get(name)
    if kind is None or selector.endswith(":"):
        raise SelectionError(f"--device {selector}: expected {_expected()}")
    try:
        device = kind.named(which)
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
"""Stands for a kind that no backend runs on."""


def host_kind() -> DeviceKind:
    """The host's processor as a kind."""
    return next(kind for kind in device_kinds().values() if kind.is_host)


def _expected() -> str:
    *others, last = ["auto", *(kind.selector for kind in device_kinds().values())]
    return f"{', '.join(others)} or {last}"
