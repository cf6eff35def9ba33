"""cuDNN's graph for a piece of work.

Sizes are logical (N, C, H, W) whatever the layout, which the strides tell. Tensors are numbered in the order of
`work.operands`, from 1; cuDNN takes device addresses in the order of these numbers. Two more follow for a forward batch
normalisation, whose running statistics are read and written: `slots` says whose address each takes. Constants (epsilon,
momentum, ReLU's zero) are passed by value within the graph."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda.cudnn import libraries

PRODUCTS_OF_ANY_SIZE_FROM_SM = 80
"""Before, cuDNN's matrix products have plans where all three sizes are multiples of 8."""

_Dims = tuple[list[int], list[int]]


def slots(work: w.Work) -> tuple[int, ...]:
    """For each address that the graph's plan takes, the index of its operand."""
    indices = {operand.name: index for index, operand in enumerate(work.operands)}
    again = ("running_mean", "running_var") if isinstance(work, w.BatchNormForward) else ()
    return (*range(len(indices)), *(indices[name] for name in again))


def define(work: w.Work, target: dict[str, Any], sm: int) -> Any:
    """The graph for a GPU of compute capability `sm`, validated and lowered, before its plans are looked for. `target`:
    `handle` on a GPU; `device_property` and `sm_version` for one that is not there. Raises cuDNN's own errors where it
    knows no such graph."""
    cudnn = libraries.frontend()
    builder = _BUILDERS.get(type(work))
    if builder is None:
        raise TypeError(f"{work.name} is not done by a cuDNN graph")
    graph = empty(
        target,
        name=work.name,
        io_data_type=cudnn.data_type.FLOAT,
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
    )
    builder(_Tensors(cudnn, graph, work, is_matrix_product(work, sm)), work)
    graph.validate()
    graph.build_operation_graph()
    return graph


def empty(target: dict[str, Any], **settings: Any) -> Any:
    """A graph without operations. Its plans hold no reference in the CUDA graphs that they are captured into: whoever
    captures keeps them alive. The frontend would else ask the runtime, at each run of a plan compiled when it was
    built, whether the stream captures, and a CUDA graph that holds such references takes longer to launch."""
    cudnn = libraries.frontend()
    return libraries.graph_class(cudnn)(cuda_graph_retention=cudnn.cuda_graph_retention.NONE, **target, **settings)


def deselected_notes(work: w.Work) -> tuple[str, ...]:
    """The numerical properties that a plan for this work must not have, by cuDNN's names. Strict float32 keeps away
    from Tensor Cores, which would round its inputs; 16 bits accumulate in float32."""
    conv: w.Conv2d | None = getattr(work, "conv", None)
    if conv is None:
        return ()
    if conv.dtype == "float32":
        return ("TENSOR_CORE", "DOWN_CONVERT_INPUTS") if conv.math == "strict" else ()
    return ("REDUCED_PRECISION_REDUCTION",)


def is_matrix_product(work: w.Work, sm: int) -> bool:
    """Whether a convolution goes to cuDNN as a product of matrices: one of 1x1 on a single image, in half precision or
    TF32. For Tensor Cores its convolutions would often copy that image, of NCHW always, whatever its size
    (`work.product` makes it of a whole batch); its products take matrices as they lie, but have no plans without Tensor
    Cores."""
    conv: w.Conv2d | None = getattr(work, "conv", None)
    if conv is None or (conv.dtype == "float32" and conv.math == "strict"):
        return False
    if sm < PRODUCTS_OF_ANY_SIZE_FROM_SM and any(size % 8 for size in (conv.c, conv.k, conv.p * conv.q)):
        return False
    return (conv.n, conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 1, 0)


def added_to(work: w.Work, sm: int) -> tuple[int, ...]:
    """Indices of the results that the plan adds to, so that they have to be zero before it runs. cuDNN's documentation
    is silent. On compute capability 8.x and 9.0 every plan with statistics has a workspace for partial sums; from 10.0
    on the only one has none, and NVIDIA's test of this graph (test_conv_genstats.py in cudnn-frontend) hands in
    zeros."""
    if not isinstance(work, w.ConvFpropStats) or sm < 100:
        return ()
    return tuple(index for index, operand in enumerate(work.operands) if operand.name in ("sum", "square_sum"))


