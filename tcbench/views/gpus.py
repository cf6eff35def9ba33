"""Output of `tcbench list --gpus`: the GPUs that come with tcbench, and those that are here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.text import Text

from tcbench.engine.accelerators.device import Device, Served, Support, absent, kinds
from tcbench.engine.accelerators.peaks import PeakRates, peak_rates
from tcbench.hardware import gpus, tensor_cores
from tcbench.hardware.gpus import GpuFile
from tcbench.hardware.tensor_cores import FORMATS, Generation
from tcbench.present.tables import make_console, open_table, versioned


@dataclass(frozen=True)
class _Row:
    """A GPU. `figures` and `rates` are None for one that is here and does not come with tcbench; `here` holds the names
    by which `--device` takes it."""

    name: str
    title: str
    capability: tuple[int, int]
    support: Support | None
    figures: GpuFile | None
    rates: PeakRates | None
    here: tuple[str, ...]

    @property
    def tensor_cores(self) -> Generation | None:
        return tensor_cores.of(self.capability)


def show(as_json: bool) -> None:
    """Print for each GPU its Tensor Cores, the software that still serves it, and its peak rates with their source."""
    rows = tuple(_rows())
    if as_json:
        typer.echo(versioned(gpus=[_json(row) for row in rows]))
        return
    table = open_table()
    software = [one.name for one in rows[0].support.software] if rows[0].support else []
    for heading in ("GPU", "capability", "Tensor Cores", "formats"):
        table.add_column(heading, no_wrap=True)
    for heading in ("fp32", "tf32", "16-bit", "GB/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in (*software, "extra"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    console = make_console(least=120)
    console.print(table)
    for line in _notes(rows):
        console.print(Text(line), soft_wrap=True)


def _notes(rows: Sequence[_Row]) -> Iterator[str]:
    yield "\n`uv sync --extra NAME` installs the newest packages that serve a GPU."
    yield "Peak rates in TFLOP/s, dense, at the highest clock; 16-bit: fp16 or bf16, summed in float32. By NVIDIA:"
    for source in dict.fromkeys(row.rates.source for row in rows if row.rates):
        names = ", ".join(row.name for row in rows if row.rates and row.rates.source == source)
        yield f"  {names}: {source}"


def _rows() -> Iterator[_Row]:
    present = [
        (kind, device)
        for kind in kinds().values()
        if kind.simulates is None
        for device in kind.devices()
        if device.compute_capability is not None
    ]
    shipped = [gpus.load(name) for name in gpus.names()]
    for figures in shipped:
        kind, _ = absent(figures)
        here = tuple(device.name for _, device in present if device.title == figures.device_name)
        capability = figures.compute_capability
        support = kind.support(capability)
        yield _Row(figures.name, figures.device_name, capability, support, figures, peak_rates(figures), here)
    titles = {figures.device_name for figures in shipped}
    others: dict[str, list[tuple[Any, Device]]] = {}
    for kind, device in present:
        if device.title not in titles:
            others.setdefault(device.title, []).append((kind, device))
    for title, those in others.items():
        kind, device = those[0]
        assert device.compute_capability is not None
        here = tuple(one.name for _, one in those)
        yield _Row(title, title, device.compute_capability, kind.support(device.compute_capability), None, None, here)


def _cells(row: _Row) -> list[Text | str]:
    cores, rates, figures = row.tensor_cores, row.rates, row.figures
    formats = cores.formats if cores else ()
    name = Text.assemble(row.name, (f" ({', '.join(row.here)})", "green") if row.here else "")
    tera = (rates.fp32_flops_s, rates.tf32_flops_s if "tf32" in formats else None, rates.fp16_flops_s) if rates else ()
    return [
        name,
        "{}.{}".format(*row.capability),
        f"{cores.number}, {cores.architecture}" if cores else "not known",
        " ".join(fmt if fmt in formats else " " * len(fmt) for fmt in FORMATS),
        *([f"{rate / 1e12:.0f}" if rate else "" for rate in tera] or [""] * 3),
        f"{figures.memory_bandwidth_bytes_s / 1e9:.0f}" if figures else "",
        *(_versions(one) for one in (row.support.software if row.support else ())),
        row.support.extra or "none" if row.support else "",
    ]


def _versions(served: Served) -> str:
    if served.first and served.last:
        return f"{served.first} to {served.last}"
    if served.last:
        return f"up to {served.last}"
    return f"{served.first} on" if served.first else "newest"


def _json(row: _Row) -> dict[str, Any]:
    cores, rates, figures, support = row.tensor_cores, row.rates, row.figures, row.support
    return {
        "name": row.name,
        "device_name": row.title,
        "devices": row.here,
        "compute_capability": row.capability,
        "tensor_core_generation": cores.number if cores else None,
        "architecture": cores.architecture if cores else None,
        "formats": {fmt: fmt in cores.formats for fmt in FORMATS} if cores else None,
        "multiprocessors": figures.multiprocessors if figures else None,
        "memory_bytes": figures.memory_bytes if figures else None,
        "memory_bandwidth_bytes_s": figures.memory_bandwidth_bytes_s if figures else None,
        "peak_fp32_flops_s": rates.fp32_flops_s if rates else None,
        "peak_tf32_flops_s": rates.tf32_flops_s if rates and cores and "tf32" in cores.formats else None,
        "peak_fp16_flops_s": rates.fp16_flops_s if rates else None,
        "peak_source": rates.source if rates else None,
        "software": [{"name": s.name, "first": s.first, "last": s.last} for s in support.software] if support else [],
        "extra": support.extra if support else None,
    }
