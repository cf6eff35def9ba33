"""cuDNN's graph for each piece of work.

Sizes are logical (N, C, H, W) in both layouts; the strides differ. Tensors are numbered from 1 in the order of
`work.operands`, and cuDNN takes device addresses in this order. A forward batch normalisation has two more tensors: its
running statistics are both read and written. `slots` maps each tensor to its operand. Constants (epsilon, momentum,
ReLU's zero) are stored in the graph."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda.cudnn import libraries

PRODUCTS_OF_ANY_SIZE_FROM_SM = 80
"""cuDNN's matrix products on older GPUs have plans only if all three sizes are multiples of 8."""

_Dims = tuple[list[int], list[int]]


def slots(work: w.Work) -> tuple[int, ...]:
    """Return, for each address that the graph's plan takes, the index of the operand at that address."""
    indices = {operand.name: index for index, operand in enumerate(work.operands)}
    written = ("running_mean", "running_var") if isinstance(work, w.BatchNormForward) else ()
    return (*range(len(indices)), *(indices[name] for name in written))


def build_graph(work: w.Work, target: dict[str, Any], sm: int) -> Any:
    """Return an operation's cuDNN graph, validated and lowered, before plans are built.

    `target` holds the arguments of the graph that name the GPU: `handle`, or `device_property` and `sm_version` for a
    GPU that is not present. `sm` is the compute capability (90 for 9.0). Raises cuDNN's own errors if it does not
    support the graph."""
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
    """Return a graph without operations.

    Captured CUDA graphs hold no references to its plans, so the code that captures must keep them alive. With
    references, a CUDA graph takes longer to launch, and every run of a runtime-compiled plan asks the CUDA runtime
    whether the stream is capturing."""
    cudnn = libraries.frontend()
    return libraries.graph_class(cudnn)(cuda_graph_retention=cudnn.cuda_graph_retention.NONE, **target, **settings)


def deselected_notes(work: w.Work) -> tuple[str, ...]:
    """Return cuDNN's names of the numerical properties that a plan for this operation must not have.

    Strict float32 excludes Tensor Cores, which would round its inputs. 16-bit types must accumulate in float32."""
    conv: w.Conv2d | None = getattr(work, "conv", None)
    if conv is None:
        return ()
    if conv.dtype == "float32":
        return ("TENSOR_CORE", "DOWN_CONVERT_INPUTS") if conv.math == "strict" else ()
    return ("REDUCED_PRECISION_REDUCTION",)


def is_matrix_product(work: w.Work, sm: int) -> bool:
    """Return whether to pass an operation to cuDNN as a matrix product: a 1x1 convolution of one image on Tensor Cores.

    cuDNN's convolutions on Tensor Cores often copy the image (in NCHW always), which can be a whole batch
    (`work.im2col.product`). Its matrix products do not copy, but have plans only for Tensor Cores: 16 bits or TF32."""
    conv: w.Conv2d | None = getattr(work, "conv", None)
    if conv is None or (conv.dtype == "float32" and conv.math == "strict"):
        return False
    if sm < PRODUCTS_OF_ANY_SIZE_FROM_SM and any(size % 8 for size in (conv.c, conv.k, conv.p * conv.q)):
        return False
    return (conv.n, conv.r, conv.s, conv.stride, conv.pad) == (1, 1, 1, 1, 0)


def accumulated_operands(work: w.Work, sm: int) -> tuple[int, ...]:
    """Return the indices of the operands that a plan adds its results to, so that the caller must zero them first.

    cuDNN does not document this. On compute capability 8.x and 9.0, every plan with statistics has a workspace for
    partial sums. From 10.0 on the only plan has none, and NVIDIA's test of this graph (test_conv_genstats.py in
    cudnn-frontend) passes zeros."""
    if not isinstance(work, w.ConvFpropStats) or sm < 100:
        return ()
    return tuple(index for index, operand in enumerate(work.operands) if operand.name in ("sum", "square_sum"))


