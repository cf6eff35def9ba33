"""The models a scenario may name, as framework-free descriptions. Backends build them; nothing else looks inside."""

from __future__ import annotations

from tcbench.models.geometry import Model
from tcbench.models.resnet50 import RESNET50

MODELS: dict[str, Model] = {RESNET50.name: RESNET50}
