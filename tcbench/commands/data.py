"""`tcbench data make`: the images that runs read by default."""

from functools import partial

import typer

from tcbench.present import options
from tcbench.present.app import CommandGroup, GroupedCommand, app

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
    from tcbench.present.progress import Stages
    from tcbench.present.tables import make_console

    with Stages(make_console(stderr=True, quiet=quiet)) as stages:
        advance = partial(stages.advance, "generating JPEGs")
        made = generated.generate(progress=advance) if force else generated.ensure_generated(advance)
    typer.echo(f"{len(made.files)} images in {len(made.classes)} classes: {made.root}")