def dims(shape: tuple[int, ...], layout: w.Layout) -> _Dims:
    """Return logical sizes and strides, (N, C, H, W) or (1, C, 1, 1), of a C-contiguous array."""
    if len(shape) == 1:
        (c,) = shape
        return [1, c, 1, 1], [c, 1, c, c]
    if layout == "NCHW":
        n, c, h, w = shape
        return [n, c, h, w], [c * h * w, h * w, w, 1]
    n, h, w, c = shape
    return [n, c, h, w], [h * w * c, 1, w * c, c]


class _Tensors:
    """The tensors of a graph, created from the operands of its operation by name."""

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

    def input(self, name: str, sizes: _Dims | None = None) -> Any:
        """Return the tensor of an operand that the graph reads."""
        uid, operand = self.operands[name]
        dim, stride = sizes or dims(operand.shape, self.layout)
        return self.graph.tensor(name=name, dim=dim, stride=stride, data_type=self.types[operand.dtype], uid=uid)

    def matrix(self, name: str, transposed: bool) -> Any:
        """Return an operand that the graph reads as a matrix: a filter is (K, C), an image (channels, pixels)."""
        return self.input(name, self._matrix_dims(self.operands[name][1], transposed))

    def output(self, name: str, tensor: Any, as_matrix: bool = False, in_place: bool = False) -> None:
        """Write a computed tensor to an operand.

        `in_place`: the graph also reads the operand. Such calls come last, in the order of `slots`."""
        uid, operand = self.operands[name]
        if in_place:
            uid, self.next_uid = self.next_uid, self.next_uid + 1
        dim, stride = self._matrix_dims(operand) if as_matrix else dims(operand.shape, self.layout)
        tensor.set_output(True).set_data_type(self.types[operand.dtype]).set_uid(uid).set_dim(dim).set_stride(stride)

    def scalar(self, value: float) -> Any:
        """Return a tensor for a float32 constant that is stored in the graph.

        Rounds to float32 first: the frontend stores other numbers, such as 0.1, as doubles and passes cuDNN their
        address, whatever type the tensor is set to afterwards."""
        tensor = self.graph.tensor_scalar(ctypes.c_float(value).value, self.cudnn.scalar_type.RUNTIME_PARAM)
        return tensor.set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1])

    def _matrix_dims(self, operand: w.Operand, transposed: bool = False) -> _Dims:
        """Return the sizes and strides of an operand as a matrix (1, rows, columns) of channels and pixels."""
        is_filter = operand.name.endswith("w")
        pixels_first = self.layout == "NHWC" and not is_filter
        rows = operand.shape[0 if is_filter else -1 if pixels_first else 1]
        columns = operand.size // rows
        dim, stride = [rows, columns], [1, rows] if pixels_first else [columns, 1]
        if transposed:
            dim, stride = dim[::-1], stride[::-1]
        return [1, *dim], [operand.size, *stride]


def _fprop(graph: Any, **arguments: Any) -> Any:
    return graph.conv_fprop(**arguments)


def _dgrad(graph: Any, **arguments: Any) -> Any:
    return graph.conv_dgrad(**arguments)


def _wgrad(graph: Any, **arguments: Any) -> Any:
    return graph.conv_wgrad(**arguments)


_CONVOLUTIONS: dict[type[w.Work], tuple[Callable[..., Any], dict[str, str], str, dict[str, bool]]] = {
    w.ConvFprop: (_fprop, {"image": "x", "weight": "w"}, "y", {"w": False, "x": False}),
    w.ConvFpropStats: (_fprop, {"image": "x", "weight": "w"}, "y", {}),
    w.ConvDgrad: (_dgrad, {"loss": "gy", "filter": "w"}, "gx", {"w": True, "gy": False}),
    w.ConvWgrad: (_wgrad, {"image": "x", "loss": "gy"}, "gw", {"gy": False, "x": True}),
}
"""Each convolution's operation, its arguments (cuDNN's name: operand), and the operand of the result. If it can be a
matrix product, also the operands of the two factors and whether each is transposed."""


