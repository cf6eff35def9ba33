"""Reads and judges traces of any training."""

import re
from dataclasses import dataclass
from pathlib import Path

from tcbench import tracing
from tcbench.analysis.host_trace import judge_training
from tcbench.analysis.trace_advice import PeakRates, TraceAdvice, advise
from tcbench.analysis.trace_verdict import TraceVerdict
from tcbench.core.training_trace import TrainingTrace
from tcbench.engine.api import timing_model
from tcbench.hardware import gpus


@dataclass(frozen=True)
class JudgedTrace:
    """A trace from the file `path`, its verdict and the advice."""

    path: Path
    trace: TrainingTrace
    verdict: TraceVerdict
    advice: tuple[TraceAdvice, ...]


def judge_file(path: Path, most_bytes: int = tracing.MOST_BYTES) -> JudgedTrace:
    """Read a trace of at most `most_bytes` when unpacked, and return it with its verdict and advice. Raises
    TraceError."""
    trace = tracing.read_training(path, most_bytes)
    verdict = judge_training(trace)
    if verdict is None:
        raise tracing.without_work(path, trace)
    return JudgedTrace(path, trace, verdict, advise(trace, verdict, published_rates(verdict.device_name)))


def published_rates(device_name: str) -> PeakRates | None:
    """Return the published peak rates of the GPU whose short name, such as "A100", is a word of a device's name; None
    if there is no property file for it. The file is that of the fastest board of this name: on another one, less can be
    saved, so that the estimates stay upper bounds."""
    words = re.split(r"\W+", device_name.upper())
    peaks = next((timing_model(gpus.load(name)).peaks for name in gpus.NAMES if name in words), None)
    return None if peaks is None else PeakRates(peaks.flops_s, peaks.bandwidth_bytes_s)
