"""The measurement of a cell: warm-up, blocks of timed steps and, if phases cannot be timed in these, a profiled pass.

This module has the order of these passes and the hot loop. It uses a session only through its protocol, and prints and
stores nothing. Several ranks begin each block together and take as many steps as rank 0 decides: a rank that ran one
step more would wait for the gradients of the others for ever."""

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
from tcbench.engine.measure.checks import TrialChecks, now_s
from tcbench.engine.measure.ranges import CELL_MARK, Ranges
from tcbench.engine.measure.recorder import SpanRecorder
from tcbench.engine.session import INPUT, Clock, Detailed, Facts, Session
from tcbench.engine.world import current


class LossError(Exception):
    """The loss is not a finite number, so that the config does not train."""


class ClockError(Exception):
    """The clock of a session shows an impossible time."""


@dataclass(frozen=True)
class Profiling:
    """The recorders of a profiled pass.

    `recorder` gets the steps and phases, and with `layers` also the layers if the session can report them. `around` is
    a context for the whole pass, in which a GPU's profilers are active. `title` describes the cell to tools, in JSON.
    The pass takes at least about `least_s` seconds."""

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
    checks: TrialChecks | None = None,
) -> Measurement:
    """Measure a session: warm-up, timed pass and, if necessary, profiled pass.

    The profiled pass is necessary if `profiling` asks for a recording, or if phases run on a device after the host has
    returned from them. Otherwise the counted steps give the times of the phases. Without a recording it takes enough
    steps to know each phase as precisely as the step, but no more than the timed pass, and beyond `profiled_steps` no
    more than fit into `max_time_s`. `listen` gets a message between blocks, and when the timed or the profiled pass
    begins. `checks` look at the session between steps.

    Raises LossError if the loss after warm-up or after the timed pass is not finite, ClockError if a step took no time,
    and ImpossibleError if a check fails."""
    recorded = profiling is not None
    profiling = profiling or Profiling()
    world = current()
    ranges = Ranges([phase.name for phase in session.phases])
    ranges.mark(CELL_MARK + profiling.title)

    warmup_rule = WarmUpRule(settings.min_warmup_steps, settings.max_warmup_steps)
    warmup_s: list[float] = []
    returned_s: list[float] = []  # the times when the last step began and when each of its phases returned

    def note_return() -> None:
        returned_s.append(time.perf_counter())

    while not world.bcast(warmup_rule.is_over(warmup_s, all(phase.settled() for phase in session.phases))):
        returned_s[:] = [time.perf_counter()]
        warmup_s += run_block(session, ranges, 1, len(warmup_s), note_return).steps_s
        listen(Stepped("warm-up", len(warmup_s), warmup_s[-1]))
        if checks and len(warmup_s) == 1:
            checks.after_first_step()
    facts = session.facts()
    warmup_loss = _finite(facts.loss, "after warm-up")
    # The first step of a block is not counted. The other steps are complete periods.
    counted_steps = (block_steps or _block_steps(session, facts, settings, warmup_s[-1])) - 1
    block_steps = world.bcast(1 + _round_up(counted_steps, facts.period))
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
    checked_steps = 0
    verdict: Literal["continue", "target", "budget"] = "continue"
    listen(Stepped("timed", 0, warmup_s[-1]))
    while verdict == "continue":
        world.barrier()
        block = run_block(session, ranges, block_steps, first=len(warmup_s) + len(timed_s))
        if checks:
            checks.after_block(block.steps_s, block.phases_s, block.elapsed_s)
        timed_s += block.steps_s
        counted_s += block.steps_s[1:]
        for times_s, block_times_s in zip(phases_s, block.phases_s, strict=False):  # a device's clock times no phases
            times_s.extend(block_times_s[1:])
        if len(counted_s) >= _CHECK_GROWTH * checked_steps:
            checked_steps = len(counted_s)
            verdict = world.bcast(stopping_rule.decide(counted_s, sum(timed_s)))
        listen(Stepped("timed", len(timed_s), timed_s[-1]))
    reading_began_s = now_s()
    after, facts_s = _facts_after(session)
    waited_s = now_s() - reading_began_s - 1.25 * facts_s  # two slow readings may differ in their times
    last_loss = _finite(after.loss, "after the timed pass")
    busy_s = None if facts.busy_s is None or after.busy_s is None else (after.busy_s - facts.busy_s) / len(timed_s)

    listen(Stepped("profiled", 0, timed_s[-1], facts_s=facts_s))  # ends the timed pass, even if no pass follows
    if checks:
        checks.after_timed_pass(sum(timed_s), len(timed_s), waited_s)
    if not recorded and session.clock.of == "host":
        phases = tuple(
            PhaseTimes(name=phase.name, host_s=_period_means(list(times_s), facts.period))
            for phase, times_s in zip(session.phases, phases_s, strict=True)
        )
    else:
        steps = max(settings.profiled_steps, math.ceil(profiling.least_s / statistics.median(timed_s)))
        steps = world.bcast(_round_up(steps, facts.period))
        first = len(warmup_s) + len(timed_s)
        phases = profile(session, ranges, steps, first, profiling, facts.period)
        # `enough` steps make each phase as precise as the step; `in_time` steps fit into `max_time_s`.
        half_width_s = settings.target * statistics.fmean(counted_s)
        enough = max(facts.period * sample_size(phase.device_s or phase.host_s, half_width_s) for phase in phases)
        pass_s = facts.period * sum(sum(phase.device_s or phase.host_s) for phase in phases)
        in_time = int(settings.max_time_s * steps / max(pass_s, 1e-9)) // facts.period * facts.period
        # `more` is the number of further steps. All ranks take part in the broadcast, also those that record.
        if more := world.bcast(0 if recorded else max(0, min(enough, len(counted_s), in_time) - steps)):
            phases = _concatenate(phases, profile(session, ranges, more, first + steps, period=facts.period))
            steps += more
        listen(Stepped("profiled", steps, timed_s[-1]))
        stall = getattr(session.clock, "stall", None)
        if not recorded and busy_s is None and stall and world.size == 1:
            busy_s = device_busy_s(session, ranges, first + steps, stall, facts.period)
        facts = session.facts()
    gc_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    results = checks.results(warmup_loss, last_loss, facts.period) if checks else msgspec.UNSET
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
        checks=results,
        **{name: getattr(facts, name) for name in _COPIED_FACTS},
    )


