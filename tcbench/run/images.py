"""Prepares a run's images before any worker needs them: checks the user's, and makes generated ones."""

from functools import partial

from tcbench.core.errors import DataError
from tcbench.core.progress import Progress
from tcbench.engine.api import generated_images, image_classes
from tcbench.run.plan import Plan


def check_folder(plan: Plan, progress: Progress) -> None:
    """Check the user's images before the run, so that a bad folder is one error and not many failed cells. Raises
    DataError if the folder cannot be used or has more classes than the scenario's model."""
    cell = plan.cells[0].cell
    n_classes = image_classes(cell.input, partial(progress, "checking the images"))
    if n_classes > cell.n_classes:
        raise DataError(
            f"the images have {n_classes} classes, the scenario's model {cell.n_classes}: "
            f"expected model.classes of at least {n_classes} in {plan.scenario.path}"
        )


def generate(plan: Plan, progress: Progress) -> None:
    """Make the generated images if a cell needs them and they do not exist yet."""
    if any(p.cell.input.kind == "generated" and p.skip_reason is None for p in plan.cells):
        generated_images().make(partial(progress, "generating JPEGs, once"))
