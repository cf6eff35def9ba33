"""Measures a cell: warm-up, blocks of timed steps and, where these cannot tell the phases apart, a profiled pass.

Owns the order of things and the hot loop. Knows a session only through its protocol; prints and stores nothing. Where
many ranks train together, all of them begin a block together, and take as many steps as rank 0 decides: a rank that ran
one step more would wait for the others' gradients for ever."""

import contextlib
import gc
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

import msgspec

from tcbench.core.messages import Stepped
from tcbench.core.record import MOST_PHASE_TIMES, Measurement, MeasureSettings, PhaseTimes
from tcbench.core.stopping import StoppingRule, WarmUpRule, sample_size
from tcbench.engine.measure.ranges import CELL_MARK, Ranges
from tcbench.engine.measure.recorder import SpanRecorder
from tcbench.engine.session import INPUT, Clock, Detailed, Facts, Session
from tcbench.engine.world import current


class LossError(Exception):
    """The loss is not a finite number: what was measured is not training."""


class ClockError(Exception):
    """The clock of a session shows no time that can have passed."""


@dataclass(frozen=True)
class Profiling:
    """Recorders that go with the profiled pass. `recorder` gets its steps and phases, and where `layers` is set and the
    session can tell them also its layers. `around` is held around the pass: a GPU's profilers start and stop there.
    `title` is what a tool is told of the cell, as JSON. The pass takes about `least_s` seconds at least."""

    recorder: SpanRecorder = field(default_factory=SpanRecorder)
    around: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    layers: bool = False
    title: str = ""
    least_s: float = 0.0


