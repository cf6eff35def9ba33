"""The rung `dynamic_scale`: the loss scale adapts during training.

It starts at the scenario's scale. A step whose gradients are not all finite is skipped and halves the scale; 2000 good
steps in a row double it. Scale and overflow flag stay on the device."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import Needs, Parity, Requires, Rung, Tolerance


class DynamicScale(Rung):
    """A loss scale that adapts to overflows."""

    name = "dynamic_scale"
    says = "a loss scale that halves on overflow and grows otherwise"
    requires = Requires(
        rungs=(
            Needs("fp16", why="float32 gradients do not need a loss scale"),
            Needs("batched", why="a step is skipped as a whole, so all gradients must be seen before any is applied"),
        )
    )
    parity = Parity("tolerance", float16=Tolerance(1e-2, 0.3, 0.15, 0.01))
    effects: ClassVar = {"loss scale": "dynamic"}
    source = "P. Micikevicius et al., Mixed Precision Training, 2018, section 3.2"

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, dynamic_scale=True)
