"""The models that a scenario may name, described without a framework: those in `MODELS` of the modules here. Backends
build them from their stages (`geometry`)."""

import importlib
import pkgutil
from collections.abc import Mapping

from tcbench.core.groups import by_name
from tcbench.engine.models.geometry import Network


def _all() -> dict[str, Network]:
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return by_name(model for module in modules for model in getattr(module, "MODELS", ()))


MODELS: dict[str, Network] = _all()


def known_models() -> Mapping[str, Network]:
    """Return the models that a scenario may name, by name."""
    return MODELS


def find_model(name: str, variant: str, image_size: int) -> Network | None:
    """Return a model by name, or None if the model or its variant is unknown, or if the image is too small for it."""
    model = MODELS.get(name)
    return model if model and variant in model.variants and image_size >= model.min_image_size else None
