"""Traces of simulated training in the formats of PyTorch's profiler and of Nsight Systems, with the true causes of the
GPU's idle time.

A program with a main thread and a backward thread launches kernels, copies and collectives on two streams. While it
runs, it paints what it really does on a time axis of ticks. The truth is read off that axis. Nothing here is shared
with the reader or the analysis.
"""

import gzip
import json
import random
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TICK_NS = 100
PYTHON, OPERATOR, CALL, INPUT, SYNCHRONISATION = range(5)
LABELS = ("python", "operator", "launch_call", "input", "synchronisation")
MAIN, BACKWARD = 4100, 4200
COMPUTE, NETWORK = 7, 20
PROCESS, OTHER_PROCESS = 4100, 5100


@dataclass
class Work:
    """A kernel or a copy that the simulated GPU ran, with the reason for which it did not begin earlier."""

    begin: int
    end: int
    call_begin: int
    call_end: int
    waited_for_stream: bool
    has_launch: bool = True
    is_network: bool = False


@dataclass
class Truth:
    """The figures that the trace must show: times in ticks, causes as shares of the window."""

    window: int
    steps: int
    busy: float
    exposed: float
    launches: int
    causes: dict[str, float]


@dataclass
class Program:
    """One simulated training run. `seed` decides everything. With `graphs` it also launches CUDA graphs."""

    seed: int
    graphs: bool = False
    events: list[dict] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    paint: list[tuple[int, int, int]] = field(default_factory=list)

    def __post_init__(self):
        self.random = random.Random(self.seed)
        r = self.random
        self.now = 1000
        self.amd = r.random() < 0.3
        self.free = {COMPUTE: 0, NETWORK: 0}
        self.correlation = 0
        self.kernel = 10 ** r.uniform(0.5, 3)  # ticks: 0.3 to 100 µs
        self.python = 10 ** r.uniform(1, 2.3)
        self.operator = 10 ** r.uniform(1, 2.5)
        self.input = r.choice([0, 0, 1]) * 10 ** r.uniform(3, 5)
        self.synchronises = r.random() < 0.5
        self.pageable = r.random() < 0.5
        self.distributed = r.random() < 0.5
        self.lost = r.choice([0, 0, 0.02])
        self.depends_on = 0  # the end of the collective that the next kernel must wait for

    def around(self, mean):
        return max(1, int(mean * self.random.uniform(0.5, 1.6)))

    def do(self, ticks, label):
        self.paint.append((self.now, self.now + ticks, label))
        self.now += ticks

    def event(self, category, name, thread, begin, end, **arguments):
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": PROCESS,
                "tid": thread,
                "ts": begin * TICK_NS / 1000,
                "dur": (end - begin) * TICK_NS / 1000,
                "args": arguments,
            }
        )

    def launch(self, thread, name, ticks, kind="kernel", stream=COMPUTE, depends_on=0, label=CALL, blocks=False):
        self.correlation += 1
        call_begin, length = self.now, self.around(45)
        ready = call_begin + length + self.around(30)
        free = self.free[stream] + self.around(8)
        depended = depends_on + self.around(15) if depends_on else 0
        begin = max(ready, free, depended)
        end = begin + ticks
        self.free[stream] = end
        if blocks:  # the call returns when the copy is done
            length = max(length, end + self.around(20) - call_begin)
        self.do(length, SYNCHRONISATION if blocks else label)
        has_launch = self.random.random() >= self.lost
        work = Work(begin, end, call_begin, self.now, depended == begin, has_launch, stream == NETWORK)
        self.works.append(work)
        function = {"kernel": "LaunchKernel", "graph": "GraphLaunch"}.get(kind, "MemcpyAsync")
        api = ("hip" if self.amd else "cuda") + function
        if has_launch:
            self.event("cuda_runtime", api, thread, call_begin, self.now, correlation=self.correlation)
            self.events.append(
                {"ph": "s", "cat": "ac2g", "id": self.correlation, "pid": PROCESS, "tid": thread, "ts": 0}
            )
        self.event(kind, name, stream, begin, end, device=0, stream=stream, correlation=self.correlation)
        self.events[-1]["pid"] = 0
        return end

    def launch_graph(self):
        """Launch a graph that is recorded as a whole or by node. Its nodes have gaps."""
        self.do(self.around(self.python), PYTHON)
        is_recorded_whole = self.random.random() < 0.5
        end = self.launch(MAIN, "a_kernel", self.around(self.kernel), "graph", depends_on=self.depends_on)
        self.depends_on, launch = 0, self.works[-1]
        if is_recorded_whole:
            return
        self.events[-1]["cat"] = "kernel"
        for _ in range(self.random.randint(1, 5)):
            begin = end + self.around(4)
            end = begin + self.around(self.kernel)
            self.works.append(Work(begin, end, launch.call_begin, launch.call_end, False, launch.has_launch))
            arguments = {"device": 0, "stream": COMPUTE, "correlation": self.correlation}
            self.event("kernel", "a_kernel", COMPUTE, begin, end, **arguments)
            self.events[-1]["pid"] = 0
        self.free[COMPUTE] = end

    def operator_with_kernel(self, thread, name):
        begin = self.now
        self.do(self.around(self.operator), OPERATOR)
        self.launch(thread, "a_kernel", self.around(self.kernel), depends_on=self.depends_on)
        self.depends_on = 0
        self.do(self.around(self.operator / 2), OPERATOR)
        self.event("cpu_op", name, thread, begin, self.now)
        self.event("cpu_op", f"aten::_{name}", thread, begin + 1, self.now - 1)

    def step(self, number):
        begin = self.now
        if self.input:
            self.do(self.around(self.python), PYTHON)
            start = self.now
            self.do(self.around(self.input), INPUT)
            self.event("cpu_op", "aten::stack", MAIN, start + 2, self.now - 2)
            self.event("user_annotation", "enumerate(DataLoader)#Iter.__next__", MAIN, start, self.now)
            if self.pageable:
                self.launch(MAIN, "Memcpy HtoD", self.around(100), "gpu_memcpy", blocks=True)
        for _ in range(self.random.randint(5, 60)):
            self.do(self.around(self.python), PYTHON)
            if self.graphs and self.random.random() < 0.3:
                self.launch_graph()
            self.operator_with_kernel(MAIN, "aten::conv2d")
        if self.synchronises:
            self.do(self.around(self.python), PYTHON)
            start = self.now
            self.do(self.around(self.operator), OPERATOR)
            end = self.launch(MAIN, "Memcpy DtoH", 12, "gpu_memcpy")
            waits = self.now
            self.do(max(self.around(20), end - self.now + self.around(20)), SYNCHRONISATION)
            api = "hipStreamSynchronize" if self.amd else "cudaStreamSynchronize"
            self.event("cuda_runtime", api, MAIN, waits, self.now, correlation=0)
            self.event("cpu_op", "aten::item", MAIN, start, self.now)
        self.do(self.around(self.python), PYTHON)
        reduced = 0
        for index in range(self.random.randint(5, 60)):  # the main thread waits without a mark
            self.operator_with_kernel(BACKWARD, "autograd::engine::evaluate_function: ConvBackward0")
            if self.distributed and index % 10 == 9:
                start = self.now
                self.do(self.around(20), OPERATOR)
                ticks = self.around(self.kernel * self.random.uniform(2, 20))
                reduced = self.launch(BACKWARD, "ncclDevKernel_X", ticks, stream=NETWORK, depends_on=self.free[COMPUTE])
                self.event("cpu_op", "c10d::allreduce_", BACKWARD, start, self.now)
        self.depends_on = reduced
        self.do(self.around(self.python), PYTHON)
        start = self.now
        for _ in range(self.random.randint(1, 20)):
            self.operator_with_kernel(MAIN, "aten::add_")
            self.do(self.around(self.python / 3), PYTHON)
        self.event("user_annotation", "Optimizer.step#SGD.step", MAIN, start, self.now)
        self.do(self.around(self.python), PYTHON)
        self.event("user_annotation", f"ProfilerStep#{number}", MAIN, begin, self.now)
        self.events.append(dict(self.events[-1], cat="gpu_user_annotation", pid=0, tid=COMPUTE))
        self.do(3, PYTHON)
        return begin, self.now - 3

    def run(self) -> Truth:
        steps = self.random.randint(1, 5)
        earlier_end = 0
        if self.random.random() < 0.4:  # work that was launched before the recording began
            earlier_end = self.now + self.around(2000)
            self.event(
                "kernel", "earlier", COMPUTE, 500, earlier_end, device=0, stream=COMPUTE, correlation=999_999_999
            )
            self.events[-1]["pid"] = 0
            self.free[COMPUTE] = earlier_end
        times = [self.step(number + 7) for number in range(steps)]
        first = min(work.begin for work in self.works if work.has_launch)
        begin = min(first, max(times[0][0], earlier_end))
        end = max(times[-1][1], *(work.end for work in self.works if work.has_launch))
        return self._truth(begin, end, steps)

    def _truth(self, begin, end, steps) -> Truth:
        n = max(end, *(work.end for work in self.works)) + 1
        label, busy, computing, cause = (np.zeros(n, dtype) for dtype in (np.int8, bool, bool, "U15"))
        for first, last, code in self.paint:
            label[first:last] = code
        cause[:] = np.array(LABELS)[label]
        ordered = sorted(self.works, key=lambda work: work.begin)
        for work in ordered:
            busy[work.begin : work.end] = True
            computing[work.begin : work.end] |= not work.is_network
        reached = begin
        for work in ordered:
            if work.begin > reached:  # all of the axis from `reached` on is idle up to this work
                gap = slice(reached, work.begin)
                if not work.has_launch:
                    cause[gap] = "unknown"
                elif work.call_begin <= reached:
                    cause[gap] = "stream_wait" if work.waited_for_stream else "dispatch"
                else:
                    cause[work.call_begin : work.begin] = "launch_call"
            reached = max(reached, work.end)
        busy, computing, cause = busy[begin:end], computing[begin:end], cause[begin:end]
        names = (*LABELS, "dispatch", "stream_wait", "unknown")
        causes = {name: float(np.mean(~busy & (cause == name))) for name in names}
        inside = {w.call_begin for w in self.works if w.has_launch and w.begin < end and w.end > begin}
        return Truth(end - begin, steps, float(busy.mean()), float((busy & ~computing).mean()), len(inside), causes)