_COPIED_FACTS = {*Measurement.__struct_fields__} & {field.name for field in fields(Facts)} - {"busy_s", "declared"}
"""The facts that a measurement copies from the session after the last step."""


_SLOW_FACTS_S = 0.1
"""If reading the facts takes longer than this, they are read a second time."""


def _facts_after(session: Session, now: Callable[[], float] = time.perf_counter) -> tuple[Facts, float]:
    """Return the facts after the timed pass, and the seconds spent on computing them.

    A slow reading computes the facts (such as a loss over a validation set), or waits for steps that still run. A
    second reading only computes, so it shows how much of the first was computing. Returns 0 s after a quick reading."""
    began_s = now()
    facts = session.facts()
    first_s = now() - began_s
    if not current().bcast(first_s > _SLOW_FACTS_S):
        return facts, 0.0
    began_s = now()
    session.facts()
    second_s = now() - began_s
    return facts, second_s + min(first_s, second_s)


_MIN_WAITING_STEPS = 5
"""The least number of counted steps if a step waits for its input for more than half of its time (by the host's clock,
in the last warm-up step). Such steps are long, and one block of them is precise enough."""

PREFETCHED_PER_BLOCK = 10
"""The ratio of a block's steps to the length of the feed's prefetch queue, at least. The queue is full when a block
begins, which makes its first steps faster on a GPU."""


