"""PyTorch's rungs: every subclass of Rung in this module is one. They import PyTorch only inside their stages. A rung
that another backend has under the same name means the same."""

import contextlib
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tcbench.core.packages import Package
from tcbench.engine.feeds.rungs import DaliInput, OpenCvInput
from tcbench.engine.rung import BF16, EXACT, FP16, ROUNDING, Needs, Parity, Requires, Rung, RungSet, Tolerance
from tcbench.engine.session import Phase
from tcbench.hardware import tensor_cores


@dataclass(frozen=True)
class _Compiler(Package):
    """A required program, found on the PATH."""

    def is_installed(self) -> bool:
        return shutil.which(self.module) is not None


@dataclass(frozen=True)
class _Header(Package):
    """A required header of Python.

    PyTorch's generated code for CPUs includes it, and so does the launcher that Triton builds on a GPU
    (triton/runtime/build.py, which uses this installation scheme on Debian too)."""

    def is_installed(self) -> bool:
        return (Path(sysconfig.get_paths("posix_prefix")["include"]) / self.module).is_file()


class TorchBf16(Rung):
    """Autocast to bfloat16. Weights stay float32; bfloat16 has the range of float32, so no loss scaling is needed."""

    name = "bf16"
    says = "autocast to bfloat16, 32-bit accumulation, fp32 weights, no loss scaling"
    requires = Requires(instructions=BF16)
    conflicts = frozenset({"fp32", "tf32", "fp16"})
    parity = Parity("tolerance", bfloat16=Tolerance(3e-2, 0.6))  # 8 bits of significand, 3 fewer than float16
    source = "PyTorch documentation, Automatic Mixed Precision"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, autocast=torch.bfloat16)


class Compile(Rung):
    """torch.compile: PyTorch traces the model at the first step and generates fused kernels between convolutions. The
    first step takes minutes on a CPU; PyTorch caches the compiled code."""

    name = "compile"
    says = "generated kernels for the operations between convolutions (torch.compile)"
    requires = Requires(
        packages=(
            _Compiler("g++", "apt-get install g++"),
            _Header("Python.h", "apt-get install python3-dev, or the headers of the Python in use"),
        )
    )
    parity = ROUNDING
    source = "PyTorch documentation, torch.compile"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, body=torch.compile)


class TorchCudaGraph(Rung):
    """Capture of forward, backward and update as a CUDA graph, which is replayed with one launch per step."""

    name = "cuda_graph"
    says = "the whole step captured as a CUDA graph and replayed"
    requires = Requires(
        devices=frozenset({"cuda"}),
        rungs=(Needs("fused_optimizer", when="fp16", why="others wait until the GradScaler has checked for overflow"),),
        alone="NCCL hangs when it closes a process group whose all-reduce is in a captured graph",
    )
    parity = EXACT
    source = "PyTorch documentation, CUDA semantics: CUDA Graphs, whole-network capture"

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.backends.torch.batches import at_fixed_addresses

        return recipe.with_wrapper(at_fixed_addresses)

    def step(self, phases: Any, settings: Any) -> Any:
        """Keep the input's phase, and replace all others by one that replays them as a captured graph."""
        from tcbench.engine.backends.torch.replay import TorchReplay

        io, *compute = phases
        replay = TorchReplay(tuple(phase.run for phase in compute))
        return (io, Phase("replay", replay, replay.captured))


class CudnnBenchmark(Rung):
    """cuDNN's fastest algorithm for each convolution, found by timing them in the first steps. `benchmark_limit` is 0
    to time all algorithms; PyTorch's default is ten."""

    name = "cudnn_benchmark"
    says = "cuDNN's algorithms chosen by timing them (torch.backends.cudnn.benchmark)"
    requires = Requires(devices=frozenset({"cuda"}))
    parity = ROUNDING
    source = "PyTorch tutorials, Performance Tuning Guide"

    @contextlib.contextmanager
    def scope(self, settings: Any) -> Iterator[None]:
        """Turn PyTorch's timing of cuDNN's algorithms on, without a limit on their number, and restore both
        settings."""
        import torch

        previous = torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit
        torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 0
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = previous


class TorchDali(DaliInput):
    """Input by NVIDIA DALI, which decodes and augments in its own threads during the previous step."""

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.backends.torch.batches import as_tensors
        from tcbench.engine.feeds.dali import DaliFeed

        return recipe.with_source(as_tensors(lambda spec, site: DaliFeed(spec, site.dali())))


