"""Output of `tcbench list` and `tcbench doctor`."""

from __future__ import annotations

import typer
from rich.table import Table
from rich.text import Text

from tcbench.engine.accelerators.device import Device, selectors
from tcbench.engine.backends import DEFAULT, backend, names
from tcbench.engine.models import MODELS
from tcbench.engine.rung import Requires, Rung
from tcbench.present.tables import make_console, open_table, versioned
from tcbench.run import scenario as scenarios
from tcbench.run.plan import emulation, missing, why_not


def show(device: Device, as_json: bool) -> None:
    """Scenarios with their configs; rungs with what each needs and whether `device` has it."""
    shipped = [scenarios.load(name).on(device.kind) for name in scenarios.shipped()]
    rungs = [(name, rung) for name in names() for rung in backend(name).RUNGS.rungs.values()]
    if as_json:
        described = [
            {
                "name": s.name,
                "title": s.title,
                "path": str(s.path),
                "batch_sizes": s.batch_sizes,
                "models": s.models,
                "image_size": s.image_size,
                "configs": [{"name": c.name, "skip_reason": why_not(c, device)} for c in s.configs],
            }
            for s in shipped
        ]
        pieces = [
            {
                "name": rung.name,
                "backend": backend_name,
                "says": rung.says,
                "needs": _needs(rung.requires),
                "parity": str(rung.parity),
                "source": rung.source,
                "missing": _missing(backend_name, rung, device),
            }
            for backend_name, rung in rungs
        ]
        typer.echo(versioned(device=device.name, scenarios=described, rungs=pieces))
        return
    console = make_console()
    for scenario in shipped:
        sizes = ",".join(map(str, scenario.batch_sizes))
        heading = Text.assemble((scenario.name, "bold"), f"  {scenario.title}")
        console.print(heading, soft_wrap=True)
        pixels = f"{scenario.image_size}x{scenario.image_size} pixels"
        facts = f"  batch sizes {sizes}; {pixels}; {', '.join(scenario.models)} {scenario.variant}"
        console.print(facts, soft_wrap=True)
        for config in scenario.configs:
            reason = why_not(config, device)
            console.print(Text(f"    {config.name}"), Text(f"not here: {reason}" if reason else "", style="yellow"))
        console.print()
    table = open_table()
    for heading_text in ("rung", "what it does", "needs", "parity", f"on {device.name}"):
        table.add_column(heading_text, overflow="fold")
    for backend_name, rung in rungs:
        reason = _missing(backend_name, rung, device)
        name = rung.name if backend_name == DEFAULT else f"{backend_name}/{rung.name}"
        table.add_row(name, rung.says, _needs(rung.requires), str(rung.parity), _here(reason))
    console.print(table)
    console.print()
    console.print(_models())
    console.print(Text(f"\ndevices: {', '.join(selectors())}; virtual ones are simulated"), soft_wrap=True)


def _models() -> Table:
    """The models that backends build, as published: for images of 224x224 in 1000 classes."""
    table = open_table()
    table.add_column("model")
    table.add_column("parameters", justify="right")
    table.add_column("MACs per image", justify="right")
    table.add_column("least image")
    table.add_column("definition", overflow="fold")
    for name, model in MODELS.items():
        macs = model.macs(model.variants[0], 224, 1000)
        least = f"{model.min_image_size}x{model.min_image_size}"
        table.add_row(name, f"{model.parameters(1000):,}", f"{macs / 1e9:.2f} G", least, model.source)
    return table


def _missing(backend_name: str, rung: Rung, device: Device) -> str | None:
    """The thing that the device or installation lacks for the rung, or else for its backend; None where nothing is."""
    packages = Requires(packages=tuple(backend(backend_name).DEVICES.get(device.kind, ())))
    return missing(rung.requires, device) or missing(packages, device) or emulation(rung.requires, device)


def _needs(requires: Requires) -> str:
    needs = [package.module for package in requires.packages]
    needs += [f"{need.rung} (with {need.when})" if need.when else need.rung for need in requires.rungs]
    if requires.devices is not None:
        needs += sorted(requires.devices)
    if requires.compute_capability:
        needs.append("compute capability {}.{}".format(*requires.compute_capability))
    if requires.instructions:
        needs.append(" or ".join(requires.instructions.any_of))
    return ", ".join(needs)


def _here(reason: str | None) -> Text:
    return Text(reason, style="yellow") if reason else Text("yes", style="green")