def _round_up(steps: int, period: int) -> int:
    """Round a number of steps up to complete periods."""
    return -(-steps // period) * period


_CHECK_GROWTH = 1.05
"""The stopping rule is checked again when the number of counted steps has grown by this factor. It looks at all of
them, so a check after every block would take most of the time if steps are short."""
_SHORTEST_BLOCK_S = 0.1
"""The shortest block on a CPU. The first step after a pause between blocks finds cold caches and is not counted."""


def _block_steps(session: Session, facts: Facts, settings: MeasureSettings, step_s: float) -> int:
    """Return the number of steps in a block. `step_s` is the time of the last warm-up step, in seconds."""
    if session.clock.of == "host":
        return max(settings.block_steps, math.ceil(_SHORTEST_BLOCK_S / step_s))
    return max(settings.block_steps, PREFETCHED_PER_BLOCK * facts.prefetch_depth)


@dataclass(frozen=True)
class TimedBlock:
    """The step times of a block. With the host's clock it also has the times of each phase, one per step, and a step
    time is the sum of its phases. `elapsed_s` is the time of the whole block by tcbench's own clock."""

    steps_s: tuple[float, ...]
    phases_s: tuple[tuple[float, ...], ...] = ()
    elapsed_s: float = 0.0


def _do_nothing() -> None:
    pass


def run_block(
    session: Session, ranges: Ranges, steps: int, first: int, phase_returned: Callable[[], None] = _do_nothing
) -> TimedBlock:
    """Run the hot loop: `steps` steps between clock marks, numbered from `first`.

    The host's clock is marked after each phase, since a phase on the host is done when it returns. A device's clock is
    marked only after each step; `phase_returned` is then called after each phase."""
    clock = session.clock
    by_phase = clock.of == "host"
    phase_over, step_over = (clock.mark, _do_nothing) if by_phase else (phase_returned, clock.mark)
    push, pop, step_range = ranges.push, ranges.pop, ranges.step
    phases = [(phase.run, attributes) for phase, attributes in zip(session.phases, ranges.phases, strict=True)]
    began_s = now_s()
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
    host_s = now_s() - began_s
    times_s = _read(clock)
    elapsed_s = host_s if by_phase else now_s() - began_s
    if len(times_s) != steps * (len(phases) if by_phase else 1):
        raise ClockError(
            f"the clock returned {len(times_s)} times for {steps} steps; expected one between any two marks"
        )
    if not by_phase:
        return TimedBlock(tuple(map(_positive, times_s)), elapsed_s=elapsed_s)
    phases_s = tuple(times_s[place :: len(phases)] for place in range(len(phases)))
    steps_s = tuple(_positive(sum(step_s)) for step_s in zip(*phases_s, strict=True))
    return TimedBlock(steps_s, phases_s, elapsed_s)


def _read(clock: Clock) -> tuple[float, ...]:
    """Return the clock's times as Python floats, since the clock of a user's own step may return NumPy's."""
    return tuple(map(float, clock.read()))


def profile(
    session: Session, ranges: Ranges, steps: int, first: int, profiling: Profiling | None = None, period: int = 1
) -> tuple[PhaseTimes, ...]:
    """Run a profiled pass and return the host time of each phase and, on a device, its device time.

    The host time is the duration of the phase's call. The device time lasts from the end of the previous phase's work
    in the stream to the end of this phase's, so it includes the time in which the device waits for the host. The host
    never waits before the last step is launched, as in a timed pass. On a CPU the host time is the time of the phase.

    If steps differ within a `period`, each time is the mean over a period."""
    profiling = profiling or Profiling()
    recorder, device = profiling.recorder, session.clock
    on_device = device.of == "device"
    detail: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if profiling.layers and isinstance(session, Detailed):
        detail = session.detail(_LayerRecorder(ranges, recorder))
    with profiling.around(), detail:
        ranges.mark(CELL_MARK + profiling.title)
        if on_device:
            device.mark()
        for number in range(first, first + steps):
            recorder.begin("step", "step", number)
            ranges.push(ranges.step(number))
            for phase, attributes in zip(session.phases, ranges.phases, strict=True):
                recorder.begin("phase", phase.name)
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
            host_s=_period_means(host_s[i::n], period),
            device_s=None if device_s is None else _period_means(device_s[i::n], period),
        )
        for i, phase in enumerate(session.phases)
    )


_STALLED_ROUNDS = 5
_STALL_MARGIN, _STALL_LEAST_S = 2.0, 0.01
_STALL_MOST_S = 2.0
"""The longest stall, and the time limit of all stalled rounds together. One round is always run."""
_LATE = 0.25
"""The host may still be launching after the stall, for this share of the device's working time."""
_LAYERS_BEHIND_STALL = 50
"""The number of layers that are launched behind one stall. A launch blocks the host if about 1,000 launches wait in its
stream (CUDA does not document the limit), and a layer has up to about ten."""


