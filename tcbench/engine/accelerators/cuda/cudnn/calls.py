"""cuDNN's older batch normalisation calls, which the graph API does not replace: NCHW without transposes, and GPUs
before compute capability 8.0.

Types, numbers and argument orders are those of cudnn_ops.h and cudnn_graph.h of cuDNN 9. The calls are deprecated
there, but exported. Descriptors and queries happen once per work (`prepare_call`); the call that results only passes
addresses on. A cudnnHandle_t made here and one made by cuDNN's frontend are the same thing.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int, c_size_t, c_void_p
from dataclasses import dataclass
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
    "cudnnDestroy": [_P],
    "cudnnSetStream": [_P, _P],
    "cudnnCreateTensorDescriptor": [_P],
    "cudnnDestroyTensorDescriptor": [_P],
    # descriptor, format, data type, n, c, h, w
    "cudnnSetTensor4dDescriptor": [_P, c_int, c_int, c_int, c_int, c_int, c_int],
    "cudnnCreateActivationDescriptor": [_P],
    "cudnnDestroyActivationDescriptor": [_P],
    # descriptor, mode, NaN propagation, coefficient
    "cudnnSetActivationDescriptor": [_P, c_int, c_int, c_double],
    # handle, mode, alpha, beta, x (2), y (2), parameters' descriptor, gamma, beta, factor, running (2), epsilon,
    # saved (2)
    "cudnnBatchNormalizationForwardTraining": [
        *(_P, c_int, _P, _P, _P, _P, _P, _P, _P, _P, _P, c_double, _P, _P, c_double, _P, _P),
    ],
    # the same with ops after mode, z (2) after x, and activation, workspace (2), reserve space (2) at the end
    "cudnnBatchNormalizationForwardTrainingEx": [
        *(_P, c_int, c_int, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, c_double, _P, _P, c_double, _P, _P),
        *(_P, _P, c_size_t, _P, c_size_t),
    ],
    # handle, mode, alpha and beta of data, of parameters, x (2), gy (2), gx (2), parameters' descriptor, gamma,
    # ggamma, gbeta, epsilon, saved (2)
    "cudnnBatchNormalizationBackward": [
        *(_P, c_int, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, c_double, _P, _P),
    ],
    # handle, mode, ops, alpha and beta of data, of parameters, x (2), y (2), gy (2), gz (2), gx (2), parameters'
    # descriptor, gamma, beta, ggamma, gbeta, epsilon, saved (2), activation, workspace (2), reserve space (2)
    "cudnnBatchNormalizationBackwardEx": [
        *(_P, c_int, c_int, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, _P, c_double),
        *(_P, _P, _P, _P, c_size_t, _P, c_size_t),
    ],
    # handle, mode, ops, descriptors of x, z, y, parameters, activation; size
    "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize": [_P, c_int, c_int, _P, _P, _P, _P, _P, _P],
    # handle, mode, ops, descriptors of x, y, gy, gz, gx, parameters, activation; size
    "cudnnGetBatchNormalizationBackwardExWorkspaceSize": [_P, c_int, c_int, _P, _P, _P, _P, _P, _P, _P, _P],
    # handle, mode, ops, activation, descriptor of x; size
    "cudnnGetBatchNormalizationTrainingExReserveSpaceSize": [_P, c_int, c_int, _P, _P, _P],
}


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


class Handle:
    """A cudnnHandle_t on the current device: `address` is what graphs and calls take."""

    def __init__(self, lib: Library | None = None) -> None:
        self._library = lib or library()
        handle = c_void_p()
        self._library.checked("cudnnCreate", ctypes.byref(handle))
        self.address = int(handle.value or 0)

    def set_stream(self, stream: int) -> None:
        """All that follows runs on this cudaStream_t. Costs microseconds: once, not per call."""
        self._library.checked("cudnnSetStream", self.address, stream)

    def close(self) -> None:
        """Destroys it. What was prepared with it must not run any more."""
        if self.address:
            self._library.checked("cudnnDestroy", self.address)
            self.address = 0


_Run = Callable[[Sequence[int], int], int]


class Call:
    """A prepared call. `workspace_bytes` is what it needs beside its operands."""

    __slots__ = ("_descriptors", "_library", "_name", "_run", "workspace_bytes")

    def __init__(self, prepared: _Prepared, lib: Library, descriptors: _Descriptors) -> None:
        self.workspace_bytes = prepared.workspace_bytes
        self._name, self._run = prepared.name, prepared.run
        self._library = lib
        self._descriptors = descriptors

    def __call__(self, addresses: Sequence[int], workspace: int = 0) -> None:
        """Run on device addresses in the order of the work's operands. Raises CallError."""
        status = self._run(addresses, workspace)
        if status != 0:
            raise self._library.error(self._name, status)


