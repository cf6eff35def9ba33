"""Values with their 95% confidence intervals. Pure functions of numbers; knows nothing of records, cells or views.

Which interval is right depends on what was repeated:

* one trial: the steps of one process, which are not independent of each other (`mean_of_steps`);
* several trials: the trials. Memory layout, autotuning and the clock's mood change from process to process and not
  within one, so that more steps of one trial cannot make the answer surer than its trials are (T. Kalibera and
  R. Jones, "Rigorous Benchmarking in Reasonable Time", ISMM 2013, sections 5 and 6) (`mean_of_trials`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.measure.stopping import relative_half_width, t_quantile_975


@dataclass(frozen=True)
class Interval:
    """A value and the limits of its 95% confidence interval, all in the value's unit. `high` may be infinite."""

    value: float
    low: float
    high: float

    @property
    def relative_half_width(self) -> float:
        """Half the interval's width over the value; infinite when the interval is."""
        return (self.high - self.low) / 2 / self.value

    def holds(self, value: float) -> bool:
        """Whether a value lies inside the interval."""
        return self.low <= value <= self.high


def mean_of_steps(times_s: Sequence[float]) -> Interval:
    """Mean step time of one trial, in seconds, with an interval over its steps.

    Student's t with the sample size that the lag-1 autocorrelation leaves (source: `tcbench.measure.stopping`, which
    asks the same formula when to stop). The lower limit is never below 0. Raises ValueError without a step.
    """
    if not times_s:
        raise ValueError("the mean of no steps")
    mean = statistics.fmean(times_s)
    half = relative_half_width(times_s)
    return Interval(mean, mean * max(0.0, 1 - half), mean * (1 + half))


def mean_of_trials(trials_s: Sequence[Sequence[float]]) -> Interval:
    """Mean step time over several trials' steps, in seconds, with an interval over the trials.

    The value is total time over total steps. The interval is Student's t on the logarithms of the trials' mean step
    times: times are positive and differ by factors (Kalibera and Jones 2013, section 6; the logarithm as in P. Fleming
    and J. Wallace, "How not to lie with statistics", CACM 29(3), 1986). Its factor is laid about the value, so that
    the value stays inside when trials have unlike numbers of steps. Raises ValueError below two trials, or when
    one is empty.
    """
    if len(trials_s) < 2:
        raise ValueError("an interval over trials needs at least two")
    if not all(trials_s):
        raise ValueError("a trial without a step")
    value = math.fsum(t for trial in trials_s for t in trial) / sum(map(len, trials_s))
    logs = [math.log(statistics.fmean(trial)) for trial in trials_s]
    half = t_quantile_975(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(value, value * math.exp(-half), value * _exp(half))


def mean_step_time(trials_s: Sequence[Sequence[float]]) -> Interval:
    """Mean step time, in seconds: over steps with one trial, over trials with more."""
    return mean_of_steps(trials_s[0]) if len(trials_s) == 1 else mean_of_trials(trials_s)


def throughput(step_time_s: Interval, batch_size: int) -> Interval:
    """Images per second from the mean step time: images over total time, which is not the mean of the steps' rates.

    The limits are those of the step time, turned over.
    """
    return Interval(batch_size / step_time_s.value, batch_size / step_time_s.high, _over(batch_size, step_time_s.low))


def ratio(numerator: Interval, denominator: Interval) -> Interval:
    """numerator / denominator, two positive values measured independently of each other.

    Distances to the limits are added in squares on the logarithmic scale: the delta method, in the form that keeps
    limits that are not symmetric and needs no degrees of freedom (G. Zou and A. Donner, "Construction of confidence
    limits about effect measures: a general approach", Statistics in Medicine 27, 2008, equation 10).
    """
    value = numerator.value / denominator.value
    below = math.hypot(_log_ratio(numerator.value, numerator.low), _log_ratio(denominator.high, denominator.value))
    above = math.hypot(_log_ratio(numerator.high, numerator.value), _log_ratio(denominator.value, denominator.low))
    return Interval(value, value * math.exp(-below), value * _exp(above))


def _log_ratio(upper: float, lower: float) -> float:
    return math.inf if lower == 0 or math.isinf(upper) else math.log(upper / lower)


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.inf


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf
