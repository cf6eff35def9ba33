"""Timelines for tests: exact small ones, and ones in the shape of the talk's slides.

Imported as `import timelines`: the suite's `pythonpath` is `tests`.
"""

import collections
import functools
import gzip
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tcbench.core.record import Record
from tcbench.core.timeline import Span, Timeline

V100 = "Tesla V100-DGXS-16GB"
KERNELS = (
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>(cudnnTensorStruct, float const*)",
    "volta_h884cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1",
    "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int, float const*)",
    "cupy_multi_tensor_update",
    "relu_backward",
)


def make_timeline(
    *spans: Span, phases: Sequence[str] = ("io", "forward"), batch_size: int = 64, label: str = "fp16, batch size 64"
) -> Timeline:
    """A timeline of just these spans."""
    return Timeline(label, "cuda:0", V100, batch_size, "cupti", phases, spans)


def step(begin_s: float, end_s: float, number: int = 0) -> Span:
    return Span(begin_s, end_s, "host", "step", "step", number)


def phase(name: str, begin_s: float, end_s: float, number: int = 0) -> Span:
    return Span(begin_s, end_s, "host", "phase", name, number, name)


def api(name: str, begin_s: float, end_s: float) -> Span:
    return Span(begin_s, end_s, "host", "api", name)


def kernel(begin_s: float, end_s: float, phase: str | None = "forward", name: str = "k", row: int = 0) -> Span:
    return Span(begin_s, end_s, "gpu", "kernel", name, 0, phase, row)


def work(begin_s: float, end_s: float, row: int = 0) -> Span:
    return Span(begin_s, end_s, "io", "work", "batch", None, "io", row)


def training(
    label: str,
    host_ms: Mapping[str, float],
    gpu_ms: Mapping[str, float],
    *,
    kernels: Mapping[str, int] | None = None,
    input_ms: float = 0.0,
    steps: int = 6,
    batch_size: int = 64,
    layers: int = 0,
    first: int = 40,
) -> Timeline:
    """Steps as a GPU runs them: the host launches a phase's kernels evenly over its time there, each starts when it is
    launched and the one before is done, and the last phase waits for the step before to be done. `input_ms`: a thread
    makes the batches, up to two ahead."""
    counts = kernels or {"forward": 160, "backward": 320, "update": 161}
    spans: list[Span] = []
    now = free = 0.0
    ready = [0.0, 0.0]
    thread = 0.0
    done = [0.0]
    for number in range(first, first + steps):
        begin = now
        for name, took_ms in host_ms.items():
            start = now
            if name == "io" and input_ms:
                now = max(now, ready.pop(0))
                thread = max(thread, start)
                ready.append(thread + input_ms / 1e3)
                spans.append(Span(thread, ready[-1], "io", "work", "batch", number + 2, "io"))
                thread = ready[-1]
            n = counts.get(name, 0)
            end = now + took_ms / 1e3
            for i in range(n):
                launch_s = now + (i + 0.5) * took_ms / 1e3 / n
                spans.append(Span(launch_s - 4e-6, launch_s, "host", "api", "cudaLaunchKernel", number, name))
                begin_k = max(launch_s + 5e-6, free)
                # Kernels differ: each third one takes half of the time.
                weight = (0.5, 0.75, 1.75)[i % 3]
                free = begin_k + weight * gpu_ms[name] / 1e3 / n
                spans.append(Span(begin_k, free, "gpu", "kernel", KERNELS[i % len(KERNELS)], number, name))
            if name == "io":
                begin_k = max(end, free)
                free = begin_k + 0.2e-3
                spans.append(Span(begin_k, free, "gpu", "copy", "HtoD", number, name, 0, batch_size * 224 * 224 * 3))
            for i in range(layers if name in ("forward", "backward") else 0):
                parts = now + i * took_ms / 1e3 / layers, now + (i + 1) * took_ms / 1e3 / layers
                spans.append(Span(*parts, "host", "layer", f"block{i // 4}.{'abcs'[i % 4]}", number, name))
            if name == "update" and done[-1] > end:
                spans.append(Span(end, done[-1], "host", "api", "cudaEventSynchronize", number, name))
                end = done[-1]
            spans.append(Span(start, end, "host", "phase", name, number, name))
            now = end
        done.append(free)
        now += 0.1e-3
        spans.append(Span(begin, now, "host", "step", "step", number))
    return Timeline(label, "cuda:0", V100, batch_size, "cupti", tuple(host_ms), spans)


