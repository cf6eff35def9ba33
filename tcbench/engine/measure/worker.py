"""The worker process: it reads a Cell from standard input and sends messages and one result to a pipe.

Usage: `python -m tcbench.worker FD [PROFILE]`. PROFILE is a ProfileRequest in JSON, which asks for a recording of the
profiled pass. Whatever happens becomes a Finished message. The runner makes a Record from it, or from its absence.
Libraries may print to standard output and error, which become the log."""

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

from tcbench import marks
from tcbench.core import messages, recording
from tcbench.core.errors import ScenarioError, TcbenchError
from tcbench.core.messages import SEND, Building, Finished, Message, ProfileRequest
from tcbench.core.record import DEFAULT_BACKEND, Cell, Environment, Measurement, RankPart
from tcbench.core.recording import Title
from tcbench.engine import affinity
from tcbench.engine.accelerators.device import find_device, kind_of
from tcbench.engine.measure.checks import TrialChecks
from tcbench.engine.measure.pipe import in_turns, serve
from tcbench.engine.measure.sensitivity import ImpossibleError
from tcbench.engine.session import Phase, Probed, Session
from tcbench.engine.world import current
from tcbench.hardware import machine

if TYPE_CHECKING:
    from tcbench.engine.accelerators.device import Activities

Send = Callable[[Message], None]


def main() -> None:
    """Measure the cell on standard input."""
    request = msgspec.json.decode(sys.argv[2], type=ProfileRequest) if len(sys.argv) > 2 else None
    cores = affinity.first(messages.core_limit())

    def work(cell: Cell, send: Send) -> Finished:
        """Measure a cell on the requested cores, or on all of them; a thread that drives a device gets its own core."""
        send = in_turns(send)
        if cores:
            return run_on(cores, cell, send, request)
        return run_beside_feed(cell, send, request) if _drives_device(cell) else run(cell, send, request)

    serve(msgspec.json.Decoder(Cell).decode, work)


def run(
    cell: Cell,
    send: Send,
    request: ProfileRequest | None = None,
    on_session: Callable[[Session], None] = lambda _: None,
) -> Finished:
    """Build and measure a cell. Errors become part of the result.

    `request` asks for a recording of the profiled pass. `on_session` is called with the session before its first
    step."""
    environment: Environment | None = None
    token = SEND.set(send)
    gc.disable()  # until the first step: imports and building make many objects and no garbage
    try:
        send(Building("imports", os.getpid()))
        from tcbench.engine.backends import initial

        needs_initial_weights = not cell.is_own and kind_of(cell.device).simulates is None
        with initial.prefetch(cell.seed) if needs_initial_weights else contextlib.nullcontext():
            environment = describe(cell)
            if cell.command is not None:
                from tcbench.engine.measure import program

                measurement, environment = program.measure(cell, cell.command, environment, send)
                return Finished("ok", None, measurement, environment)
            measurement = measure_cell(cell, send, request, environment.device_name, on_session)
        if cell.is_own:
            loaded = machine.sources(machine.loaded_files())
            environment = msgspec.structs.replace(
                environment, sources=loaded, threads=marks.torch_threads() or msgspec.UNSET
            )
    except Exception as error:
        return Finished(*failure(cell, error), None, environment)
    finally:
        gc.enable()
        SEND.reset(token)
    return Finished("ok", None, measurement, environment)


def _drives_device(cell: Cell) -> bool:
    """Return whether a real device computes the cell with tcbench's own input."""
    kind = kind_of(cell.device)
    return not (kind.is_host or kind.simulates or cell.is_own)


def run_beside_feed(cell: Cell, send: Send, request: ProfileRequest | None = None) -> Finished:
    """Build and measure a cell while keeping one core free for the thread that drives the device.

    Threads that are started while the session is built, such as the input's, do not use that core. The driving thread
    itself is not bound to it: libraries that start threads at their first call (OpenCV, OpenMP) would inherit that."""
    machine.usable_cpus()  # caches the number before this process binds itself
    processors = affinity.first()
    affinity.bind(affinity.split_core(processors)[1])
    return run(cell, send, request, lambda _: affinity.bind(processors))


def run_on(
    cores: tuple[int, ...],
    cell: Cell,
    send: Send,
    request: ProfileRequest | None = None,
    rank: int = 0,
    on_session: Callable[[Session], None] = lambda _: None,
) -> Finished:
    """Build and measure a cell as one rank on these cores (empty: not bound), with the rank's part in the measurement.
    If a device computes, the thread that drives it gets one core, and the threads of the input get the others."""
    machine.usable_cpus()  # caches the number before this process binds itself; the machine's name depends on it
    splits = not kind_of(cell.device).is_host and len(cores) > 1
    driver, feed = affinity.split_core(cores) if splits else (cores, cores)
    affinity.bind(feed)

    def bind_driver(session: Session) -> None:
        affinity.bind(driver)
        on_session(session)

    finished = run(cell, send, request, bind_driver)
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
    """Return the status of a job that raised this error, and the reason on one line. The traceback of an unexpected
    error is printed, and so becomes part of the log."""
    if isinstance(error, TcbenchError):
        return "failed", _line(error) or type(error).__name__
    traceback.print_exc()
    memory_error = _memory_error(cell, error)
    if memory_error is not None:
        return "oom", f"out of memory: {_line(memory_error) or 'an allocation failed'}"
    notes = [" ".join(note.split()) for note in getattr(error, "__notes__", ())]
    if cell.is_own and (place := _place_in_project(error)) is not None:
        notes.append(f"at {place}")
    if isinstance(error, StopIteration):
        notes.append("the input ended: let it start again, since tcbench takes as many steps as it needs")
    where = f" ({', '.join(notes)})" if notes else ""
    return "failed", f"{type(error).__name__}: {_line(error)}{where}"


