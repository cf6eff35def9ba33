"""The worker process: one Cell (JSON) in on standard input, messages and one result out on a pipe.

Run as `python -m tcbench.worker FD [PROFILE]`; PROFILE is a ProfileRequest (JSON), which asks for a recording of the
profiled pass in a file of its own. Owns turning whatever happens into a Finished message; the runner turns that, or its
absence, into a Record. Standard output and error are free for libraries to write to: they become the log."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tcbench.core import messages, recording
from tcbench.core.errors import ScenarioError, TcbenchError
from tcbench.core.messages import SEND, Building, Finished, Message, ProfileRequest
from tcbench.core.record import Cell, Environment, Measurement, RankPart
from tcbench.core.recording import Title
from tcbench.engine import affinity
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.measure.pipe import in_turns, serve
from tcbench.engine.session import Phase, Session
from tcbench.hardware import machine

if TYPE_CHECKING:
    from tcbench.engine.accelerators.device import Activities

Send = Callable[[Message], None]


def main() -> None:
    """Run the cell that stands on standard input."""
    request = msgspec.json.decode(sys.argv[2], type=ProfileRequest) if len(sys.argv) > 2 else None
    cores = affinity.first(messages.core_limit())

    def work(cell: Cell, send: Send) -> Finished:
        send = in_turns(send)
        if cores:
            return run_on(cores, cell, send, request)
        return run_beside_feed(cell, send, request) if _drives_device(cell) else run(cell, send, request)

    serve(msgspec.json.Decoder(Cell).decode, work)


def run(
    cell: Cell, send: Send, request: ProfileRequest | None = None, opened: Callable[[Session], None] = lambda _: None
) -> Finished:
    """Build and measure one cell; never raises but on a signal. `opened` is called with its session before it runs."""
    environment: Environment | None = None
    token = SEND.set(send)
    gc.disable()  # until the first step: what is imported and built is a lot, and none of it garbage
    try:
        send(Building("imports", os.getpid()))
        from tcbench.engine.backends import initial

        draws = not cell.is_own and kind_of(cell.device).simulates is None
        with initial.prefetch(cell.seed) if draws else contextlib.nullcontext():
            environment = describe(cell)
            measurement = measured(cell, send, request, environment.device_name, opened)
        if cell.is_own:
            loaded = machine.sources(machine.loaded_files())
            environment = msgspec.structs.replace(environment, sources=loaded)
    except Exception as error:
        return Finished(*failure(cell, error), None, environment)
    finally:
        gc.enable()
        SEND.reset(token)
    return Finished("ok", None, measurement, environment)


def _drives_device(cell: Cell) -> bool:
    """Whether a real device computes the cell, with an input of ours: a user's own step starts its own threads."""
    kind = kind_of(cell.device)
    return not (kind.is_host or kind.simulates or cell.is_own)


def run_beside_feed(cell: Cell, send: Send, request: ProfileRequest | None = None) -> Finished:
    """Run as `run` does, with a core that threads started while the session is built, such as the input's, do not use:
    the thread that drives the device finds it free. This thread is not bound to that core, since libraries that start
    their threads at the first call (OpenCV, OpenMP) would get it alone for all of them."""
    machine.usable_cpus()  # before this process binds itself, as in `run_on`
    processors = affinity.first()
    affinity.bind(affinity.split_core(processors)[1])
    return run(cell, send, request, lambda _: affinity.bind(processors))


def run_on(
    cores: tuple[int, ...],
    cell: Cell,
    send: Send,
    request: ProfileRequest | None = None,
    rank: int = 0,
    opened: Callable[[Session], None] = lambda _: None,
) -> Finished:
    """The same as one rank, on these processors (none: not bound), with its part in the measurement. Where a device
    computes, the thread that drives it has a processor of its own, and those of the feed have the others."""
    machine.usable_cpus()  # before this process binds itself, so that its machine has the name that it has otherwise
    apart = not kind_of(cell.device).is_host and len(cores) > 1
    driver, feed = affinity.split_core(cores) if apart else (cores, cores)
    affinity.bind(feed)

    def bound(session: Session) -> None:
        affinity.bind(driver)
        opened(session)

    finished = run(cell, send, request, bound)
    measurement = finished.measurement
    if measurement is None:
        return finished
    part = RankPart(
        rank=rank,
        host=socket.gethostname(),
        cores=cores,
        device=cell.device,
        step_times_s=measurement.step_times_s,
        phases=measurement.phases,
        peak_memory_bytes=measurement.peak_memory_bytes,
    )
    return msgspec.structs.replace(finished, measurement=msgspec.structs.replace(measurement, ranks=(part,)))


def failure(cell: Cell, error: Exception) -> tuple[Literal["oom", "failed"], str]:
    """The status of a job that raised this, and the reason on one line. What is no message for users is printed, so
    that it stands in the log."""
    if isinstance(error, TcbenchError):
        return "failed", _line(error) or type(error).__name__
    traceback.print_exc()
    spent = _out_of_memory(cell, error)
    if spent is not None:
        return "oom", f"out of memory: {_line(spent) or 'an allocation failed'}"
    notes = [" ".join(note.split()) for note in getattr(error, "__notes__", ())]
    where = "".join(f" ({note})" for note in notes)
    return "failed", f"{type(error).__name__}: {_line(error)}{where}"


