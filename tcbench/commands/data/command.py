"""`tcbench data make`: the images that runs read by default."""

from functools import partial

import typer

from tcbench.show import options
from tcbench.show.app import command, command_group
from tcbench.show.console import stages

data_app = command_group("data", "Make the images that runs read.")


@command("Generate the JPEGs that runs read by default.", group=data_app)
def make(
    force: bool = options.GENERAL.option("--force", "Generate it again even if it exists."),
    quiet: bool = options.QUIET,
) -> None:
    """Generate the JPEG set that runs read by default (about 60 MB in the user's cache)."""
    from tcbench.engine.api import generated_images

    with stages(quiet) as advance:
        progress = partial(advance, "generating JPEGs")
        images = generated_images().make(progress, force=force)
    typer.echo(f"{len(images.files)} images in {len(images.classes)} classes: {images.root}")