@dataclass(frozen=True)
class _Prepared:
    """A function of cuDNN's, and what calls it with addresses and workspace and returns its status."""

    name: str
    run: _Run
    workspace_bytes: int = 0


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


def prepare_call(work: Work, handle: int, lib: Library | None = None) -> Call:
    """Prepare the call that does this work on the handle's stream. `handle` is a cudnnHandle_t. Raises CallError,
    LibraryError.

    Raises ValueError for work that these calls do not do.
    """
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
    setting = _Setting(
        lib=lib,
        handle=handle,
        mode=_SPATIAL_PERSISTENT if work.persistent else _SPATIAL,
        data=descriptors.tensor(norm.layout, norm.dtype, norm.n, norm.c, norm.h, norm.w),
        parameters=descriptors.tensor("NCHW", "float32", 1, norm.c, 1, 1),
        relu=descriptors.relu() if norm.relu else None,
    )
    if extended:
        reserve_size = _reserve(norm, setting)
        # Without ReLU there is nothing to keep, so its work has no room for it; the plain calls do the same, slower.
        extended = norm.relu or reserve_size == 0
    if isinstance(work, BatchNormCallForward):
        prepared = _forward_extended(work, setting, reserve_size) if extended else _forward(work, setting)
    else:
        prepared = _backward_extended(work, setting, reserve_size) if extended else _backward(work, setting)
    return Call(prepared, lib, descriptors)


@dataclass(frozen=True)
class _Setting:
    """The descriptors that all four calls share. One descriptor serves x, y and their gradients, one all vectors."""

    lib: Library
    handle: int
    mode: int
    data: c_void_p
    parameters: c_void_p
    relu: c_void_p | None


# alpha and beta: results are stored, not added to what is there. Read by cuDNN on the host when it is called.
_ONE, _ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)
_ALPHA, _BETA = c_void_p(ctypes.addressof(_ONE)), c_void_p(ctypes.addressof(_ZERO))


def _forward(work: BatchNormCallForward, setting: _Setting) -> _Prepared:
    name = "cudnnBatchNormalizationForwardTraining"
    function = setting.lib.bare(name)
    handle, mode, data, parameters = setting.handle, setting.mode, setting.data, setting.parameters
    momentum, eps = work.momentum, work.eps

    def run(addresses: Sequence[int], _workspace: int) -> int:
        x, gamma, beta, running_mean, running_var, y, mean, inv_std = addresses
        return function(
            *(handle, mode, _ALPHA, _BETA, data, x, data, y, parameters, gamma, beta),
            *(momentum, running_mean, running_var, eps, mean, inv_std),
        )

    return _Prepared(name, run)


def _backward(work: BatchNormCallBackward, setting: _Setting) -> _Prepared:
    name = "cudnnBatchNormalizationBackward"
    function = setting.lib.bare(name)
    handle, mode, data, parameters = setting.handle, setting.mode, setting.data, setting.parameters
    eps = work.eps

    def run(addresses: Sequence[int], _workspace: int) -> int:
        gy, x, gamma, mean, inv_std, gx, ggamma, gbeta = addresses
        return function(
            *(handle, mode, _ALPHA, _BETA, _ALPHA, _BETA, data, x, data, gy, data, gx),
            *(parameters, gamma, ggamma, gbeta, eps, mean, inv_std),
        )

    return _Prepared(name, run)