def dims(shape: tuple[int, ...], layout: w.Layout) -> _Dims:
    """Logical sizes and strides, (N, C, H, W) or (1, C, 1, 1), of a C-contiguous array."""
    if len(shape) == 1:
        (c,) = shape
        return [1, c, 1, 1], [c, 1, c, c]
    if layout == "NCHW":
        n, c, h, w = shape
        return [n, c, h, w], [c * h * w, h * w, w, 1]
    n, h, w, c = shape
    return [n, c, h, w], [h * w * c, 1, w * c, c]


class _Tensors:
    """Makes a graph's tensors from the work's operands, by name."""

    def __init__(self, cudnn: Any, graph: Any, work: w.Work, as_matrices: bool) -> None:
        self.cudnn = cudnn
        self.graph = graph
        self.as_matrices = as_matrices
        described: Any = work
        self.layout: w.Layout = (described.conv if hasattr(work, "conv") else described.norm).layout
        self.operands: dict[str, tuple[int, w.Operand]] = {
            operand.name: (uid, operand) for uid, operand in enumerate(work.operands, start=1)
        }
        self.next_uid = len(self.operands) + 1
        self.types = {
            "float16": cudnn.data_type.HALF,
            "bfloat16": cudnn.data_type.BFLOAT16,
            "float32": cudnn.data_type.FLOAT,
            "bool": cudnn.data_type.BOOLEAN,
        }

    def given(self, name: str) -> Any:
        """The tensor of an operand that is read."""
        return self._given(name, dims(self.operands[name][1].shape, self.layout))

    def matrix(self, name: str, transposed: bool) -> Any:
        """The same as a matrix: a filter (K, C), an image (channels, pixels)."""
        return self._given(name, self._matrix_dims(self.operands[name][1], transposed))

    def _given(self, name: str, sizes: _Dims) -> Any:
        uid, operand = self.operands[name]
        dim, stride = sizes
        return self.graph.tensor(name=name, dim=dim, stride=stride, data_type=self.types[operand.dtype], uid=uid)

    def result(self, name: str, tensor: Any, as_matrix: bool = False) -> None:
        """A tensor that the graph computes is this operand."""
        uid, operand = self.operands[name]
        self._result(tensor, uid, operand, self._matrix_dims(operand) if as_matrix else None)

    def written_again(self, name: str, tensor: Any) -> None:
        """A tensor that the graph computes goes to where an operand was read from. In the order of `slots`."""
        self._result(tensor, self.next_uid, self.operands[name][1])
        self.next_uid += 1

    def _result(self, tensor: Any, uid: int, operand: w.Operand, sizes: _Dims | None = None) -> None:
        dim, stride = sizes or dims(operand.shape, self.layout)
        tensor.set_output(True).set_data_type(self.types[operand.dtype]).set_uid(uid).set_dim(dim).set_stride(stride)

    def scalar(self, value: float) -> Any:
        """A float32 constant, passed by value. The frontend keeps a number that float32 does not hold exactly, such as
        0.1, as a double, and hands cuDNN its address whatever type the tensor is given afterwards: so it is rounded
        here, and the type is the frontend's own."""
        tensor = self.graph.tensor_scalar(ctypes.c_float(value).value, self.cudnn.scalar_type.RUNTIME_PARAM)
        return tensor.set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1])

    def _matrix_dims(self, operand: w.Operand, transposed: bool = False) -> _Dims:
        is_filter = operand.name.endswith("w")
        pixels_first = self.layout == "NHWC" and not is_filter
        rows = operand.shape[0 if is_filter else -1 if pixels_first else 1]
        columns = operand.size // rows
        dim, stride = [rows, columns], [1, rows] if pixels_first else [columns, 1]
        if transposed:
            dim, stride = dim[::-1], stride[::-1]
        return [1, *dim], [operand.size, *stride]


def _fprop(graph: Any, **given: Any) -> Any:
    return graph.conv_fprop(**given)


def _dgrad(graph: Any, **given: Any) -> Any:
    return graph.conv_dgrad(**given)


def _wgrad(graph: Any, **given: Any) -> Any:
    return graph.conv_wgrad(**given)


