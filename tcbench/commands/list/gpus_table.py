"""The output of `tcbench list --gpus`: GPUs that come with tcbench, and GPUs of this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import typer
from rich.text import Text

from tcbench.core.groups import grouped
from tcbench.engine.api import Ceilings, device_kinds, timing_model
from tcbench.hardware import gpus, tensor_cores
from tcbench.hardware.gpus import GpuFile
from tcbench.hardware.software import ServedVersions, Support
from tcbench.hardware.tensor_cores import FORMATS, Generation
from tcbench.run.devices import absent_device
from tcbench.show.console import make_console
from tcbench.show.document import fields, versioned
from tcbench.show.tables import COUNT, Column, Kind, Table


@dataclass(frozen=True)
class _GpuRow:
    """A GPU that tcbench knows or that is present.

    `figures` and `rates` are None for a GPU without a description in tcbench. `devices` are the names, as
    `--device` takes them, of this machine's GPUs of the kind."""

    name: str
    title: str
    capability: tuple[int, int]
    support: Support | None
    figures: GpuFile | None
    rates: Ceilings | None
    devices: tuple[str, ...]

    @property
    def tensor_cores(self) -> Generation | None:
        return tensor_cores.generation_of(self.capability)

    @property
    def formats(self) -> Sequence[str]:
        return self.tensor_cores.formats if self.tensor_cores else ()


def show(as_json: bool, details: bool = False) -> None:
    """Print each GPU's Tensor Cores, the software that still supports it, and its peak rates with their source."""
    rows = tuple(_rows())
    if as_json:
        typer.echo(versioned(gpus=[_json(row) for row in rows]))
        return
    software = [served.name for served in rows[0].support.software] if rows[0].support else []
    console = make_console(details=details)
    console.table(Table(_columns(software), rows))
    sources = grouped((row.rates.says, row.name) for row in rows if row.rates)
    console.notes(
        [
            "`uv sync --extra NAME` installs the newest packages that support a GPU.",
            "TFLOP/s: dense, highest clock; 16-bit with float32 sums.",
            *(f"{', '.join(names)}: {source}" for source, names in sources.items()),
        ]
    )


def _rows() -> Iterator[_GpuRow]:
    """Yield the GPUs that come with tcbench, then other GPUs of this machine."""
    present = [
        (kind, device, capability)
        for kind in device_kinds().values()
        if kind.simulates is None
        for device in kind.devices()
        if (capability := device.compute_capability) is not None
    ]
    shipped = [gpus.load(name) for name in gpus.NAMES]
    for figures in shipped:
        kind, _ = absent_device(figures)
        names = tuple(device.name for _, device, _ in present if device.title == figures.device_name)
        capability = figures.compute_capability
        support = kind.support(capability)
        yield _GpuRow(
            figures.name, figures.device_name, capability, support, figures, timing_model(figures).peaks, names
        )
    titles = {figures.device_name for figures in shipped}
    by_title = grouped((device.title, (kind, capability, device.name)) for kind, device, capability in present)
    for title, devices in by_title.items():
        if title not in titles:
            kind, capability, _ = devices[0]
            names = tuple(name for *_, name in devices)
            yield _GpuRow(title, title, capability, kind.support(capability), None, None, names)


def _columns(software: Sequence[str]) -> list[Column[_GpuRow]]:
    """Return the columns of the table. `software` are the names of the packages whose versions it shows."""

    def tera(heading: str, precision: str, needs: str = "") -> Column[_GpuRow]:
        """Return a column of peak rates in TFLOP/s. It is empty for GPUs whose Tensor Cores lack the format `needs`."""

        def peak(row: _GpuRow) -> float | None:
            return row.rates.flops_s[precision] if row.rates and (not needs or needs in row.formats) else None

        return Column(heading, peak, Kind(lambda flops_s: f"{flops_s / 1e12:.0f}"))

    def generation(row: _GpuRow) -> str:
        return f"{row.tensor_cores.number}, {row.tensor_cores.architecture}" if row.tensor_cores else "not known"

    def versions(place: int) -> Column[_GpuRow]:
        served = Column[_GpuRow](software[place], lambda row: row.support and _versions(row.support.software[place]))
        return replace(served, wraps=False, spare=True)

    return [
        Column("GPU", _name, wraps=False),
        Column("capability", lambda row: "{}.{}".format(*row.capability), wraps=False),
        Column("Tensor Cores", generation, wraps=False),
        Column(
            "formats",
            lambda row: " ".join(fmt if fmt in row.formats else " " * len(fmt) for fmt in FORMATS),
            wraps=False,
        ),
        tera("fp32", "fp32"),
        tera("tf32", "tf32", "tf32"),
        tera("16-bit", "fp16"),
        Column("GB/s", lambda row: row.figures and f"{row.figures.memory_bandwidth_bytes_s / 1e9:.0f}", COUNT),
        *map(versions, range(len(software))),
        Column("extra", lambda row: row.support and (row.support.extra or "none"), wraps=False, spare=True),
    ]


def _name(row: _GpuRow) -> Text:
    """Return a GPU's name, with the device names if it is present."""
    return Text.assemble(row.name, (f" ({', '.join(row.devices)})", "green") if row.devices else "")


def _versions(served: ServedVersions) -> str:
    """Return the versions of a package that support a GPU: "11.0 to 12.9", "up to 12.9", "from 11.8" or "newest"."""
    if served.first and served.last:
        return f"{served.first} to {served.last}"
    if served.last:
        return f"up to {served.last}"
    return f"from {served.first}" if served.first else "newest"


def _json(row: _GpuRow) -> dict[str, Any]:
    """Return a GPU's row as JSON."""
    rates, support = row.rates, row.support
    return {
        **fields(row, "name device_name=title devices compute_capability=capability"),
        **fields(row, "tensor_core_generation=tensor_cores.number architecture=tensor_cores.architecture"),
        "formats": {fmt: fmt in row.formats for fmt in FORMATS} if row.tensor_cores else None,
        **fields(row, "multiprocessors=figures.multiprocessors memory_bytes=figures.memory_bytes"),
        **fields(row, "memory_bandwidth_bytes_s=figures.memory_bandwidth_bytes_s"),
        "peak_fp32_flops_s": rates and rates.flops_s["fp32"],
        "peak_tf32_flops_s": rates.flops_s["tf32"] if rates and "tf32" in row.formats else None,
        "peak_fp16_flops_s": rates and rates.flops_s["fp16"],
        **fields(row, "peak_source=rates.says"),
        "software": [fields(served, "name first last") for served in support.software] if support else [],
        "extra": support and support.extra,
    }