class Foreach(Rung):
    """An update of all parameters in a few launches over lists of tensors. It is PyTorch's default only on a GPU."""

    name = "foreach"
    says = "the optimizer works on lists of tensors (SGD's foreach=True)"
    conflicts = frozenset({"fused_optimizer"})
    parity = ROUNDING
    source = "PyTorch documentation, torch.optim: foreach"

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, sgd_options=(("foreach", True),))


class TorchFp16(Rung):
    """PyTorch's mixed precision in float16.

    Weights stay float32, autocast runs convolutions and the classifier in float16, and a GradScaler scales the loss by
    the scenario's constant."""

    name = "fp16"
    says = "autocast to float16, 32-bit accumulation, loss scaling, fp32 weights"
    requires = Requires(instructions=FP16)
    conflicts = frozenset({"fp32", "tf32", "bf16"})
    parity = Parity("tolerance", float16=Tolerance(1e-2, 0.3))
    source = "PyTorch documentation, Automatic Mixed Precision"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, autocast=torch.float16, pixels=replace(parts.pixels, dtype="float16"))

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, loss_scale=settings.train.loss_scale)


class TorchFp32(Rung):
    """The start of the ladder: everything in float32, without TensorFloat-32, PyTorch's default for convolutions."""

    name = "fp32"
    says = "32-bit storage and arithmetic"
    conflicts = frozenset({"fp16", "bf16", "tf32"})
    parity = EXACT
    source = "PyTorch documentation, Numerical accuracy: TensorFloat-32"

    def scope(self, settings: Any) -> contextlib.AbstractContextManager[None]:
        return _float32_math("ieee")


class FusedOptimizer(Rung):
    """Momentum, weight decay and update of many parameters in one kernel.

    The kernel reads the loss scale and the overflow flag on the device, so that the GradScaler need not wait."""

    name = "fused_optimizer"
    says = "the whole update in one kernel (SGD's fused=True)"
    conflicts = frozenset({"foreach"})
    parity = ROUNDING
    source = "PyTorch documentation, torch.optim: fused"

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, sgd_options=(("fused", True),))


class TorchNhwc(Rung):
    """PyTorch's channels_last: tensors of shape (N, C, H, W) are stored as (N, H, W, C). Tensor Cores read this layout
    without a transpose."""

    name = "nhwc"
    says = "channels last: no transposes around a convolution"
    parity = ROUNDING
    source = "PyTorch tutorials, Channels Last Memory Format"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, memory_format=torch.channels_last, pixels=replace(parts.pixels, layout="NHWC"))


class TorchOpenCv(OpenCvInput):
    """Input decoded and resized by OpenCV instead of Pillow, in the same thread as the step."""

    def feed(self, recipe: Any, settings: Any) -> Any:
        from tcbench.engine.backends.torch.batches import as_tensors
        from tcbench.engine.feeds.opencv import make_opencv_feed

        return recipe.with_source(as_tensors(lambda spec, _: make_opencv_feed(spec)))


class TorchTf32(Rung):
    """Float32 storage with Tensor Core arithmetic on inputs rounded to TensorFloat-32 (10 bits of fraction)."""

    name = "tf32"
    says = "32-bit storage, convolutions round their inputs to TensorFloat-32"
    requires = Requires(devices=frozenset({"cuda"}), compute_capability=tensor_cores.oldest_with("tf32"))
    conflicts = frozenset({"fp32", "fp16", "bf16"})
    parity = Parity("tolerance", float32=Tolerance(1e-2, 0.3))
    source = "PyTorch documentation, Numerical accuracy: TensorFloat-32"

    def scope(self, settings: Any) -> contextlib.AbstractContextManager[None]:
        return _float32_math("tf32")


@contextlib.contextmanager
def _float32_math(math: Literal["ieee", "tf32"]) -> Iterator[None]:
    """Set whether a GPU computes float32 convolutions and matrix products in float32 or TensorFloat-32.

    PyTorch has older and newer flags for this, and raises an error if only one family is set. The two setters used here
    keep both in agreement."""
    import torch

    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if math == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = math == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


RUNGS = RungSet.defined_in("torch", sys.modules[__name__])
