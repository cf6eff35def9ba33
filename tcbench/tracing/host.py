"""Host profiles: taken by py-spy from outside, put together with the recording of the same steps, and kept as
speedscope files (www.speedscope.app), from which they are read back.

py-spy reads a process's Python stacks from another process, so that the steps run no code for it; it stops the process
for the moment of a sample. Its raw form is a line per stack: frames "NAME (FILE:LINE)" joined by ";", and a number of
samples (py-spy's README, "record").
"""

import contextlib
import os
import re
import shutil
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tcbench.core import files, process
from tcbench.core.errors import TraceError
from tcbench.core.groups import summed
from tcbench.core.host_profile import Frame, HostProfile, HostTool, Stack
from tcbench.core.record import Record
from tcbench.core.recording import Recording
from tcbench.core.text import plain

SUFFIX = ".speedscope.json"
RATE_HZ = 100
"""Samples per second. At each the process stands still while its stacks are read: at 200, steps of 0.34 s took a
quarter longer on two cores, and at 100, steps of 0.51 s a sixth."""

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_LONGEST_S = 600
_LOOP = ("profile", "tcbench/engine/measure/loop.py")
"""The function that runs the phases: the frame below it is a phase's."""

_FRAME = re.compile(r"(?P<name>.*) \((?P<file>.*?)(?::(?P<line>\d+))?\)")


def find() -> Path | None:
    """py-spy beside this Python, or on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    on_path = shutil.which("py-spy")
    return beside if beside.exists() else Path(on_path) if on_path else None


def problem(py_spy: Path) -> str | None:
    """Why py-spy may not attach here, in one line, or None. Asked of this process: like a worker, no child of its."""
    try:
        answer = process.ask([str(py_spy), "dump", "--pid", str(os.getpid())], limit_s=30)
    except (OSError, TimeoutError) as error:
        return f"py-spy does not run: {error}"
    return None if answer.code == 0 else f"py-spy may not attach: {answer.last_line}"


class PySpy:
    """Samples a process until it ends. Its thread only waits."""

    def __init__(self, py_spy: Path, pid: int, folder: Path) -> None:
        self._raw = folder / "py-spy.raw"
        self._trouble = ""
        options = ["--format", "raw", "--rate", str(RATE_HZ), "--duration", str(_LONGEST_S), "--output", str(self._raw)]
        # All threads' stacks, waiting ones too: a host that waits is what is looked for. Functions, not lines.
        options += ["--idle", "--function", "--full-filenames"]
        self._words = [str(py_spy), "record", "--pid", str(pid), *options]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._trouble = process.ask(self._words, limit_s=_LONGEST_S + 60).last_line
        except (OSError, TimeoutError) as error:
            self._trouble = str(error)

    def raw(self) -> str:
        """All samples, once the process has ended. Raises TraceError."""
        self._thread.join()
        try:
            return self._raw.read_text(encoding="utf-8", errors="replace")
        except OSError:
            raise TraceError(f"py-spy left no samples: {self._trouble or 'no reason given'}") from None


def sampled(raw: str, phases: Mapping[str, str]) -> list[tuple[str, tuple[Frame, ...], int]]:
    """Stacks by phase with their samples, from py-spy's raw form; frames begin at the phase's function. `phases`: the
    place of each phase's function ("FILE:LINE")."""
    by_place = {place: name for name, place in phases.items() if place}
    stacks = []
    for line in raw.splitlines():
        text, _, count = line.rpartition(" ")
        frames = [_frame(words) for words in text.split(";")]
        inside = next((i for i, f in enumerate(frames) if f.name == _LOOP[0] and f.file.endswith(_LOOP[1])), None)
        if inside is None or not count.isdigit():
            continue
        below = frames[inside + 1 :]
        phase = by_place.get(f"{below[0].file}:{below[0].line}") if below else None
        if phase is not None:
            stacks.append((phase, tuple(below), int(count)))
    return stacks


def _frame(words: str) -> Frame:
    match = _FRAME.fullmatch(words)
    return Frame(match["name"], match["file"], int(match["line"] or 0)) if match else Frame(words)


