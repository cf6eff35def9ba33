"""cuDNN's older batch normalisation calls, for NCHW without transposes and for GPUs before compute capability 8.0.

The graph API covers neither. Types, enumerators and argument orders are those of cudnn_ops.h and cudnn_graph.h of cuDNN
9, which deprecate these calls but still export them. `prepare_call` creates descriptors and queries sizes once per
work; the prepared call only passes addresses. A cudnnHandle_t created here is of the same type as the frontend's."""

import ctypes
import functools
import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_double, c_int, c_size_t, c_void_p
from typing import Any

from tcbench.engine.accelerators.cuda.cudnn import libraries
from tcbench.engine.work import BatchNormCallBackward, BatchNormCallForward, Norm, Work, reserve_bytes

_DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 9}
_FORMATS = {"NCHW": 0, "NHWC": 1}
_SPATIAL, _SPATIAL_PERSISTENT = 1, 2
_OPS = {"none": 0, "relu": 1, "add_relu": 2}
_ACTIVATION_RELU = 1
_PROPAGATE_NAN = 1

_P = c_void_p
_SIGNATURES: dict[str, list[Any]] = {
    "cudnnCreate": [_P],
    "cudnnSetStream": [_P, _P],
    "cudnnCreateTensorDescriptor": [_P],
    "cudnnDestroyTensorDescriptor": [_P],
    # descriptor, format, data type, n, c, h, w
    "cudnnSetTensor4dDescriptor": [_P, c_int, c_int, c_int, c_int, c_int, c_int],
    "cudnnCreateActivationDescriptor": [_P],
    "cudnnDestroyActivationDescriptor": [_P],
    # descriptor, mode, NaN propagation, coefficient
    "cudnnSetActivationDescriptor": [_P, c_int, c_int, c_double],
}

_FORWARD, _FORWARD_EX = "cudnnBatchNormalizationForwardTraining", "cudnnBatchNormalizationForwardTrainingEx"
_BACKWARD, _BACKWARD_EX = "cudnnBatchNormalizationBackward", "cudnnBatchNormalizationBackwardEx"
_RESERVE_SIZE = "cudnnGetBatchNormalizationTrainingExReserveSpaceSize"
_WORKSPACE_SIZE = {
    _FORWARD_EX: "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
    _BACKWARD_EX: "cudnnGetBatchNormalizationBackwardExWorkspaceSize",
}
# Arguments in cuDNN's order: operands of the work by name, and the constants of `prepare_call`. "one" and "zero" are
# alpha and beta. x, y and their gradients share the descriptor "maps", all vectors share "vectors".
_ARGUMENTS = {
    _FORWARD: "handle mode one zero maps x maps y vectors gamma beta momentum running_mean running_var eps mean "
    "inv_std",
    _FORWARD_EX: "handle mode ops one zero maps x maps_added residual maps y vectors gamma beta momentum running_mean "
    "running_var eps mean inv_std relu workspace workspace_bytes reserve reserve_bytes",
    _BACKWARD: "handle mode one zero one zero maps x maps gy maps gx vectors gamma ggamma gbeta eps mean inv_std",
    _BACKWARD_EX: "handle mode ops one zero one zero maps x maps_relu y maps gy maps_added gresidual maps gx vectors "
    "gamma beta ggamma gbeta eps mean inv_std relu workspace workspace_bytes reserve reserve_bytes",
    _WORKSPACE_SIZE[_FORWARD_EX]: "handle mode ops maps maps_added maps vectors relu size",
    _WORKSPACE_SIZE[_BACKWARD_EX]: "handle mode ops maps maps maps maps_added maps vectors relu size",
    _RESERVE_SIZE: "handle mode ops relu maps size",
}
_TYPES = {
    **dict.fromkeys(("mode", "ops"), c_int),
    **dict.fromkeys(("momentum", "eps"), c_double),
    **dict.fromkeys(("workspace_bytes", "reserve_bytes"), c_size_t),
}
_SIGNATURES |= {name: [_TYPES.get(argument, _P) for argument in names.split()] for name, names in _ARGUMENTS.items()}


