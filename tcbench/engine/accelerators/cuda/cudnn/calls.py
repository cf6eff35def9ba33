"""cuDNN's older batch normalisation calls, which the graph API does not replace: NCHW without transposes, and GPUs
before compute capability 8.0.

Types, numbers and argument orders are those of cudnn_ops.h and cudnn_graph.h of cuDNN 9. The calls are deprecated
there, but exported. Descriptors and queries happen once per work (`prepare_call`); the call that results only passes
addresses on. A cudnnHandle_t made here and one made by cuDNN's frontend are the same thing."""

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
# Arguments in cuDNN's order: operands of the work by their names, and what `prepare_call` knows. "one" and "zero" are
# alpha and beta; x, y and their gradients share the descriptor "maps", all vectors "vectors".
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
_SIGNATURES |= {name: [_TYPES.get(one, _P) for one in names.split()] for name, names in _ARGUMENTS.items()}


class CallError(RuntimeError):
    """cuDNN refused a call."""


class Library:
    """libcudnn with typed functions. `checked` ones raise CallError where cuDNN does not answer with success."""

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
        """The function itself, which returns a status."""
        function: Callable[..., int] = getattr(self._library, name)
        return function

    def checked(self, name: str, *arguments: Any) -> None:
        status = self.bare(name)(*arguments)
        if status != 0:
            raise self.error(name, status)

    def error(self, name: str, status: int) -> CallError:
        words = self._library.cudnnGetErrorString(status)
        detail = ctypes.create_string_buffer(512)
        self._library.cudnnGetLastErrorString(detail, len(detail))
        more = " ".join(detail.value.decode(errors="replace").split())
        said = words.decode(errors="replace") if words else f"status {status}"
        return CallError(f"{name}: {said}" + (f" ({more})" if more else ""))


@functools.cache
def library() -> Library:
    """The installed cuDNN. Raises LibraryError."""
    return Library(libraries.cudnn_library())


def new_handle(stream: int, lib: Library | None = None) -> int:
    """A cudnnHandle_t on the current device, for work on this cudaStream_t. It lives as long as its process."""
    lib, handle = lib or library(), c_void_p()
    lib.checked("cudnnCreate", ctypes.byref(handle))
    lib.checked("cudnnSetStream", handle, stream)
    return int(handle.value or 0)


class PreparedCall:
    """A prepared call. `workspace_bytes` is what it needs beside its operands."""

    __slots__ = ("_descriptors", "_function", "_known", "_library", "_name", "_operands", "_ordered", "workspace_bytes")

    def __init__(
        self, name: str, work: Work, known: Mapping[str, Any], lib: Library, descriptors: "_Descriptors"
    ) -> None:
        self.workspace_bytes = known["workspace_bytes"]
        self._name, self._library, self._descriptors = name, lib, descriptors
        self._function = lib.bare(name)
        operands = [operand.name for operand in work.operands]
        constants = [one for one in _ARGUMENTS[name].split() if one not in operands and one != "workspace"]
        self._known = tuple(known.get(one) for one in constants)  # None: an operand that this work has not
        self._operands = len(operands)
        places = {one: place for place, one in enumerate((*constants, "workspace", *operands))}
        self._ordered = operator.itemgetter(*(places[one] for one in _ARGUMENTS[name].split()))

    def __call__(self, addresses: Sequence[int], workspace: int = 0) -> None:
        """Run on device addresses in the order of the work's operands. Raises CallError."""
        if len(addresses) != self._operands:
            raise ValueError(f"{self._name}: expected {self._operands} addresses, got {len(addresses)}")
        status = self._function(*self._ordered((*self._known, workspace, *addresses)))
        if status != 0:
            raise self._library.error(self._name, status)


