"""The rung `tf32`: float32 storage, with Tensor Core convolutions of inputs rounded to TensorFloat-32. TensorFloat-32
has 10 bits of fraction."""

from dataclasses import replace
from typing import Any, ClassVar

from tcbench.engine.rung import Parity, Requires, Rung, Tolerance
from tcbench.hardware import tensor_cores


class Tf32(Rung):
    """Convolutions with inputs rounded to TensorFloat-32."""

    name = "tf32"
    says = "32-bit storage, convolutions round their inputs to TensorFloat-32"
    requires = Requires(devices=frozenset({"cuda"}), compute_capability=tensor_cores.oldest_with("tf32"))
    conflicts = frozenset({"fp32", "fp16", "bf16"})
    parity = Parity("tolerance", float32=Tolerance(1e-2, 0.3, 0.3, 0.02))  # its fraction is as long as float16's
    effects: ClassVar = {"math": "tf32"}
    source = "NVIDIA A100 Tensor Core GPU Architecture, 2020"

    def parts(self, parts: Any, settings: Any) -> Any:
        return replace(parts, spec=replace(parts.spec, dtype="float32", math="tf32"))