def profile_of(record: Record, own: Recording, tool: HostTool, raw: str = "") -> HostProfile:
    """The profile of a trial. A phase's seconds are those of its recorded runs, shared out by samples or by cProfile's
    times. Raises TraceError where there are no samples of the steps."""
    assert record.measurement is not None and record.environment is not None
    steps = [span for span in own.spans if span.kind == "step"]
    weighed: Sequence[tuple[str, tuple[Frame, ...], float]] = [(s.phase, s.frames, s.seconds) for s in own.stacks]
    samples = 0
    if tool == "py-spy":
        counted = sampled(raw, own.places)
        samples = sum(count for _, _, count in counted)
        if not samples:
            raise TraceError("py-spy took no sample of the steps: more of them, --steps 200")
        weighed = counted
    timed_s = record.measurement.step_times_s
    lower, median, upper = statistics.quantiles(timed_s) if len(timed_s) > 1 else timed_s * 3
    return HostProfile(
        machine=record.environment.machine,
        device_name=record.environment.device_name,
        **{name: getattr(record.cell, name) for name in ("label", "device", "image_size", "model")},
        taken_at=record.started_at,
        tool=tool,
        steps=len(steps),
        samples=samples,
        step_s=statistics.median(step.end_ns - step.begin_ns for step in steps) * 1e-9,
        timed_step_s=median,
        timed_spread=(upper - lower) / median,
        phases=own.phases,
        stacks=_shared_out(weighed, own, len(steps)),
    )


def _shared_out(
    weighed: Sequence[tuple[str, tuple[Frame, ...], float]], own: Recording, steps: int
) -> tuple[Stack, ...]:
    """Each phase's recorded time per step, in proportion to the weights of its stacks."""
    phases = (span for span in own.spans if span.kind == "phase")
    spent = summed((span.name, (span.end_ns - span.begin_ns) * 1e-9 / steps) for span in phases)
    of_phase = summed((phase, weight) for phase, _, weight in weighed)
    return tuple(
        Stack(phase, tuple(map(_short, frames)), spent[phase] * weight / of_phase[phase])
        for phase, frames, weight in weighed
    )


def _short(frame: Frame) -> Frame:
    """With its file from the package on."""
    file = frame.file
    for folder in ("site-packages/", "dist-packages/"):
        file = file.rpartition(folder)[2]
    if "/tcbench/" in file:
        file = "tcbench/" + file.rpartition("/tcbench/")[2]
    elif match := re.search(r"/python3\.\d+/(.*)", file):
        file = f"python/{match[1]}"
    return Frame(plain(frame.name), plain(file), frame.line)


class _Shared(msgspec.Struct, frozen=True):
    frames: tuple[Frame, ...]


class _Sampled(msgspec.Struct, frozen=True, rename="camel"):
    """A phase. Weights are seconds per step."""

    name: str
    end_value: float
    samples: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]
    type: str = "sampled"
    unit: str = "seconds"
    start_value: float = 0.0


class _Document(msgspec.Struct, frozen=True):
    """Speedscope's file format, and the profile's facts beside it, which speedscope ignores."""

    shared: _Shared
    profiles: tuple[_Sampled, ...]
    tcbench: HostProfile
    name: str = ""
    exporter: str = "tcbench"
    schema: str = msgspec.field(default=_SCHEMA, name="$schema")


def write(profile: HostProfile, path: Path) -> None:
    """As a speedscope file. Raises StoreError."""
    numbers: dict[Frame, int] = {}
    phases = []
    for phase in profile.phases:
        stacks = [stack for stack in profile.stacks if stack.phase == phase]
        samples = tuple(tuple(numbers.setdefault(f, len(numbers)) for f in stack.frames) for stack in stacks)
        weights = tuple(stack.seconds for stack in stacks)
        phases.append(_Sampled(phase, sum(weights), samples, weights))
    facts = msgspec.structs.replace(profile, stacks=())
    document = _Document(_Shared(tuple(numbers)), tuple(phases), facts, f"{profile.label}, {profile.device_name}")
    files.write(path, msgspec.json.encode(document), files.ANOTHER_FOLDER)


def read(path: Path) -> HostProfile:
    """A profile that `write` left. Raises TraceError for anything else."""
    try:
        document = msgspec.json.decode(files.read(path), type=_Document)
        frames = tuple(Frame(plain(frame.name), plain(frame.file), frame.line) for frame in document.shared.frames)
        stacks = tuple(
            Stack(phase.name, tuple(frames[i] for i in sample), seconds)
            for phase in document.profiles
            for sample, seconds in zip(phase.samples, phase.weights, strict=True)
            if sample
        )
    except (OSError, ValueError, IndexError, msgspec.DecodeError) as error:
        raise TraceError(
            f"{path}: no host profile ({' '.join(str(error).split())}); `tcbench profile --host` makes one"
        ) from None
    return msgspec.structs.replace(document.tcbench, stacks=stacks)


def newest(folder: Path) -> tuple[HostProfile, ...]:
    """The newest profile of each cell in a folder; what cannot be read is left out."""
    kept: dict[tuple[str, ...], HostProfile] = {}
    for path in sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.name[-len("YYYYMMDD-HHMMSS" + SUFFIX) :]):
        with contextlib.suppress(TraceError):
            profile = read(path)
            kept[profile.label, profile.device, profile.model, str(profile.image_size)] = profile
    return tuple(kept.values())