class _Descriptors:
    """Descriptors of one call, destroyed with it."""

    def __init__(self, lib: Library) -> None:
        self._library = lib

    def tensor(self, layout: str, dtype: str, n: int, c: int, h: int, w: int) -> c_void_p:
        descriptor = self._create("cudnnCreateTensorDescriptor", "cudnnDestroyTensorDescriptor")
        self._library.checked(
            "cudnnSetTensor4dDescriptor", descriptor, _FORMATS[layout], _DATA_TYPES[dtype], n, c, h, w
        )
        return descriptor

    def relu(self) -> c_void_p:
        descriptor = self._create("cudnnCreateActivationDescriptor", "cudnnDestroyActivationDescriptor")
        self._library.checked("cudnnSetActivationDescriptor", descriptor, _ACTIVATION_RELU, _PROPAGATE_NAN, 0.0)
        return descriptor

    def _create(self, create: str, destroy: str) -> c_void_p:
        descriptor = c_void_p()
        self._library.checked(create, ctypes.byref(descriptor))
        weakref.finalize(self, self._library.bare(destroy), c_void_p(descriptor.value))
        return descriptor


def prepare_call(work: Work, handle: int, lib: Library | None = None) -> PreparedCall:
    """Prepare the call that does this work on the handle's stream. `handle` is a cudnnHandle_t. Raises CallError,
    LibraryError. Raises ValueError for work that these calls do not do."""
    if not isinstance(work, BatchNormCallForward | BatchNormCallBackward):
        raise ValueError(f"{work.name} is not one of cuDNN's older calls")
    norm = work.norm
    # In NHWC the extended calls alone reach cuDNN's fast kernels, with and without ReLU, and only so.
    extended = norm.layout == "NHWC" and norm.dtype == "float16" and work.persistent
    if norm.relu and not extended:
        mode = "persistent" if work.persistent else "plain"
        raise ValueError(
            f"{work.name} fuses ReLU for NHWC float16 in the persistent mode only, "
            f"not for {norm.layout} {norm.dtype} in the {mode} mode"
        )
    lib = lib or library()
    descriptors = _Descriptors(lib)
    maps = descriptors.tensor(norm.layout, norm.dtype, norm.n, norm.c, norm.h, norm.w)
    known = {
        "handle": handle,
        "mode": _SPATIAL_PERSISTENT if work.persistent else _SPATIAL,
        "ops": _OPS[norm.after],
        "one": _ALPHA,
        "zero": _BETA,
        "maps": maps,
        "maps_added": maps if norm.add else None,
        "maps_relu": maps if norm.relu else None,
        "vectors": descriptors.tensor("NCHW", "float32", 1, norm.c, 1, 1),
        "relu": descriptors.relu() if norm.relu else None,
        "eps": work.eps,
        "momentum": getattr(work, "momentum", None),
        "workspace_bytes": 0,
    }
    if extended:
        known["reserve_bytes"] = _reserve(norm, lib, known)
        # Without ReLU there is nothing to keep, so its work has no room for it; the plain calls do the same, slower.
        extended = norm.relu or known["reserve_bytes"] == 0
    forward = isinstance(work, BatchNormCallForward)
    name = (_FORWARD_EX if forward else _BACKWARD_EX) if extended else (_FORWARD if forward else _BACKWARD)
    if extended:
        known["workspace_bytes"] = _size(lib, _WORKSPACE_SIZE[name], known)
    return PreparedCall(name, work, known, lib, descriptors)


# alpha and beta: results are stored, not added to what is there. Read by cuDNN on the host when it is called.
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
_ALPHA, _BETA = c_void_p(ctypes.addressof(_ONE)), c_void_p(ctypes.addressof(_ZERO))


def _reserve(norm: Norm, lib: Library, known: Mapping[str, Any]) -> int:
    """Bytes of reserve space that cuDNN asks for; with ReLU they must not be more than the work's operand has."""
    asked = _size(lib, _RESERVE_SIZE, known)
    given = reserve_bytes(norm)
    if norm.relu and asked > given:
        raise CallError(
            f"cuDNN {libraries.version()} asks for {asked} bytes of reserve space for a batch normalisation of "
            f"{norm.shape}, expected at most {given}: use the config without 'fused' on this GPU"
        )
    return asked


def _size(lib: Library, name: str, known: Mapping[str, Any]) -> int:
    size = c_size_t()
    lib.checked(name, *({**known, "size": ctypes.byref(size)}[one] for one in _ARGUMENTS[name].split()))
    return int(size.value)
