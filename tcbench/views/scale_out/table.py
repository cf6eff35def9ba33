"""Output of `tcbench forecast --ranks`: a table for each cell, the model's assumptions, and the JSON."""

from typing import Any

from tcbench.analysis.scale_out import BACKWARD, IMAGES_TO_TRAIN, OVERLAP, PLATEAU, WIRE, Scaled
from tcbench.hardware.networks import sources
from tcbench.present.document import document, fields
from tcbench.present.format import counted, duration, milliseconds, number
from tcbench.present.notes import Caution
from tcbench.present.tables import COUNT, NUMBER, SECONDS, SHARE, Column, Kind, Table
from tcbench.run.scale_out import Basis, ScaleOut, Size


def headline(out: ScaleOut) -> str:
    """The network in one line."""
    network = out.network
    return f"Network {network.name}: {network.says}"


def heading(basis: Basis) -> str:
    """`fp16, batch size 32 on Tesla V100: 26.8 ms a step (forecast: a bound), 51.1 MB of gradients`."""
    bound = ": a bound" if basis.source == "forecast" else ""
    return (
        f"{basis.cell.label} on {basis.device_name}: {milliseconds(basis.step.time_s)} a step ({basis.source}{bound}), "
        f"{basis.step.gradient_bytes / 1e6:.1f} MB of gradients"
    )


def table(out: ScaleOut, basis: Basis) -> Table[tuple[Size, Scaled]]:
    """For each number of ranks its slowest way and its fastest."""
    at_most, at_least = ("at most", "at least") if basis.source == "forecast" else ("", "")
    rows = [
        (size, way)
        for size in out.bases[basis]
        for way in ([size.slowest, size.fastest] if size.slowest.step_s > size.fastest.step_s else [size.slowest])
    ]

    def first(row: tuple[Size, Scaled], figure: str) -> str | None:
        return figure if row[1] is row[0].slowest else None

    columns: list[Column[tuple[Size, Scaled]]] = [
        Column("ranks", lambda row: first(row, f"{row[0].ranks}"), COUNT),
        Column("global\nbatch", lambda row: first(row, f"{row[0].fastest.global_batch:,}"), COUNT, spare=True),
        Column("\nfrom, to", lambda row: _way(row[1]), wraps=False),
        Column("\nall-reduce", lambda row: row[1].all_reduce_s, SECONDS, spare=True),
        Column("\nefficiency", lambda row: row[1].efficiency, SHARE),
        Column(f"images/s\n{at_most}", lambda row: row[1].images_per_s, NUMBER),
        Column(f"90 epochs\n{at_least}", lambda row: duration(row[1].time_to_train_s), COUNT),
        Column("energy\nof devices", lambda row: row[1].energy_j, _KWH, spare=True),
    ]
    return Table(columns, rows)


_KWH = Kind(lambda joules: f"{number(joules / 3.6e6)} kWh")


def _way(scaled: Scaled) -> str:
    overlap = "overlapped" if scaled.overlap else "not overlapped"
    return f"{scaled.algorithm}, {overlap}" if scaled.all_reduce_s else ""


def assumptions(out: ScaleOut) -> list[str]:
    """All that the model takes for granted, one line each."""
    network = out.network
    by_source = {basis.source for basis in out.bases if basis.step.power_w is not None}
    power = "at the card's power limit" if "forecast" in by_source else "at the mean power of the timed steps"
    lines = [
        "Efficiency: one rank's step over that of so many at the same batch size per rank (weak scaling).",
        "From, to: the slowest and the fastest of a ring and a hierarchy, after the backward pass and overlapped with "
        "it; most published results lie outside that range (docs/forecast.md).",
        f"Overlapped: {OVERLAP:.0%} of an all-reduce hides behind the backward pass ({BACKWARD:.0%} of a step), by "
        "published results (docs/forecast.md); one buffer of all gradients, stored like the activations.",
        f"All-reduce: bytes / bandwidth + messages x latency. Within a node {network.inside.bytes_s / 1e9:g} GB/s, "
        f"{network.inside.latency_s * 1e6:g} us a message; a node to the network {network.between.bytes_s / 1e9:g} "
        f"GB/s (of which {WIRE:.0%} carry gradients: Goyal 2017), {network.between.latency_s * 1e6:g} us; "
        f"{counted(network.ranks_per_node, 'rank')} a node; a large ring's latency x {PLATEAU:g} (NCCL).",
        "Not in it: ranks that are slower than others, congestion, input that cannot keep up, the all-reduce's own use "
        "of the devices. All make a step longer.",
        f"Training: {IMAGES_TO_TRAIN / 1e6:g} million images, 90 epochs of ImageNet (the talk's slide 34), without "
        "validation; whether the loss gets there at such a global batch is not asked.",
        f"Energy: the devices alone, {power}; no hosts, no network, no cooling."
        if by_source
        else "Energy: the power of the device is not known here.",
    ]
    if any(basis.source == "forecast" for basis in out.bases):
        lines.append(
            Caution(
                "Forecast step: the time that the device is expected to be busy; a host or an input that cannot keep "
                "up makes it longer. So images/s are at most, and times and efficiencies at least, what is shown."
            )
        )
    known = (sources()[name] for name in network.sources)
    return lines + [f"Source: {source['what']} ({source['confirmed']})." for source in known]


def to_json(out: ScaleOut) -> str:
    """Everything, with units in the names."""
    return document(
        "tcbench-scale-out",
        network={
            **fields(out.network, "name ranks_per_node inside_bytes_s=inside.bytes_s"),
            **fields(out.network, "inside_latency_s=inside.latency_s"),
            **fields(out.network, "between_bytes_s=between.bytes_s between_latency_s=between.latency_s sources"),
        },
        images_to_train=IMAGES_TO_TRAIN,
        assumptions=assumptions(out),
        left_out=out.left_out,
        cells=[_basis_json(out, basis) for basis in out.bases],
    )


def _basis_json(out: ScaleOut, basis: Basis) -> dict[str, Any]:
    figures = (
        "algorithm overlap global_batch all_reduce_s waits_s step_s efficiency images_per_s time_to_train_s energy_j"
    )
    return {
        **fields(basis, "config=cell.config batch_size=cell.batch_size key=cell.key device_name step_from=source"),
        "bound": basis.source == "forecast",
        **fields(basis, "step_s=step.time_s gradient_bytes=step.gradient_bytes power_w=step.power_w"),
        "sizes": [
            {"ranks": size.ranks, **fields(scaled, figures)} for size in out.bases[basis] for scaled in size.ways
        ],
    }