def write(path: Path, seed: int, graphs: bool = False) -> Truth:
    """Write the trace of a seed and return its truth. The path's suffix tells the format, .gz that it is packed."""
    program = Program(seed, graphs)
    truth = program.run()
    if path.suffix == ".sqlite":
        _write_report(path, program, truth.steps)
    else:
        _write_kineto(path, program)
    return truth


def _write_kineto(path: Path, program: Program) -> None:
    extras = [
        {"ph": "M", "name": "process_name", "pid": PROCESS, "tid": 0, "ts": 0, "args": {"name": "python"}},
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler (0)",
            "pid": "Spans",
            "tid": "PyTorch Profiler",
            "ts": 1.5,
            "dur": 7,
        },
        {"ph": "i", "cat": None, "name": "Iteration Start", "pid": "Traces", "tid": "Trace", "ts": 1.5, "s": "g"},
    ]
    events = [*(dict(e, cat="kernel") if e["cat"] == "graph" else e for e in program.events), *extras]
    program.random.shuffle(events)
    name = "AMD Instinct" if program.amd else "NVIDIA H100"
    trace = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": name}],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    trace |= {"traceEvents": events, "traceName": "t.json"}
    content = json.dumps(trace, indent=program.random.choice([None, 1])).encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)


_WORK = "start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT"
_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "TARGET_INFO_GPU": "id INT, name TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INT, cudaId INT, pid INT",
    "NVTX_EVENTS": "start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT, domainId INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, globalTid INT, correlationId INT, nameId INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK}, demangledName INT, shortName INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK}, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_WORK}, graphId INT",
}
_WORK_TABLES = {"kernel": "KERNEL", "gpu_memcpy": "MEMCPY", "graph": "GRAPH_TRACE"}


