"""The table of launches, and that each kernel takes the arguments that its work hands over."""

import math
import re

import pytest
from engine.accelerators.cuda.kernels.cases import all_cases

from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda.kernels.compile import FOLDER
from tcbench.engine.accelerators.cuda.kernels.launches import C_TYPES, MAX_GRID, launch_of

WORK = {case.work.key: case.work for case in all_cases()}
BATCH_256 = [
    w.AddRelu(256 * 256 * 56 * 56, "float32"),
    w.Relu(2**41, "float16"),
    w.BatchNormApply(w.Norm(256, 64, 112, 112, "NHWC", "float16", "relu")),
    w.BatchNormApply(w.Norm(256, 2048, 7, 7, "NCHW", "float16", "add_relu")),
    w.MaxPoolForward(w.Pool(256, 64, 112, 112, 3, 2, 1, "NHWC", "float16")),
    w.MaxPoolBackward(w.Pool(256, 64, 112, 112, 3, 2, 1, "NCHW", "float32")),
    w.GlobalAverageForward(256, 2048, 7, 7, "NHWC", "float16"),
    w.GlobalAverageBackward(256, 2048, 7, 7, "NCHW", "float32"),
    w.SoftmaxCrossEntropyForward(256, 1000, "float16"),
]


def parameters_of(source, function, defines):
    """The C types of a kernel's parameters under these definitions."""
    text = (FOLDER / source).read_text()
    residual = r"\1" if "ADD=1" in defines else ""
    text = re.sub(r"#if ADD\n(.*?)#endif", residual, text, flags=re.DOTALL)
    signature = re.search(rf'"C" __global__ void {function}\((.*?)\) {{', text, re.DOTALL)
    assert signature, function
    return [" ".join(parameter.split()[:-1]) for parameter in signature[1].split(",")]


def test_a_kernel_takes_the_operands_and_then_the_scalars():
    for work in WORK.values():
        launch = launch_of(work)
        expected = []
        dtype = next((define for define in launch.defines if define.startswith("DTYPE=")), "").partition("=")[2]
        for operand in work.operands:
            c_type = C_TYPES[operand.dtype]
            expected.append((("const " if operand.role == "in" else "") + c_type + "*", c_type))
        parameters = parameters_of(launch.source, launch.function, launch.defines)
        for parameter, (pointer, c_type) in zip(parameters, expected, strict=False):
            of_any_type = {pointer.replace(c_type, "T"): dtype, pointer.replace(c_type, "Place"): "unsigned char"}
            assert parameter == pointer or of_any_type.get(parameter) == c_type, work
        scalars = ["long long" if isinstance(scalar, int) else "float" for scalar in work.scalars]
        assert parameters[len(expected) :] == scalars, work


def test_grids_and_blocks_are_within_cudas_limits():
    for work in (*WORK.values(), *BATCH_256):
        launch = launch_of(work)
        assert 1 <= launch.grid[0] <= MAX_GRID and launch.grid[1:] == (1, 1), work
        assert 1 <= math.prod(launch.block) <= 1024, work


def test_work_that_is_no_kernels_is_refused():
    conv = w.Conv2d(1, 8, 4, 4, 8, 1, 1, 1, 0, "NHWC", "float16")
    with pytest.raises(TypeError, match="no kernel does conv_fprop: it is a cuDNN graph"):
        launch_of(w.ConvFprop(conv))


def test_windows_that_a_byte_cannot_place_are_refused():
    for size, window, pad in ((40, 17, 0), (4, 2, 2)):
        with pytest.raises(ValueError, match="expected 0 <= pad < ksize <= 16"):
            launch_of(w.MaxPoolForward(w.Pool(1, 1, size, size, window, 1, pad, "NCHW", "float32")))