def _convolution(tensors: _Tensors, work: Any) -> None:
    """Add a convolution or one of its gradients to the graph; a 1x1 convolution may be a matrix product."""
    operation, arguments, result, factors = _CONVOLUTIONS[type(work)]
    conv, graph, wide = work.conv, tensors.graph, tensors.cudnn.data_type.FLOAT
    if tensors.as_matrices and factors:
        a, b = (tensors.matrix(name, transposed) for name, transposed in factors.items())
        tensors.output(result, graph.matmul(A=a, B=b, compute_data_type=wide, name="product"), as_matrix=True)
        return
    computed = operation(
        graph,
        **{argument: tensors.input(name) for argument, name in arguments.items()},
        padding=[conv.pad, conv.pad],
        stride=[conv.stride, conv.stride],
        dilation=[1, 1],
        compute_data_type=wide,
        name="conv",
    )
    tensors.output(result, computed)
    if isinstance(work, w.ConvFpropStats):
        sums = graph.genstats(input=computed, compute_data_type=wide, name="statistics")
        for name, total in zip(("sum", "square_sum"), sums, strict=True):
            tensors.output(name, total)


def _batch_norm_forward(tensors: _Tensors, work: w.BatchNormForward) -> None:
    """Add a batch normalisation, with addition and ReLU if the work has them, to the graph."""
    graph, norm = tensors.graph, work.norm
    value, mean, inv_std, running_mean, running_var = graph.batchnorm(
        input=tensors.input("x"),
        scale=tensors.input("gamma"),
        bias=tensors.input("beta"),
        in_running_mean=tensors.input("running_mean"),
        in_running_var=tensors.input("running_var"),
        epsilon=tensors.scalar(work.eps),
        momentum=tensors.scalar(work.momentum),
        name="batch_norm",
    )
    if norm.add:
        value = graph.add(a=value, b=tensors.input("residual"), name="add")
    if norm.relu:
        value = graph.relu(input=value, name="relu")
    tensors.output("y", value)
    tensors.output("mean", mean)
    tensors.output("inv_std", inv_std)
    if norm.relu:
        tensors.output("mask", graph.cmp_gt(input=value, comparison=tensors.scalar(0.0), name="mask"))
    tensors.output("running_mean", running_mean, in_place=True)
    tensors.output("running_var", running_var, in_place=True)


def _batch_norm_backward(tensors: _Tensors, work: w.BatchNormBackward) -> None:
    """Add the gradient of a batch normalisation, of addition and of ReLU to the graph."""
    graph, norm = tensors.graph, work.norm
    gradient = tensors.input("gy")
    if norm.relu:
        gradient = graph.scale(input=gradient, scale=tensors.input("mask"), name="relu")
        # cuDNN fuses this product only if its dtype is the gradient's.
        gradient.set_data_type(tensors.types[norm.dtype])
    if norm.add:
        tensors.output("gresidual", gradient)
    gx, ggamma, gbeta = graph.batchnorm_backward(
        grad=gradient,
        input=tensors.input("x"),
        scale=tensors.input("gamma"),
        mean=tensors.input("mean"),
        inv_variance=tensors.input("inv_std"),
        name="batch_norm",
    )
    tensors.output("gx", gx)
    tensors.output("ggamma", ggamma)
    tensors.output("gbeta", gbeta)


_BUILDERS: dict[type[w.Work], Callable[[_Tensors, Any], Any]] = {
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    w.BatchNormForward: _batch_norm_forward,
    w.BatchNormBackward: _batch_norm_backward,
}


@functools.lru_cache(maxsize=8)
def absent_target(properties: str, sm: int) -> dict[str, Any]:
    """Return the `target` with which `build_graph` plans without using the GPU.

    `properties`: the GPU's, in cuDNN's JSON form. There is no `sm_count`, as with a handle: with it, cuDNN 9.19 and
    9.28 refuse their Hopper engine."""
    return {"device_property": libraries.frontend().create_device_properties(properties), "sm_version": sm}


def present_properties(index: int) -> str:
    """Return the properties of the GPU that CUDA calls `index`, in cuDNN's JSON form. Raises cuDNN's own errors."""
    return str(libraries.frontend().create_device_properties(index).serialize())