class _StalledParts:
    """A way to run a step so that its device never waits for the host.

    A part of a step is a phase or, if the session reports its layers, at most _LAYERS_BEHIND_STALL layers of a phase.
    While the host launches a part, the device's stream is stalled. Then the host waits until the device has finished
    the part. `stalls_s` has the duration of each part's stall; parts without an entry are not stalled. After a round,
    `host_s` has the host's time for each part, `device_s` is the device's working time in all parts, and `late` tells
    whether the device may have waited for the host in one of them."""

    def __init__(self, clock: Clock, stall: Callable[[float], None], now: Callable[[], float]) -> None:
        self._clock, self._stall, self._now = clock, stall, now
        self.stalls_s: list[float] = []
        self.restart()

    def restart(self) -> None:
        """Begin a new round with the first part."""
        self.host_s: list[float] = []
        self.device_s = 0.0
        self.late = False

    @contextlib.contextmanager
    def parts(self) -> Iterator[None]:
        """Run the body of the context as one or more parts."""
        self._open()
        yield
        self._close()

    def begin(self, name: str) -> None:
        """Begin a layer, which may begin a new part."""
        if self._layers == _LAYERS_BEHIND_STALL:
            self._close()
            self._open()
        self._layers += 1

    def end(self) -> None:
        """End a layer, which ends no part."""

    def _open(self) -> None:
        """Begin a part: stall the device for this part's entry in `stalls_s`, mark the clock, note the host's time."""
        self._layers = 0
        self._stalled_s = self.stalls_s[len(self.host_s)] if len(self.host_s) < len(self.stalls_s) else 0.0
        self._stall(self._stalled_s)
        self._clock.mark()
        self._began_s = self._now()

    def _close(self) -> None:
        """End a part. Note its time on the host and on the device, and whether the host was late: still launching
        when the stall had been over for more than _LATE of the device's time."""
        host_s = self._now() - self._began_s
        self._clock.mark()
        device_s = sum(_read(self._clock))
        self.late = self.late or host_s - self._stalled_s > _LATE * device_s
        self.host_s.append(host_s)
        self.device_s += device_s

    def run_input(self, run: Callable[[], None]) -> None:
        """Run the input's phase without a stall, which would have to be longer than decoding. Only the device's work
        after the host has returned, such as receiving the batch, counts."""
        self._clock.mark()
        began_s = self._now()
        run()
        host_s = self._now() - began_s
        self._clock.mark()
        self.device_s += max(0.0, sum(_read(self._clock)) - host_s)


def device_busy_s(
    session: Session,
    ranges: Ranges,
    first: int,
    stall: Callable[[float], None],
    period: int = 1,
    now: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Return the seconds that the device works in a step, without waiting for the host: the median of several rounds.
    The device's stream is stalled while the host launches a part of a step, so that the device then works without gaps.
    A first round without stalls measures how long the host takes. A round is one `period` of steps, of which the mean
    counts. Returns None if the host was late in every round: it needs longer than the longest stall, or waits for
    the device within a step."""
    parts = _StalledParts(session.clock, stall, now)

    def run_round() -> float:
        """Run one period of steps in stalled parts and return the seconds that it took."""
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
                rounds_s.append(_positive(parts.device_s / period))
    return statistics.median(rounds_s) if rounds_s else None


def _concatenate(first: Sequence[PhaseTimes], second: Sequence[PhaseTimes]) -> tuple[PhaseTimes, ...]:
    """Return the phase times of two consecutive passes as those of one pass. Both have the same phases."""
    return tuple(
        PhaseTimes(
            name=before.name,
            host_s=before.host_s + after.host_s,
            device_s=None if before.device_s is None or after.device_s is None else before.device_s + after.device_s,
        )
        for before, after in zip(first, second, strict=True)
    )


def _period_means(times_s: Sequence[float], period: int) -> tuple[float, ...]:
    """Return the mean time of each period; `period` is its number of steps, and the last one may be shorter."""
    return tuple(statistics.fmean(times_s[i : i + period]) for i in range(0, len(times_s), period))


def at_host_speed(measurement: Measurement, speed: float) -> Measurement:
    """Return the measurement as if the host were `speed` times as fast: all times divided by `speed`. The simulated
    device was slowed down by `speed` during the measurement, so that its times become right."""
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


class _LayerRecorder:
    """Forwards the begin and end of each layer of a session to the span recorder and to NVTX."""

    def __init__(self, ranges: Ranges, recorder: SpanRecorder) -> None:
        self._ranges = ranges
        self._recorder = recorder

    def begin(self, name: str) -> None:
        """Begin a layer."""
        self._recorder.begin("layer", name)
        self._ranges.push(self._ranges.layer(name))

    def end(self) -> None:
        """End the layer that began last."""
        self._ranges.pop()
        self._recorder.end()


def _positive(time_s: float) -> float:
    """Return a step time that is above 0. Raises ClockError for any other."""
    if not time_s > 0:
        raise ClockError(f"the clock shows that a step took {time_s:g} s; expected more than 0")
    return time_s


def _finite(loss: float | None, when: str) -> float | None:
    """Return a loss that is finite or None. Raises LossError for any other."""
    if loss is not None and not math.isfinite(loss):
        raise LossError(f"the loss is {loss} {when}: this config does not train with these settings")
    return loss
