"""`tcbench list`: scenarios, configs, rungs, and the abilities of GPUs."""

from tcbench.show import options
from tcbench.show.app import command


@command("Show scenarios, configs and rungs, or GPUs.", name="list")
def list_(
    gpus: bool = options.GENERAL.option(
        "--gpus", "Show GPUs instead: Tensor Cores, formats, software that supports them, peak rates."
    ),
    details: bool = options.DETAILS,
    format_: options.TableOrJson = options.FORMAT,
) -> None:
    """Show the scenarios with their configs, and the rungs: what each needs, and whether this machine has it.

    With --gpus: each GPU's Tensor Cores and formats, the CUDA and cuDNN that still support it, and its peak rates.

    Examples:
    tcbench list
    tcbench list --gpus"""
    if gpus:
        from tcbench.commands.list.gpus_table import show

        show(format_ == "json", details)
        return
    from tcbench.commands.list import table
    from tcbench.engine.api import device_for

    table.show(device_for("auto"), format_ == "json")
