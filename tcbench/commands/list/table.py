"""The output of `tcbench list`."""

import typer
from rich.text import Text

from tcbench.core.record import DEFAULT_BACKEND
from tcbench.engine.api import Device, Network, Requires, Rung, backend, backend_names, known_models
from tcbench.run.devices import device_selectors
from tcbench.run.plan import emulation, missing, why_not
from tcbench.run.scenario import load, shipped
from tcbench.show.console import make_console
from tcbench.show.document import fields, versioned
from tcbench.show.tables import COUNT, Column, Table


def show(device: Device, as_json: bool) -> None:
    """Print the scenarios with their configs, and the rungs with their requirements and whether `device` meets them."""
    scenarios = [load(name).on(device.kind) for name in shipped()]
    rungs = [
        (name, rung, _missing(name, rung, device))
        for name in backend_names()
        for rung in backend(name).RUNGS.rungs.values()
    ]
    if as_json:
        described = [
            {
                **fields(scenario, "name title"),
                "path": str(scenario.path),
                **fields(scenario, "batch_sizes models image_size=model.image_size"),
                "configs": [{"name": c.name, "skip_reason": why_not(c, device)} for c in scenario.configs],
            }
            for scenario in scenarios
        ]
        pieces = [
            {
                "name": rung.name,
                "backend": backend_name,
                "says": rung.says,
                "needs": _needs(rung.requires),
                "parity": str(rung.parity),
                "source": rung.source,
                "missing": lacking,
            }
            for backend_name, rung, lacking in rungs
        ]
        typer.echo(versioned(device=device.name, scenarios=described, rungs=pieces))
        return
    console = make_console()
    for scenario in scenarios:
        sizes = ",".join(map(str, scenario.batch_sizes))
        console.print(Text.assemble((scenario.name, "bold"), f"  {scenario.title}"))
        pixels = f"{scenario.model.image_size}x{scenario.model.image_size} pixels"
        console.say(f"  batch sizes {sizes}; {pixels}; {', '.join(scenario.models)} {scenario.model.variant}")
        for config in scenario.configs:
            reason = why_not(config, device)
            console.print(Text(f"    {config.name}"), Text(f"not here: {reason}" if reason else "", style="yellow"))
        console.print()
    columns: list[Column[tuple[str, Rung, str | None]]] = [
        Column(
            "rung", lambda row: row[1].name if row[0] == DEFAULT_BACKEND else f"{row[0]}/{row[1].name}", wraps=False
        ),
        Column("what it does", lambda row: row[1].says),
        Column("needs", lambda row: _needs(row[1].requires)),
        Column("parity", lambda row: str(row[1].parity)),
        Column(
            f"on {device.name}",
            lambda row: row[2] or _runs(row[1], device),
            style=lambda row: "yellow" if row[2] else "green",
        ),
    ]
    console.table(Table(columns, rungs, gap=1))
    console.print(Table(_MODELS, [*known_models().items()]))
    console.say("", f"devices: {', '.join(device_selectors())}; virtual ones are simulated")


_MODELS: tuple[Column[tuple[str, Network]], ...] = (
    Column("model", lambda row: row[0]),
    Column("parameters", lambda row: f"{row[1].parameters(1000):,}", COUNT, wraps=True),
    Column(
        "MACs per image", lambda row: f"{row[1].macs(row[1].variants[0], 224, 1000) / 1e9:.2f} G", COUNT, wraps=True
    ),
    Column("smallest image", lambda row: f"{row[1].min_image_size}x{row[1].min_image_size}"),
    Column("definition", lambda row: row[1].source),
)
"""Columns of the table of models. Figures are those of the published networks: 224x224 images, 1000 classes."""


def _missing(backend_name: str, rung: Rung, device: Device) -> str | None:
    """Return what the device or installation lacks for a rung or its backend, or None."""
    packages = Requires(packages=tuple(backend(backend_name).DEVICES.get(device.kind, ())))
    return missing(rung.requires, device) or missing(packages, device) or emulation(rung.requires, device)


def _runs(rung: Rung, device: Device) -> str:
    """Return "yes", with the fallback if the processor lacks instructions that the rung can do without."""
    needed = rung.requires.instructions
    return f"yes, {needed.fallback}" if needed and rung.requires.is_emulated(device.instructions) else "yes"


def _needs(requires: Requires) -> str:
    """Return the requirements of a rung in words."""
    needs = [package.module for package in requires.packages]
    needs += [f"{need.rung} (with {need.when})" if need.when else need.rung for need in requires.rungs]
    if requires.devices is not None:
        needs += sorted(requires.devices)
    if requires.compute_capability:
        needs.append("compute capability {}.{}".format(*requires.compute_capability))
    if requires.instructions:
        needs.append(" or ".join(requires.instructions.any_of))
    return ", ".join(needs)