_CONVOLUTIONS: dict[type[w.Work], tuple[Callable[..., Any], dict[str, str], str, dict[str, bool]]] = {
    w.ConvFprop: (_fprop, {"image": "x", "weight": "w"}, "y", {"w": False, "x": False}),
    w.ConvFpropStats: (_fprop, {"image": "x", "weight": "w"}, "y", {}),
    w.ConvDgrad: (_dgrad, {"loss": "gy", "filter": "w"}, "gx", {"w": True, "gy": False}),
    w.ConvWgrad: (_wgrad, {"image": "x", "loss": "gy"}, "gw", {"gy": False, "x": True}),
}
"""By work: the operation of its graph, the operands that it takes as arguments, and its result; and where it can be a
product of two matrices, these and whether each is transposed."""


def _convolution(tensors: _Tensors, work: Any) -> None:
    operation, arguments, result, factors = _CONVOLUTIONS[type(work)]
    conv, graph, wide = work.conv, tensors.graph, tensors.cudnn.data_type.FLOAT
    if tensors.as_matrices and factors:
        a, b = (tensors.matrix(name, transposed) for name, transposed in factors.items())
        tensors.result(result, graph.matmul(A=a, B=b, compute_data_type=wide, name="product"), as_matrix=True)
        return
    computed = operation(
        graph,
        **{argument: tensors.given(name) for argument, name in arguments.items()},
        padding=[conv.pad, conv.pad],
        stride=[conv.stride, conv.stride],
        dilation=[1, 1],
        compute_data_type=wide,
        name="conv",
    )
    tensors.result(result, computed)
    if isinstance(work, w.ConvFpropStats):
        sums = graph.genstats(input=computed, compute_data_type=wide, name="statistics")
        for name, total in zip(("sum", "square_sum"), sums, strict=True):
            tensors.result(name, total)


def _batch_norm_forward(tensors: _Tensors, work: w.BatchNormForward) -> None:
    graph, norm = tensors.graph, work.norm
    value, mean, inv_std, running_mean, running_var = graph.batchnorm(
        input=tensors.given("x"),
        scale=tensors.given("gamma"),
        bias=tensors.given("beta"),
        in_running_mean=tensors.given("running_mean"),
        in_running_var=tensors.given("running_var"),
        epsilon=tensors.scalar(work.eps),
        momentum=tensors.scalar(work.momentum),
        name="batch_norm",
    )
    if norm.add:
        value = graph.add(a=value, b=tensors.given("residual"), name="add")
    if norm.relu:
        value = graph.relu(input=value, name="relu")
    tensors.result("y", value)
    tensors.result("mean", mean)
    tensors.result("inv_std", inv_std)
    if norm.relu:
        tensors.result("mask", graph.cmp_gt(input=value, comparison=tensors.scalar(0.0), name="mask"))
    tensors.written_again("running_mean", running_mean)
    tensors.written_again("running_var", running_var)


def _batch_norm_backward(tensors: _Tensors, work: w.BatchNormBackward) -> None:
    graph, norm = tensors.graph, work.norm
    gradient = tensors.given("gy")
    if norm.relu:
        gradient = graph.scale(input=gradient, scale=tensors.given("mask"), name="relu")
        # cuDNN fuses this product only where it is rounded to the gradient's own dtype.
        gradient.set_data_type(tensors.types[norm.dtype])
    if norm.add:
        tensors.result("gresidual", gradient)
    gx, ggamma, gbeta = graph.batchnorm_backward(
        grad=gradient,
        input=tensors.given("x"),
        scale=tensors.given("gamma"),
        mean=tensors.given("mean"),
        inv_variance=tensors.given("inv_std"),
        name="batch_norm",
    )
    tensors.result("gx", gx)
    tensors.result("ggamma", ggamma)
    tensors.result("gbeta", gbeta)


_BUILDERS: dict[type[w.Work], Callable[[_Tensors, Any], Any]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    w.BatchNormForward: _batch_norm_forward,
    w.BatchNormBackward: _batch_norm_backward,
}


@functools.lru_cache(maxsize=8)
def absent_target(properties: str, sm: int) -> dict[str, Any]:
    """The target that `define` needs for a GPU that is not there, or is not looked at, by its properties in cuDNN's
    form (JSON). No `sm_count`: a handle brings none either, and with one cuDNN refuses its Hopper engine (9.19 and
    9.28)."""
    return {"device_property": libraries.frontend().create_device_properties(properties), "sm_version": sm}


def present_properties(index: int) -> str:
    """The properties of the GPU that CUDA calls `index`, in cuDNN's form. Raises cuDNN's own errors."""
    return str(libraries.frontend().create_device_properties(index).serialize())
