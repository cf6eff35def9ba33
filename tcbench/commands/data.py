"""`tcbench data make`: the images that runs read by default."""

from functools import partial

import typer

from tcbench.present import options
from tcbench.present.app import CommandGroup, GroupedCommand, app, stages

data_app = typer.Typer(
    cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True, help="Make the images that runs read."
)
app.add_typer(data_app, name="data")


@data_app.command("make", cls=GroupedCommand, short_help="Generate the JPEGs that runs read by default.")
def make(
    force: bool = options.option("--force", None, "Make it again even if it exists."),
    quiet: bool = options.QUIET,
) -> None:
    """Generate the JPEG set that runs read by default (about 60 MB in the user's cache)."""
    from tcbench.engine.feeds import generated

    with stages(quiet) as advance:
        progress = partial(advance, "generating JPEGs")
        made = generated.generate(progress=progress) if force else generated.ensure_generated(progress)
    typer.echo(f"{len(made.files)} images in {len(made.classes)} classes: {made.root}")
