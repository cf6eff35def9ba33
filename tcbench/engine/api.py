"""The engine's public interface: everything that other packages use of it.

- Devices: `device_for` finds the device that a user selects; a `DeviceKind` describes and watches its devices.
- Backends: `backend` returns a backend with its rungs.
- Models and works: what a cell computes.
- Rates of hardware: `Ceilings` are measured; `timing_model` models a GPU from published figures.
- Images: what a run reads.

Importing this module imports no framework. Its functions import what they need when they are called."""

from tcbench.engine.accelerators.attained import timing_model
from tcbench.engine.accelerators.ceilings import Ceilings, Reached
from tcbench.engine.accelerators.device import (
    Device,
    DeviceKind,
    Prospects,
    Watch,
    Way,
    device_kinds,
    host_device,
    kind_of,
)
from tcbench.engine.backends import (
    backend,
    backend_names,
    backend_problem,
    builds_models,
    device_for,
    model_of,
    trace_cell,
)
from tcbench.engine.feeds.dataset import ImageFolder
from tcbench.engine.feeds.generated import generated_images, image_classes
from tcbench.engine.layer_works import layer_works
from tcbench.engine.models import known_models
from tcbench.engine.models.geometry import Network
from tcbench.engine.models.small import SMALL_RESNET
from tcbench.engine.numerics.folder import split_images
from tcbench.engine.rung import Requires, Rung, Tolerance
from tcbench.engine.work import Work
