"""A run's images before any worker needs them: the user's are checked, generated ones are made."""

from functools import partial
from pathlib import Path

from tcbench.core.errors import DataError
from tcbench.engine.accelerators.device import Progress
from tcbench.engine.feeds import dataset, generated, pictures
from tcbench.run.plan import Plan


def check_folder(plan: Plan, progress: Progress) -> None:
    """Look at the user's images, so that a bad folder is an error and not failed cells. Raises DataError."""
    cell = plan.cells[0].cell
    if cell.input.kind == "folder" and cell.input.path is not None:
        images = dataset.scan(Path(cell.input.path), progress=partial(progress, "checking the images"))
        n_classes = len(images.classes)
    else:
        n_classes = pictures.N_CLASSES if cell.input.kind == "generated" else 0
    if n_classes > cell.n_classes:
        raise DataError(
            f"the images have {n_classes} classes, the scenario's model {cell.n_classes}: "
            f"expected model.classes of at least {n_classes} in {plan.scenario.path}"
        )


def generate(plan: Plan, progress: Progress) -> None:
    """Make the default images."""
    if any(p.cell.input.kind == "generated" and p.skip_reason is None for p in plan.cells):
        generated.ensure_generated(partial(progress, "generating JPEGs, once"))