HOST = {"io": 22.0, "forward": 25.0, "backward": 35.0, "update": 25.0}
FEW = {"forward": 107, "backward": 160, "update": 1}


@functools.cache
def talk() -> dict[str, Timeline]:
    """The talk's timelines at batch size 64 by slide, with times of that order."""
    fp32 = {"forward": 52.0, "backward": 108.0, "update": 6.0}
    fp16 = {"forward": 18.0, "backward": 34.0, "update": 6.0}
    nhwc = {"forward": 12.0, "backward": 24.0, "update": 1.5}
    dali = {**HOST, "io": 0.4}
    best = {"io": 0.4, "forward": 19.0, "backward": 30.0, "update": 1.0}
    static = {"io": 0.4, "forward": 9.0, "backward": 15.0, "update": 1.0}
    return {
        "15": training("fp32, batch size 64", HOST, fp32),
        "17": training("fp16, batch size 64", HOST, fp16),
        "22": training("fp16+dali, batch size 64", dali, fp16, input_ms=30, layers=72),
        "28": training("fp16+dali+batched+nhwc+fused, batch size 64", best, nhwc, kernels=FEW, input_ms=30),
        "32": training(
            "fp16+dali+batched+nhwc+fused+static_graph, batch size 64", static, nhwc, kernels=FEW, input_ms=30
        ),
    }


def busy_timeline(steps: int = 1) -> Timeline:
    """One step of 100 ms per number: io 0-20, forward 20-60, backward 60-100; the GPU works 30-50 and 55-95."""
    spans = itertools.chain.from_iterable(
        (
            step(t, t + 0.1, n),
            phase("io", t, t + 0.02, n),
            phase("forward", t + 0.02, t + 0.06, n),
            phase("backward", t + 0.06, t + 0.1, n),
            kernel(t + 0.03, t + 0.05, "forward"),
            kernel(t + 0.055, t + 0.095, "backward", "other"),
        )
        for n, t in enumerate(0.1 * i for i in range(steps))
    )
    return make_timeline(*spans, phases=("io", "forward", "backward"))


def record_in(trace: Path) -> Record:
    """The record of the trial in which a trace was taken."""
    content = json.loads(gzip.decompress(trace.read_bytes()))
    return msgspec.convert(content["otherData"]["tcbench"]["record"], Record)


def events_in(trace: Path) -> list[dict]:
    """The events of a trace as viewers see them."""
    content = trace.read_bytes()
    return json.loads(gzip.decompress(content) if trace.suffix == ".gz" else content)["traceEvents"]


def crossing(trace: Path) -> list[str]:
    """The names of spans that begin within another one of their thread and end after it. Viewers leave these out."""
    rows = collections.defaultdict(list)
    for event in events_in(trace):
        if event["ph"] == "X":
            begin_ns = round(event["ts"] * 1e3)
            rows[event["pid"], event["tid"]].append((begin_ns, -begin_ns - round(event["dur"] * 1e3), event["name"]))
    names = []
    for row in rows.values():
        ends_ns: list[int] = []
        for begin_ns, minus_end_ns, name in sorted(row):
            while ends_ns and ends_ns[-1] <= begin_ns:
                ends_ns.pop()
            if ends_ns and ends_ns[-1] < -minus_end_ns:
                names.append(name)
            ends_ns.append(-minus_end_ns)
    return names
