"""Timelines without any tool: the phase times of a record."""

from tcbench.core.record import Record
from tcbench.core.recording import HostSpan, Recording, Title
from tcbench.core.timeline import Timeline
from tcbench.tracing.attribution import assemble


def title_of(record: Record, rank: int = 0) -> Title:
    """A timeline's title for a record's cell, and where that has many ranks for one of them."""
    device_name = record.environment.device_name if record.environment else record.cell.device
    if record.cell.host_speed != 1:
        device_name += f", its host at {record.cell.host_speed:g} times its speed"
    cell = record.cell
    label = cell.label + (f": rank {rank}" if cell.ranks > 1 else "")
    return Title(label=label, device=cell.device, device_name=device_name, batch_size=cell.batch_size, unit=cell.unit)


def from_record(record: Record) -> Timeline | None:
    """The profiled steps of a record on the host: its phase times laid end to end, which is what they are but for the
    microseconds between them. A record keeps no times of the input's threads, layers or kernels. None where it has no
    phase times."""
    measured = record.measurement
    if measured is None or not measured.profiled_steps:
        return None
    spans: list[HostSpan] = []
    first, now_ns = measured.warmup_steps + measured.timed_steps, 0
    for index in range(measured.profiled_steps):
        step_begin_ns = now_ns
        for phase in measured.phases:
            begin_ns, now_ns = now_ns, now_ns + round(phase.host_s[index] * 1e9)
            spans.append(HostSpan("phase", phase.name, first + index, phase.name, begin_ns, now_ns))
        spans.append(HostSpan("step", "step", first + index, None, step_begin_ns, now_ns))
    phases = tuple(phase.name for phase in measured.phases)
    return assemble(title_of(record), Recording(thread=0, phases=phases, spans=tuple(spans)), "ranges")
