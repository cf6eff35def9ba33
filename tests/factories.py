"""Cells, measurements and records for tests: valid and plausible by default, each keyword changes one thing.

Imported as `import factories`: the suite's `pythonpath` is `tests`.
"""

import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tcbench.core.record import (
    SCHEMA_VERSION,
    Cell,
    CudnnSettings,
    Environment,
    Input,
    Measurement,
    MeasureSettings,
    PhaseTimes,
    RankPart,
    Ranks,
    Record,
    Status,
    TrainSettings,
    encode,
)

LADDER = ("fp32", "fp32+dali", "fp32+dali+batched", "fp32+dali+batched+nhwc+fused")
LADDER += (LADDER[-1] + "+static_graph",)
LADDERS = LADDER + tuple(config.replace("fp32", "fp16") for config in LADDER)
"""The ten configs of the scenarios that come with tcbench, in their order."""

REASONS: dict[Status, str] = {
    "skipped": "opencv: needs the package cv2: pip install opencv-python-headless",
    "oom": "out of memory: the kernel killed the worker (SIGKILL)",
    "failed": "ValueError: the loss is nan",
    "timeout": "no result after 1800 s (--timeout)",
    "crashed": "the worker was killed by signal 11 (SIGSEGV)",
}


def make_cell(config: str = "fp32", batch_size: int = 4, **changes: Any) -> Cell:
    """A cell of the CPU scenario; its rungs are the config's parts. `changes` are fields of Cell."""
    cell = Cell(
        scenario="cpu",
        backend="chainer",
        model="resnet50",
        variant="v1",
        config=config,
        rungs=tuple(config.split("+")),
        batch_size=batch_size,
        image_size=64,
        n_classes=1000,
        device="cpu",
        input=Input(kind="generated"),
        seed=0,
        threads=2,
        train=TrainSettings(),
        cudnn=CudnnSettings(),
        measure=MeasureSettings(),
    )
    return msgspec.structs.replace(cell, **changes)


def make_ablation(config: str = "fp16", batch_size: int = 4) -> Cell:
    """The config's cell with autotuning off, as the scenario `settings` has it."""
    base = make_cell(config, batch_size)
    changed = msgspec.structs.replace(base.cudnn, autotune=False)
    return msgspec.structs.replace(base, config=f"{config}:no-autotune", cudnn=changed, scenario_cudnn=base.cudnn)


def make_peer_cell(config: str = "torch/fp32", batch_size: int = 4, **changes: Any) -> Cell:
    """A cell of any backend, as a scenario names it: "torch/fp32+dali", or "fp32" for ours."""
    backend, _, rungs = config.rpartition("/")
    return msgspec.structs.replace(make_cell(rungs, batch_size, **changes), config=config, backend=backend or "chainer")


def make_environment(machine: str = "amd-epyc-2cpu", device_name: str = "AMD EPYC", **changes: Any) -> Environment:
    """A machine without a GPU. `changes` are fields of Environment."""
    environment = Environment(
        machine=machine,
        device_name=device_name,
        cpu="AMD EPYC",
        cpus=2,
        memory_bytes=8 * 2**30,
        os="Debian GNU/Linux 12 (bookworm)",
        kernel="6.1.0",
        python="3.11.2",
        packages={"chainer": "7.8.1", "numpy": "2.2.0"},
        blas="OpenBLAS 0.3.28",
        tcbench="0.1.0",
    )
    return msgspec.structs.replace(environment, **changes)


def make_step_times(step_time_s: float = 0.1, steps: int = 24, noise: float = 0.01, seed: int = 0) -> tuple[float, ...]:
    """Step times about a mean, log-normal with the relative standard deviation `noise`."""
    draw = random.Random(seed)
    return tuple(step_time_s * math.exp(noise * draw.gauss(0, 1)) for _ in range(steps))


def make_measurement(step_times_s: Sequence[float] | None = None, **changes: Any) -> Measurement:
    """Return the measurement of an ok trial. `step_times_s` are all timed steps, including the first of each block."""
    times_s = tuple(make_step_times() if step_times_s is None else step_times_s)
    mean_s = sum(times_s) / len(times_s) if times_s else 0.1
    shares = {"io": 0.1, "forward": 0.3, "backward": 0.5, "update": 0.1}
    measurement = Measurement(
        warmup_times_s=(3 * mean_s, mean_s, mean_s, mean_s),
        warmup_settled=True,
        step_times_s=times_s,
        block_steps=6,
        stopped_by="target",
        phases=make_phases({name: share * mean_s for name, share in shares.items()}),
        warmup_loss=6.9,
        last_loss=6.8,
        peak_memory_bytes=600 * 2**20,
        peak_memory_of="process",
        prefetch_depth=2,
        parameters=25_557_032,
        macs_per_image=315_000_000,
        gc_frozen=True,
    )
    return msgspec.structs.replace(measurement, **changes)


def make_ranks(**changes: Any) -> Ranks:
    """Ranks of one host, over MPI. `changes` are fields of Ranks."""
    ranks = Ranks(
        launcher="mpirun -np {n}",
        engine="ChainerMN naive over Open MPI v5.0.11",
        hosts=("host",),
        binding="one core each",
    )
    return msgspec.structs.replace(ranks, **changes)