def _write_report(path: Path, program: Program, steps: int) -> None:
    """Write two processes, each on a GPU that it knows as device 0. The other one does less work, and that earlier."""
    database, strings = sqlite3.connect(path), {}
    for table, columns in _TABLES.items():
        database.execute(f"CREATE TABLE {table} ({columns})")

    def insert(table, **values):
        marks = ", ".join("?" * len(values))
        database.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))

    def string(text):
        return strings.setdefault(text, len(strings) + 1)

    for process, gpu in ((OTHER_PROCESS, 1), (PROCESS, 3)):
        insert("TARGET_INFO_GPU", id=gpu, name=f"GPU {gpu}")
        insert("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=process)
        for number, event in enumerate(program.events):
            category, name, arguments = event["cat"], event.get("name", ""), event.get("args", {})
            begin = round(event["ts"] * 1000) + (0 if process == PROCESS else -40_000)
            times = {"start": begin, "end": begin + round(event.get("dur", 0) * 1000)}
            thread = (1 << 48) + (process << 24) + event["tid"]
            correlation = arguments.get("correlation")
            if category == "cuda_runtime":
                name = name.replace("hip", "cuda") + "_v7000"
                correlated = {"correlationId": correlation, "nameId": string(name)}
                insert("CUPTI_ACTIVITY_KIND_RUNTIME", **times, globalTid=thread, **correlated)
            elif category == "cpu_op":
                text = f"{name}, seq = {number}, op_id = {number}" if number % 2 else f"{name}, op_id = {number}"
                insert("NVTX_EVENTS", **times, eventType=59, text=text, globalTid=thread, domainId=0)
            elif category == "user_annotation":
                name = name.replace("ProfilerStep#", "iteration ") if steps > 2 else name
                kind = 60 if "Optimizer" in name else 59
                insert("NVTX_EVENTS", **times, eventType=kind, textId=string(name), globalTid=thread, domainId=4)
            elif category in _WORK_TABLES and (process == PROCESS or number % 2):
                place = {"deviceId": 0, "streamId": arguments["stream"], "globalPid": thread >> 24 << 24}
                more = {"demangledName": string(name)} if category == "kernel" else {}
                table = f"CUPTI_ACTIVITY_KIND_{_WORK_TABLES[category]}"
                insert(table, **times, **place, correlationId=correlation, **more)
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in strings.items()])
    database.commit()
    database.close()