def measure(
    session: Session,
    settings: MeasureSettings,
    listen: Callable[[Stepped], None] = lambda _: None,
    block_steps: int | None = None,
    profiling: Profiling | None = None,
) -> Measurement:
    """Measure one session from cold to done. The profiled pass is made where something is to be recorded (`profiling`)
    or phases go on on a device when they have returned; else the counted steps tell the phases. Where nothing is
    recorded, it takes as many steps as make each phase known as well as the step is to be: the timed pass's at most,
    and beyond `profiled_steps` only as many as `max_time_s` has time for.
    `listen` is told of a stage between its blocks; of the timed and the profiled one also when they begin.

    Raises LossError when the loss after warm-up or after the timed pass is not finite, and ClockError when a step took
    no time."""
    recorded = profiling is not None
    profiling = profiling or Profiling()
    world = current()
    ranges = Ranges([phase.name for phase in session.phases])
    ranges.mark(CELL_MARK + profiling.title)

    warmup_rule = WarmUpRule(settings.min_warmup_steps, settings.max_warmup_steps)
    warmup_s: list[float] = []
    returned_s: list[float] = []  # when the last step began, and when each of its phases returned

    def note_return() -> None:
        returned_s.append(time.perf_counter())

    while not world.bcast(warmup_rule.is_over(warmup_s, all(phase.settled() for phase in session.phases))):
        returned_s[:] = [time.perf_counter()]
        warmup_s += run_block(session, ranges, 1, len(warmup_s), note_return).steps_s
        listen(Stepped("warm-up", len(warmup_s), warmup_s[-1]))
    facts = session.facts()
    warmup_loss = _finite(facts.loss, "after warm-up")
    # The first step of a block is not counted: the others are whole periods.
    block_steps = 1 + _whole((block_steps or _block_steps(session, facts, settings, warmup_s[-1])) - 1, facts.period)
    block_steps = world.bcast(block_steps)
    gc.collect()
    gc.freeze()

    min_steps = settings.min_timed_steps
    if session.phases[0].name == INPUT and len(returned_s) > 1:
        input_s = returned_s[1] - returned_s[0]
        min_steps = min(min_steps, _MIN_WAITING_STEPS) if input_s > warmup_s[-1] / 2 else min_steps
    stopping_rule = StoppingRule(settings.target, settings.max_time_s, min_steps)
    timed_s: list[float] = []
    counted_s: list[float] = []
    phases_s: list[deque[float]] = [deque(maxlen=MOST_PHASE_TIMES) for _ in session.phases]
    asked_at = 0
    verdict: Literal["continue", "target", "budget"] = "continue"
    listen(Stepped("timed", 0, warmup_s[-1]))
    while verdict == "continue":
        world.barrier()
        block = run_block(session, ranges, block_steps, first=len(warmup_s) + len(timed_s))
        timed_s += block.steps_s
        counted_s += block.steps_s[1:]
        for times_s, of_block_s in zip(phases_s, block.phases_s, strict=False):  # there are none by a device's clock
            times_s.extend(of_block_s[1:])
        if len(counted_s) >= _ASK_AFTER * asked_at:
            asked_at = len(counted_s)
            verdict = world.bcast(stopping_rule.decide(counted_s, sum(timed_s)))
        listen(Stepped("timed", len(timed_s), timed_s[-1]))
    after, facts_s = _facts_after(session)
    last_loss = _finite(after.loss, "after the timed pass")
    busy_s = None if facts.busy_s is None or after.busy_s is None else (after.busy_s - facts.busy_s) / len(timed_s)

    listen(Stepped("profiled", 0, timed_s[-1], facts_s=facts_s))  # the timed pass is over, whatever follows
    if not recorded and session.clock.of == "host":
        phases = tuple(
            PhaseTimes(name=phase.name, host_s=_over_periods(list(times_s), facts.period))
            for phase, times_s in zip(session.phases, phases_s, strict=True)
        )
    else:
        steps = max(settings.profiled_steps, math.ceil(profiling.least_s / statistics.median(timed_s)))
        steps = world.bcast(_whole(steps, facts.period))
        first = len(warmup_s) + len(timed_s)
        phases = profile(session, ranges, steps, first, profiling, facts.period)
        half_width_s = settings.target * statistics.fmean(counted_s)
        enough = max(facts.period * sample_size(phase.device_s or phase.host_s, half_width_s) for phase in phases)
        pass_s = facts.period * sum(sum(phase.device_s or phase.host_s) for phase in phases)
        in_time = int(settings.max_time_s * steps / max(pass_s, 1e-9)) // facts.period * facts.period
        # Asked of all ranks, whichever records.
        if more := world.bcast(0 if recorded else max(0, min(enough, len(counted_s), in_time) - steps)):
            phases = _together(phases, profile(session, ranges, more, first + steps, period=facts.period))
            steps += more
        listen(Stepped("profiled", steps, timed_s[-1]))
        stall = getattr(session.clock, "stall", None)
        if not recorded and busy_s is None and stall and world.size == 1:
            busy_s = needed_on_device(session, ranges, first + steps, stall, facts.period)
        facts = session.facts()
    gc_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    return Measurement(
        warmup_times_s=tuple(warmup_s),
        warmup_settled=warmup_rule.has_settled(warmup_s),
        step_times_s=tuple(timed_s),
        block_steps=block_steps,
        stopped_by=verdict,
        phases=phases,
        warmup_loss=warmup_loss,
        last_loss=last_loss,
        gc_frozen=gc_frozen,
        busy_s=busy_s,
        declared=facts.declared or msgspec.UNSET,
        **{name: getattr(facts, name) for name in _AS_TOLD},
    )


_AS_TOLD = {*Measurement.__struct_fields__} & {field.name for field in fields(Facts)} - {"busy_s", "declared"}
"""The facts of a session that its measurement has as they are told after the last step."""


_SLOW_FACTS_S = 0.1
"""Facts that take longer are asked a second time."""