class CallError(RuntimeError):
    """An error status that a call of cuDNN returned."""


class Library:
    """libcudnn with typed functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        for name, argument_types in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = argument_types
            function.restype = c_int
        library.cudnnGetErrorString.argtypes = [c_int]
        library.cudnnGetErrorString.restype = ctypes.c_char_p
        library.cudnnGetLastErrorString.argtypes = [ctypes.c_char_p, c_size_t]
        library.cudnnGetLastErrorString.restype = None

    def bare(self, name: str) -> Callable[..., int]:
        """Return the function `name`, which returns a status."""
        function: Callable[..., int] = getattr(self._library, name)
        return function

    def checked(self, name: str, *arguments: Any) -> None:
        """Call the function `name`. Raises CallError if it does not return success."""
        status = self.bare(name)(*arguments)
        if status != 0:
            raise self.error(name, status)

    def error(self, name: str, status: int) -> CallError:
        """Return an error with cuDNN's description of a status and its last error message."""
        text = self._library.cudnnGetErrorString(status)
        buffer = ctypes.create_string_buffer(512)
        self._library.cudnnGetLastErrorString(buffer, len(buffer))
        detail = " ".join(buffer.value.decode(errors="replace").split())
        description = text.decode(errors="replace") if text else f"status {status}"
        return CallError(f"{name}: {description}" + (f" ({detail})" if detail else ""))


@functools.cache
def library() -> Library:
    """Return the installed cuDNN, loaded once. Raises LibraryError."""
    return Library(libraries.cudnn_library())


def new_handle(stream: int, lib: Library | None = None) -> int:
    """Create a cudnnHandle_t on the current device for a cudaStream_t. It is never destroyed."""
    lib, handle = lib or library(), c_void_p()
    lib.checked("cudnnCreate", ctypes.byref(handle))
    lib.checked("cudnnSetStream", handle, stream)
    return int(handle.value or 0)


Call = tuple[Callable[[Sequence[int], int], None], int]
"""A prepared operation: a function of (operands' addresses, workspace's address), and the workspace's size in bytes."""


class _Descriptor(c_void_p):
    """The address of a descriptor of cuDNN, which is destroyed together with this object."""

    def __init__(self, lib: Library, create: str, destroy: str) -> None:
        super().__init__()
        lib.checked(create, ctypes.byref(self))
        weakref.finalize(self, lib.bare(destroy), c_void_p(self.value))


def _tensor(lib: Library, layout: str, dtype: str, *sizes: int) -> _Descriptor:
    """Return a descriptor of a tensor of sizes (N, C, H, W)."""
    descriptor = _Descriptor(lib, "cudnnCreateTensorDescriptor", "cudnnDestroyTensorDescriptor")
    lib.checked("cudnnSetTensor4dDescriptor", descriptor, _FORMATS[layout], _DATA_TYPES[dtype], *sizes)
    return descriptor


def _relu(lib: Library) -> _Descriptor:
    """Return a descriptor of ReLU."""
    descriptor = _Descriptor(lib, "cudnnCreateActivationDescriptor", "cudnnDestroyActivationDescriptor")
    lib.checked("cudnnSetActivationDescriptor", descriptor, _ACTIVATION_RELU, _PROPAGATE_NAN, 0.0)
    return descriptor