def make_measurement_of_ranks(
    step_times_s: Sequence[float],
    ranks: int,
    *,
    allreduce: float = 0.2,
    slow: dict[int, float] | None = None,
    reduced_bytes: int = 102_228_128,
    **changes: Any,
) -> Measurement:
    """The measurement of a trial on many ranks; of one rank it is `make_measurement`'s. `allreduce` is the share of a
    mean step that the exchange itself takes. `slow`: by how many times as long as the others some ranks compute; these
    wait for the slowest in the phase `allreduce`."""
    if ranks == 1:
        return make_measurement(step_times_s, **changes)
    mean_s = sum(step_times_s) / len(step_times_s)
    slowest = max([1.0, *(slow or {}).values()])
    shares = {"io": 0.02, "forward": 0.3, "backward": 0.6, "update": 0.08}
    parts = []
    for rank in range(ranks):
        own_s = {
            name: share * (1 - allreduce) * mean_s * (1 if name in ("io", "update") else (slow or {}).get(rank, 1.0))
            for name, share in shares.items()
        }
        waits_s = 0.9 * (1 - allreduce) * mean_s * (slowest - (slow or {}).get(rank, 1.0))
        own_s["allreduce"] = allreduce * mean_s + waits_s
        phases = {name: (own_s[name],) * 5 for name in ("io", "forward", "backward", "allreduce", "update")}
        parts.append(make_rank_part(phases, rank, cores=(rank,), step_times_s=tuple(step_times_s)))
    measured = make_measurement(
        step_times_s, phases=parts[0].phases, ranks=tuple(parts), reduced_bytes=reduced_bytes, prefetch_depth=0
    )
    return msgspec.structs.replace(measured, **changes)


def make_rank_part(host_s: Mapping[str, Sequence[float]], rank: int = 0, **changes: Any) -> RankPart:
    """One rank's part in a trial; `host_s`: the times of each phase."""
    part = RankPart(
        rank=rank,
        host="host",
        cores=(),
        device="cpu",
        step_times_s=(0.1, 0.1),
        phases=make_phases(host_s),
        peak_memory_bytes=500 * 2**20,
    )
    return msgspec.structs.replace(part, **changes)


def make_phases(host_s: Mapping[str, float | Sequence[float]], steps: int = 5) -> tuple[PhaseTimes, ...]:
    """Phases with these times on the host, one for each step; a single time is that of so many steps."""
    return tuple(
        PhaseTimes(name=name, host_s=(times_s,) * steps if isinstance(times_s, float) else tuple(times_s))
        for name, times_s in host_s.items()
    )


def remeasured(record: Record, **changes: Any) -> Record:
    """The record with other fields of its measurement."""
    return msgspec.structs.replace(record, measurement=msgspec.structs.replace(record.measurement, **changes))


def make_record(
    config: str = "fp32",
    batch_size: int = 4,
    *,
    status: Status = "ok",
    images_per_s: float = 40.0,
    noise: float = 0.01,
    trial: int = 0,
    cell: Cell | None = None,
    **changes: Any,
) -> Record:
    """One trial. An ok one has steps at about `images_per_s`; another has its status' usual reason, and as in a real
    run a skipped, crashed or timed out one knows nothing of its environment. `changes` are fields of Record."""
    cell = cell or make_cell(config, batch_size)
    ok = status == "ok"
    digest = hashlib.sha256(msgspec.json.encode(cell, order="deterministic")).hexdigest()[:16]
    seed = (trial + 1) * sum(map(ord, digest))
    times_s = make_step_times(cell.images_per_step / images_per_s, noise=noise, seed=seed)
    record = Record(
        schema_version=SCHEMA_VERSION,
        run_id="cpu-20250102-030405",
        cell=cell,
        trial=trial,
        status=status,
        reason=REASONS.get(status),
        started_at="2025-01-02T03:04:05.678+00:00",
        duration_s=10.0,
        measurement=make_measurement_of_ranks(times_s, cell.ranks) if ok else None,
        environment=make_environment(ranks=make_ranks() if cell.ranks > 1 else None)
        if status in ("ok", "oom", "failed")
        else None,
    )
    return msgspec.structs.replace(record, **changes)


def make_trials(
    config: str = "fp32",
    batch_size: int = 4,
    trials: int = 8,
    *,
    images_per_s: float = 40.0,
    spread: float = 0.01,
    seed: int = 0,
    **changes: Any,
) -> list[Record]:
    """Several trials that are ok, as different from each other as processes are: `spread` is their relative standard
    deviation. `changes` are fields of Record, or `cell`."""
    draw = random.Random(f"{seed}{config}{batch_size}")
    rates = [images_per_s * math.exp(spread * draw.gauss(0, 1)) for _ in range(trials)]
    return [
        make_record(config, batch_size, trial=trial, images_per_s=rate, **changes) for trial, rate in enumerate(rates)
    ]


def write(path: Path, *records: Record) -> Path:
    """A run's file, in a folder that is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode(record) + b"\n" for record in records))
    return path