def _facts_after(session: Session, now: Callable[[], float] = time.perf_counter) -> tuple[Facts, float]:
    """Return the facts after the timed pass, and the seconds that went into them alone. Facts may take long by
    themselves (a loss over a validation set), or because they wait for steps that the clock took for done. The second
    time nothing is left to wait for, so that its duration is that of the facts alone."""
    began_s = now()
    facts = session.facts()
    asked_s = now() - began_s
    if not current().bcast(asked_s > _SLOW_FACTS_S):
        return facts, 0.0
    began_s = now()
    session.facts()
    again_s = now() - began_s
    return facts, again_s + min(asked_s, again_s)


_MIN_WAITING_STEPS = 5
"""Counted steps at least where a device's step waits for its input for more than half of its time (by the host's clock,
in the last step of the warm-up): such steps are long, and one block of them has the precision that is asked for."""

PREFETCHED_PER_BLOCK = 10
"""On a GPU a block is at least this many times as long as the feed's prefetch queue, which is full when it begins."""


def _whole(steps: int, period: int) -> int:
    """So many steps or more: whole periods."""
    return -(-steps // period) * period


_ASK_AFTER = 1.05
"""The stopping rule looks at all steps so far: asked after every block, it would take most of the time where steps are
short and many."""
_SHORTEST_BLOCK_S = 0.1
"""Between blocks a message is sent, ranks meet, and of two that step in turns the other steps: the first step of a
block finds cold caches, and is not counted."""


def _block_steps(session: Session, facts: Facts, settings: MeasureSettings, step_s: float) -> int:
    if session.clock.of == "host":
        return max(settings.block_steps, math.ceil(_SHORTEST_BLOCK_S / step_s))
    return max(settings.block_steps, PREFETCHED_PER_BLOCK * facts.prefetch_depth)


@dataclass(frozen=True)
class TimedBlock:
    """Seconds of each step of a block, and by the host's clock of each phase, step by step; a step is the sum of its
    phases then."""

    steps_s: tuple[float, ...]
    phases_s: tuple[tuple[float, ...], ...] = ()


def _go_on() -> None:
    pass


def run_block(
    session: Session, ranges: Ranges, steps: int, first: int, phase_returned: Callable[[], None] = _go_on
) -> TimedBlock:
    """The hot loop: `steps` steps between clock marks. `first` is the number of the first step. The host's clock is
    marked after each phase, which is done when it returns; a device's after each step, and `phase_returned` is called
    after each phase."""
    clock = session.clock
    by_phase = clock.of == "host"
    phase_over, step_over = (clock.mark, _go_on) if by_phase else (phase_returned, clock.mark)
    push, pop, step_range = ranges.push, ranges.pop, ranges.step
    phases = [(phase.run, attributes) for phase, attributes in zip(session.phases, ranges.phases, strict=True)]
    clock.mark()
    for number in range(first, first + steps):
        push(step_range(number))
        for run, attributes in phases:
            push(attributes)
            run()
            pop()
            phase_over()
        pop()
        step_over()
    times_s = _read(clock)
    if len(times_s) != steps * (len(phases) if by_phase else 1):
        raise ClockError(f"the clock tells {len(times_s)} times of {steps} steps; expected one between any two marks")
    if not by_phase:
        return TimedBlock(tuple(map(_passed, times_s)))
    phases_s = tuple(times_s[place :: len(phases)] for place in range(len(phases)))
    return TimedBlock(tuple(_passed(sum(of_step)) for of_step in zip(*phases_s, strict=True)), phases_s)


def _read(clock: Clock) -> tuple[float, ...]:
    """Return the clock's times as plain floats: a clock of one's own may give NumPy's."""
    return tuple(map(float, clock.read()))


def profile(
    session: Session, ranges: Ranges, steps: int, first: int, profiling: Profiling | None = None, period: int = 1
) -> tuple[PhaseTimes, ...]:
    """Host time of each phase, and on a device its device time: marks around each phase, never part of a timed pass.

    The host's time is what the call of the phase takes; the device's marks lie outside it. The device's time of a phase
    ends where the stream has done what the phase gave it, and begins where the phase before ended: it holds the time in
    which the device waits for the host. Nothing waits until the last step is launched, so that the host runs ahead as
    it does in a timed pass. On a CPU a phase is done when it returns, so its host time is its time.

    Where steps differ within a `period`, each time is a mean over one: what is done now and then has its share."""
    profiling = profiling or Profiling()
    recorder, device = profiling.recorder, session.clock
    on_device = device.of == "device"
    detail: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if profiling.layers and isinstance(session, Detailed):
        detail = session.detail(_Layers(ranges, recorder))
    with profiling.around(), detail:
        ranges.mark(CELL_MARK + profiling.title)
        if on_device:
            device.mark()
        for number in range(first, first + steps):
            recorder.begin_step(number)
            ranges.push(ranges.step(number))
            for phase, attributes in zip(session.phases, ranges.phases, strict=True):
                recorder.begin_phase(phase.name)
                ranges.push(attributes)
                phase.run()
                ranges.pop()
                recorder.end()
                if on_device:
                    device.mark()
            ranges.pop()
            recorder.end()
        device_s = _read(device) if on_device else None
    host_s = [(span.end_ns - span.begin_ns) * 1e-9 for span in recorder.spans if span.kind == "phase"]
    n = len(session.phases)
    return tuple(
        PhaseTimes(
            name=phase.name,
            host_s=_over_periods(host_s[i::n], period),
            device_s=None if device_s is None else _over_periods(device_s[i::n], period),
        )
        for i, phase in enumerate(session.phases)
    )


_STALLED_ROUNDS = 5
_STALL_MARGIN, _STALL_LEAST_S = 2.0, 0.01
_STALL_MOST_S = 2.0
"""Seconds that all stalled rounds together may take; one round is always run. No stall is longer."""
_LATE = 0.25
"""The host may launch on for this share of the device's time after the stall, while the device does what is queued."""
_LAYERS_BEHIND_STALL = 50
"""Layers that are launched behind one stall. A launch blocks the host while about 1,000 others wait in its stream, a
limit that CUDA does not document; a layer has up to about ten."""


class _StalledParts:
    """Launches steps in parts: each part is launched while the device's stream is stalled, and then the host waits
    until the device has done it. A part is a phase, or some of its layers where the session tells them (a `Layers`).
    `stalls_s` has the seconds of each part's stall; without it nothing is stalled."""

    def __init__(self, clock: Clock, stall: Callable[[float], None], now: Callable[[], float]) -> None:
        self._clock, self._stall, self._now = clock, stall, now
        self.stalls_s: list[float] = []
        self.restart()

    def restart(self) -> None:
        """Begin with the first part again."""
        self.host_s: list[float] = []
        self.device_s = 0.0
        self.late = False

    @contextlib.contextmanager
    def parts(self) -> Iterator[None]:
        """Launch what runs within as one part or more."""
        self._open()
        yield
        self._close()

    def begin(self, name: str) -> None:
        if self._layers == _LAYERS_BEHIND_STALL:
            self._close()
            self._open()
        self._layers += 1

    def end(self) -> None:
        pass

    def _open(self) -> None:
        self._layers = 0
        self._stalled_s = self.stalls_s[len(self.host_s)] if len(self.host_s) < len(self.stalls_s) else 0.0
        self._stall(self._stalled_s)
        self._clock.mark()
        self._began_s = self._now()

    def _close(self) -> None:
        host_s = self._now() - self._began_s
        self._clock.mark()
        device_s = sum(_read(self._clock))
        self.late = self.late or host_s - self._stalled_s > _LATE * device_s
        self.host_s.append(host_s)
        self.device_s += device_s

    def run_input(self, run: Callable[[], None]) -> None:
        """Run the input's phase with no stall, which would have to outlast decoding. The device needs for it what it
        goes on to do when the host has returned, such as to receive the batch."""
        self._clock.mark()
        began_s = self._now()
        run()
        host_s = self._now() - began_s
        self._clock.mark()
        self.device_s += max(0.0, sum(_read(self._clock)) - host_s)


def needed_on_device(
    session: Session,
    ranges: Ranges,
    first: int,
    stall: Callable[[float], None],
    period: int = 1,
    now: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Seconds that the device needs for a step where it waits for nobody: the median of some rounds. Its stream is
    stalled while the host launches a part of a step; then it does what is queued without a gap. A first round without
    stalls tells how long the host takes. Where steps differ within a `period`, a round is a period, and the result its
    mean step. None where the host was late every time: it took longer than a stall may, or waits for the device within
    a step."""
    parts = _StalledParts(session.clock, stall, now)

    def run_round() -> float:
        began_s = now()
        parts.restart()
        for number in range(first, first + period):
            ranges.push(ranges.step(number))
            for phase, attributes in zip(session.phases, ranges.phases, strict=True):
                ranges.push(attributes)
                if phase.name == INPUT:
                    parts.run_input(phase.run)
                else:
                    with parts.parts():
                        phase.run()
                ranges.pop()
            ranges.pop()
        return now() - began_s

    rounds_s = []
    with session.detail(parts) if isinstance(session, Detailed) else contextlib.nullcontext():
        round_s = run_round()
        parts.stalls_s = [min(_STALL_MARGIN * host_s + _STALL_LEAST_S, _STALL_MOST_S) for host_s in parts.host_s]
        round_s += sum(parts.stalls_s)
        for _ in range(max(1, min(_STALLED_ROUNDS, int(_STALL_MOST_S / round_s)))):
            first += period
            run_round()
            if not parts.late:
                rounds_s.append(_passed(parts.device_s / period))
    return statistics.median(rounds_s) if rounds_s else None


def _together(first: Sequence[PhaseTimes], second: Sequence[PhaseTimes]) -> tuple[PhaseTimes, ...]:
    """The phases of one pass and of another after it."""
    return tuple(
        PhaseTimes(
            name=one.name,
            host_s=one.host_s + other.host_s,
            device_s=None if one.device_s is None or other.device_s is None else one.device_s + other.device_s,
        )
        for one, other in zip(first, second, strict=True)
    )


def _over_periods(times_s: Sequence[float], period: int) -> tuple[float, ...]:
    if period == 1:
        return tuple(times_s)
    return tuple(statistics.fmean(times_s[i : i + period]) for i in range(0, len(times_s), period))


def at_host_speed(measurement: Measurement, speed: float) -> Measurement:
    """The measurement as of a host so many times as fast, whose device took that much longer for everything meanwhile:
    all times are divided by it."""
    if speed == 1:
        return measurement

    def scaled(times_s: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(time_s / speed for time_s in times_s)

    return msgspec.structs.replace(
        measurement,
        warmup_times_s=scaled(measurement.warmup_times_s),
        step_times_s=scaled(measurement.step_times_s),
        busy_s=None if measurement.busy_s is None else measurement.busy_s / speed,
        phases=tuple(
            PhaseTimes(name=phase.name, host_s=scaled(phase.host_s), device_s=phase.device_s and scaled(phase.device_s))
            for phase in measurement.phases
        ),
    )


class _Layers:
    """Tells a tool and the recorder of layers."""

    def __init__(self, ranges: Ranges, recorder: SpanRecorder) -> None:
        self._ranges = ranges
        self._recorder = recorder

    def begin(self, name: str) -> None:
        self._recorder.begin_layer(name)
        self._ranges.push(self._ranges.layer(name))

    def end(self) -> None:
        self._ranges.pop()
        self._recorder.end()


def _passed(time_s: float) -> float:
    if not time_s > 0:
        raise ClockError(f"the clock shows that a step took {time_s:g} s; expected more than 0")
    return time_s


def _finite(loss: float | None, when: str) -> float | None:
    if loss is not None and not math.isfinite(loss):
        raise LossError(f"the loss is {loss} {when}: this config does not train with these settings")
    return loss