def prepare_call(work: Work, handle: int, lib: Library | None = None) -> Call:
    """Prepare the call that does an operation on the stream of `handle`, a cudnnHandle_t. Both the preparation and the
    call raise CallError. Also raises LibraryError, and ValueError for an operation that these calls cannot do."""
    if not isinstance(work, BatchNormCallForward | BatchNormCallBackward):
        raise ValueError(f"{work.name} is not one of cuDNN's older calls")
    norm = work.norm
    # In NHWC only the extended calls use cuDNN's fast kernels, and only for float16 in the persistent mode.
    extended = norm.layout == "NHWC" and norm.dtype == "float16" and work.persistent
    if norm.relu and not extended:
        mode = "persistent" if work.persistent else "plain"
        raise ValueError(
            f"{work.name} fuses ReLU for NHWC float16 in the persistent mode only, "
            f"not for {norm.layout} {norm.dtype} in the {mode} mode"
        )
    lib = lib or library()
    maps = _tensor(lib, norm.layout, norm.dtype, norm.n, norm.c, norm.h, norm.w)
    constants: dict[str, Any] = {
        "handle": handle,
        "mode": _SPATIAL_PERSISTENT if work.persistent else _SPATIAL,
        "ops": _OPS[norm.after],
        "one": _ALPHA,
        "zero": _BETA,
        "maps": maps,
        "maps_added": maps if norm.add else None,
        "maps_relu": maps if norm.relu else None,
        "vectors": _tensor(lib, "NCHW", "float32", 1, norm.c, 1, 1),
        "relu": _relu(lib) if norm.relu else None,
        "eps": work.eps,
        "momentum": getattr(work, "momentum", None),
        "workspace_bytes": 0,
    }
    if extended:
        constants["reserve_bytes"] = _reserve_bytes(norm, lib, constants)
        # Without ReLU the work has no operand for reserve space. If cuDNN wants some, use the slower plain calls.
        extended = norm.relu or constants["reserve_bytes"] == 0
    forward = isinstance(work, BatchNormCallForward)
    name = (_FORWARD_EX if forward else _BACKWARD_EX) if extended else (_FORWARD if forward else _BACKWARD)
    if extended:
        constants["workspace_bytes"] = _size_bytes(lib, _WORKSPACE_SIZE[name], constants)
    return _with_addresses(lib, name, work, constants), constants["workspace_bytes"]


def _with_addresses(lib: Library, name: str, work: Work, constants: Mapping[str, Any]) -> Callable[..., None]:
    """Return the function `name` with all arguments set except the addresses of operands and workspace."""
    arguments, operands = _ARGUMENTS[name].split(), [operand.name for operand in work.operands]
    constant_names = [argument for argument in arguments if argument not in (*operands, "workspace")]
    fixed = tuple(map(constants.get, constant_names))  # None: an operand that this operation lacks
    order, function = (*constant_names, "workspace", *operands), lib.bare(name)
    in_order = operator.itemgetter(*map(order.index, arguments))

    def run(addresses: Sequence[int], workspace: int) -> None:
        """Make the call on the operands at these addresses. Raises CallError."""
        if len(addresses) != len(operands):
            raise ValueError(f"{name}: expected {len(operands)} addresses, got {len(addresses)}")
        if status := function(*in_order((*fixed, workspace, *addresses))):
            raise lib.error(name, status)

    return run


# alpha and beta: overwrite the results rather than add to them. cuDNN reads these on the host at each call.
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
_ALPHA, _BETA = c_void_p(ctypes.addressof(_ONE)), c_void_p(ctypes.addressof(_ZERO))


def _reserve_bytes(norm: Norm, lib: Library, constants: Mapping[str, Any]) -> int:
    """Return the size of the reserve space that cuDNN needs.

    Raises CallError if a batch normalisation with ReLU needs more than the operation's operand has."""
    needed, limit = _size_bytes(lib, _RESERVE_SIZE, constants), reserve_bytes(norm)
    if norm.relu and needed > limit:
        raise CallError(
            f"cuDNN {libraries.version()} needs {needed} bytes of reserve space for a batch normalisation of "
            f"{norm.shape}, expected at most {limit}: run this config without `fused` on this GPU"
        )
    return needed


def _size_bytes(lib: Library, name: str, constants: Mapping[str, Any]) -> int:
    """Return the size that cuDNN's query `name` writes."""
    size = c_size_t()
    arguments = {**constants, "size": ctypes.byref(size)}
    lib.checked(name, *map(arguments.__getitem__, _ARGUMENTS[name].split()))
    return int(size.value)