def _place_in_project(error: Exception) -> str | None:
    """Return the file and line of the user's project that raised an error; None if it was raised elsewhere."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if files := machine.files_in_project([frame.f_code.co_filename]):
            return f"{files[0]}:{line}"
    return None


def measure_cell(
    cell: Cell, send: Send, request: ProfileRequest | None, device_name: str, on_session: Callable[[Session], None]
) -> Measurement:
    """Open the cell's session, measure it and close it, and write the recording if one is requested."""
    from tcbench.engine.backends import backend
    from tcbench.engine.measure import loop, ranges
    from tcbench.engine.measure.rates import rate_problem

    cell_backend = backend(cell.backend)
    problem = cell_backend.RUNGS.problem(cell.rungs)
    if problem:  # possible if another version of tcbench made the cell
        raise ScenarioError(f"config '{cell.config}': {problem}")
    kind = kind_of(cell.device)
    activities = kind.activities() if request is not None and request.activities else None
    # Without recorders, and on the host, no profiled pass is necessary.
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
    session = cell_backend.open_session(cell)
    try:
        on_session(session)
        gc.freeze()
        gc.enable()
        turns_max_time_s = messages.turns_max_time_s()
        checked = profiling is None and kind.simulates is None and current().size == 1
        checks = TrialChecks(session, cell, kind.synchronize) if checked else None
        settings = msgspec.structs.replace(cell.measure, max_time_s=turns_max_time_s or cell.measure.max_time_s)
        measurement = loop.measure(session, settings, send, profiling=profiling, checks=checks)
        measurement = msgspec.structs.replace(measurement, turns_max_time_s=turns_max_time_s or msgspec.UNSET)
        precision = session.probes().precision if isinstance(session, Probed) else None
        if problem := rate_problem(cell, measurement, device_name, precision):
            raise ImpossibleError(problem)
    except Exception as error:
        phase = _raised_in(error, session.phases)
        if phase is not None:
            error.add_note(f"in phase '{phase}'")
        with contextlib.suppress(Exception):
            session.close()  # may raise a consequential error, which would say less
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
    """Return the name of the phase whose function raised the error, or None if the error came from elsewhere. It is
    found in the traceback, so that the hot loop need not keep track."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for phase in phases:
            if frame.f_code is getattr(phase.run, "__code__", None):
                return phase.name
    return None


@contextlib.contextmanager
def _profilers(cell: Cell, activities: Activities | None) -> Iterator[None]:
    """Make an external profiler and the recorder of activities record while the context lasts.

    The recorder starts first: CUPTI delays the first call in each thread until it has allocated and zeroed a buffer
    (CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER). That call is then made by `profiled` and not by the first step."""
    recording = contextlib.nullcontext() if activities is None else activities.recording()
    with recording, kind_of(cell.device).profiled():
        yield


def _title(cell: Cell, device_name: str) -> str:
    """Return the JSON by which a tool's report identifies the cell (`tcbench.tracing.nsys` reads it)."""
    title = Title(
        label=cell.label, device=cell.device, device_name=device_name, batch_size=cell.batch_size, unit=cell.unit
    )
    return msgspec.json.encode(title).decode()


def describe(cell: Cell) -> Environment:
    """Return the facts about this machine and its libraries, as this process sees them."""
    git = threading.Thread(target=machine.commit)  # runs git during the imports; the answer is cached
    git.start()
    from tcbench.engine.backends import backend

    cell_backend = backend(cell.backend)
    target = find_device(cell.device, dict.fromkeys(cell_backend.DEVICES))
    kind = kind_of(cell.device)
    emulated = cell_backend.RUNGS.emulated(cell.rungs, target.instructions)
    facts: dict[str, Any] = {"machine": target.machine, "device_name": target.title, "blas": _blas()}
    facts |= {"gpu": kind.facts(cell.device), "simulated": kind.simulated(cell.device, cell.host_speed)}
    if cell.backend == DEFAULT_BACKEND:  # other backends do not use tcbench's accelerators
        facts |= {"accelerator": kind.library(), "shortfall": kind.shortfall()}
    git.join()
    return machine.environment(cell_backend.PACKAGES, emulated=emulated, **facts)


def _blas() -> str:
    """Return the name, version and kernels of the BLAS that NumPy uses. If NumPy's wheel contains none, return all BLAS
    libraries that are loaded, sorted, since threadpoolctl's order varies."""
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


def _memory_error(cell: Cell, error: Exception) -> Exception | None:
    """Return an error that says that the host or the device ran out of memory, or None if `error` does not mean
    that."""
    device_error = kind_of(cell.device).out_of_memory(cell.device, error)
    return device_error or (error if isinstance(error, MemoryError) else None)


def _line(error: BaseException) -> str:
    """Return the error's message on one line."""
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