def measured(
    cell: Cell, send: Send, request: ProfileRequest | None, device_name: str, opened: Callable[[Session], None]
) -> Measurement:
    """Open the cell's session, measure it, close it; leave the recording that was asked for."""
    from tcbench.engine.backends import backend
    from tcbench.engine.measure import loop, ranges

    the_backend = backend(cell.backend)
    unknown = the_backend.RUNGS.problem(cell.rungs)
    if unknown:  # where another version of tcbench made the cell
        raise ScenarioError(f"config '{cell.config}': {unknown}")
    activities = kind_of(cell.device).activities() if request is not None and request.activities else None
    # Without them the counted steps tell the phases of what computes on the host.
    profiling = (
        None
        if request is None and not ranges.attached()
        else loop.Profiling(
            around=lambda: _profilers(cell, activities),
            layers=(request is not None and request.layers) or ranges.attached(),
            title=_title(cell, device_name),
            least_s=request.least_s if request is not None else 0.0,
        )
    )
    send(Building("model and input"))
    session = the_backend.open_session(cell)
    try:
        opened(session)
        gc.freeze()
        gc.enable()
        measurement = loop.measure(session, cell.measure, send, profiling=profiling)
    except Exception as error:
        phase = _raised_in(error, session.phases)
        if phase is not None:
            error.add_note(f"in phase '{phase}'")
        with contextlib.suppress(Exception):
            session.close()  # which may fail after that, and would say less
        raise
    session.close()
    measurement = loop.at_host_speed(measurement, cell.host_speed)
    if request is not None:
        Path(request.path).write_bytes(
            msgspec.json.encode(
                recording.Recording(
                    thread=threading.get_native_id(),
                    phases=tuple(phase.name for phase in measurement.phases),
                    spans=profiling.recorder.spans if profiling else (),
                    calls=activities.calls if activities else (),
                    activities=activities.activities if activities else (),
                    dropped=activities.dropped if activities else 0,
                )
            )
        )
    return measurement


def _raised_in(error: Exception, phases: Sequence[Phase]) -> str | None:
    """The phase whose function the error came through: known by its code, so that the hot loop need not watch."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for phase in phases:
            if frame.f_code is getattr(phase.run, "__code__", None):
                return phase.name
    return None


@contextlib.contextmanager
def _profilers(cell: Cell, activities: Activities | None) -> Iterator[None]:
    """Hold around the profiled pass what lets tools record: an outside one, and the activities' recorder. The recorder
    comes first: CUPTI makes the first call that it sees in a thread wait until a buffer has been made and zeroed
    (CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER), and that shall be `profiled`'s and not the first step's."""
    recording = contextlib.nullcontext() if activities is None else activities.recording()
    with recording, kind_of(cell.device).profiled():
        yield


def _title(cell: Cell, device_name: str) -> str:
    """The cell as a tool's report names it (`tcbench.tracing.nsys` reads it)."""
    title = Title(
        label=cell.label, device=cell.device, device_name=device_name, batch_size=cell.batch_size, unit=cell.unit
    )
    return msgspec.json.encode(title).decode()


def describe(cell: Cell) -> Environment:
    """The facts of this machine and its libraries, as this process sees them."""
    git = threading.Thread(target=machine.commit)  # it answers beside what is imported here, and is asked once
    git.start()
    from tcbench.core.record import DEFAULT_BACKEND
    from tcbench.engine.accelerators import device
    from tcbench.engine.backends import backend

    the_backend = backend(cell.backend)
    here = device.find_device(cell.device, dict.fromkeys(the_backend.DEVICES))
    kind = kind_of(cell.device)
    launches = cell.backend == DEFAULT_BACKEND  # any other computes by libraries of its own
    emulated = the_backend.RUNGS.emulated(cell.rungs, here.instructions)
    facts: dict[str, Any] = {"machine": here.machine, "device_name": here.title, "blas": _blas()}
    facts |= {"gpu": kind.facts(cell.device), "simulated": kind.simulated(cell.device, cell.host_speed)}
    if launches:
        facts |= {"accelerator": kind.library(), "shortfall": kind.shortfall()}
    git.join()
    return machine.environment(the_backend.PACKAGES, emulated=emulated, **facts)


def _blas() -> str:
    """The BLAS that NumPy calls, with its version and kernels; loads NumPy. Where its wheel brings none, all that are
    loaded, in an order of their own: threadpoolctl's differs from process to process."""
    import numpy  # noqa: F401  (loads the library that threadpoolctl then finds)
    import threadpoolctl

    loaded = [library for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
    numpys = [library for library in loaded if "/numpy.libs/" in library["filepath"]]
    return "; ".join(
        sorted(
            f"{library['internal_api']} {library['version']} {library.get('architecture') or ''}".strip()
            for library in numpys or loaded
        )
    )


def _out_of_memory(cell: Cell, error: Exception) -> Exception | None:
    """The error that says that memory was spent, the host's or the device's, if this is what happened."""
    spent = kind_of(cell.device).out_of_memory(cell.device, error)
    return spent or (error if isinstance(error, MemoryError) else None)


def _line(error: BaseException) -> str:
    """The error's message on one line."""
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