def _forward_extended(work: BatchNormCallForward, setting: _Setting, reserve_size: int) -> _Prepared:
    name = "cudnnBatchNormalizationForwardTrainingEx"
    function = setting.lib.bare(name)
    handle, mode, data, parameters = setting.handle, setting.mode, setting.data, setting.parameters
    ops, momentum, eps = _OPS[work.norm.after], work.momentum, work.eps
    residual_data = data if work.norm.add else None
    relu = setting.relu
    size = _size(
        *(setting.lib, "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize", handle, mode, ops),
        *(data, residual_data, data, parameters, relu),
    )
    add = work.norm.add

    def run(addresses: Sequence[int], workspace: int) -> int:
        residual: int | None = None
        reserve: int | None = None
        if add:
            x, residual, gamma, beta, running_mean, running_var, y, mean, inv_std, reserve = addresses
        elif relu:
            x, gamma, beta, running_mean, running_var, y, mean, inv_std, reserve = addresses
        else:
            x, gamma, beta, running_mean, running_var, y, mean, inv_std = addresses
        return function(
            *(handle, mode, ops, _ALPHA, _BETA, data, x, residual_data, residual, data, y, parameters, gamma, beta),
            *(momentum, running_mean, running_var, eps, mean, inv_std),
            *(relu, workspace, size, reserve, reserve_size),
        )

    return _Prepared(name, run, size)


def _backward_extended(work: BatchNormCallBackward, setting: _Setting, reserve_size: int) -> _Prepared:
    name = "cudnnBatchNormalizationBackwardEx"
    function = setting.lib.bare(name)
    handle, mode, data, parameters = setting.handle, setting.mode, setting.data, setting.parameters
    ops, eps = _OPS[work.norm.after], work.eps
    residual_data = data if work.norm.add else None
    relu = setting.relu
    y_data = data if relu else None
    size = _size(
        *(setting.lib, "cudnnGetBatchNormalizationBackwardExWorkspaceSize", handle, mode, ops),
        *(data, data, data, residual_data, data, parameters, relu),
    )
    add = work.norm.add

    def run(addresses: Sequence[int], workspace: int) -> int:
        beta: int | None = None
        y: int | None = None
        reserve: int | None = None
        gresidual: int | None = None
        if add:
            gy, x, gamma, mean, inv_std, beta, y, reserve, gx, ggamma, gbeta, gresidual = addresses
        elif relu:
            gy, x, gamma, mean, inv_std, beta, y, reserve, gx, ggamma, gbeta = addresses
        else:
            gy, x, gamma, mean, inv_std, gx, ggamma, gbeta = addresses
        return function(
            *(handle, mode, ops, _ALPHA, _BETA, _ALPHA, _BETA),
            *(data, x, y_data, y, data, gy, residual_data, gresidual, data, gx),
            *(parameters, gamma, beta, ggamma, gbeta, eps, mean, inv_std),
            *(relu, workspace, size, reserve, reserve_size),
        )

    return _Prepared(name, run, size)


def _reserve(norm: Norm, setting: _Setting) -> int:
    """Bytes of reserve space that cuDNN asks for; with ReLU they must not be more than the work's operand has."""
    asked = _size(
        *(setting.lib, "cudnnGetBatchNormalizationTrainingExReserveSpaceSize", setting.handle, setting.mode),
        *(_OPS[norm.after], setting.relu, setting.data),
    )
    given = reserve_bytes(norm)
    if norm.relu and asked > given:
        raise CallError(
            f"cuDNN {libraries.version()} asks for {asked} bytes of reserve space for a batch normalisation of "
            f"{norm.shape}, expected at most {given}: use the config without 'fused' on this GPU"
        )
    return asked


def _size(lib: Library, name: str, *arguments: Any) -> int:
    size = c_size_t()
    lib.checked(name, *arguments, ctypes.byref(size))
    return int(size.value)
