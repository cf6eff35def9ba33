"""The models a scenario may name, as framework-free descriptions. Backends build them; nothing else looks inside."""

from __future__ import annotations

from tcbench.models.geometry import Model
from tcbench.models.resnet50 import RESNET50

MODELS: dict[str, Model] = {RESNET50.name: RESNET50}


def described(name: str, variant: str, image_size: int) -> Model | None:
    """The model of a cell; None where a record names a model, a variant or a size of images that there is not."""
    model = MODELS.get(name)
    return model if model and variant in model.variants and image_size >= model.min_image_size else None
