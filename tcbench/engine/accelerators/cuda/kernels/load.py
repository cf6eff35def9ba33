"""Loading kernels onto a GPU and launching them with little Python overhead.

Owns the loaded modules and the parameter block of a launch. `bind` takes the driver's launch function as an argument,
so that tests need neither CuPy nor a GPU."""

import ctypes
import functools
import struct
from collections.abc import Callable
from typing import Any

from tcbench.engine.accelerators.cuda.kernels.compile import compile_kernel
from tcbench.engine.accelerators.cuda.kernels.launches import KernelLaunch, launch_of
from tcbench.engine.work import Work

_STALL = KernelLaunch("stall.cu", "stall", (), (1, 1, 1), (1, 1, 1))

Launch = Callable[..., None]
"""cuLaunchKernel(function, *grid, *block, shared bytes, stream, address of the parameters' addresses, extra)."""


class Kernels:
    """The kernels that are loaded on the current device, of compute capability `sm` (90 for 9.0).

    `current_stream` returns the address of the stream to launch on. Launches work while this object lives, and from one
    thread at a time."""

    def __init__(self, sm: int, current_stream: Callable[[], int]) -> None:
        self.sm = sm
        self._current_stream = current_stream
        self._modules: dict[tuple[str, tuple[str, ...]], Any] = {}

    def prepare(self, work: Work, launch: KernelLaunch | None = None) -> Launch:
        """Return a function of the addresses of the operation's arrays that launches its kernel on the current stream.

        `launch` replaces `launch_of(work)`. Raises the errors of `launch_of` and `compile_kernel`."""
        from cupy.cuda import driver

        launch = launch or launch_of(work)
        function = self.module(launch).get_function(launch.function)
        return bind(work, launch, function.ptr, driver.launchKernel, self._current_stream)

    def stall(self, seconds: float) -> None:
        """Launch a kernel that only keeps the stream busy for `seconds`."""
        from cupy.cuda import driver

        function = self.module(_STALL).get_function(_STALL.function)
        stream, nanoseconds = self._current_stream(), ctypes.c_longlong(round(seconds * 1e9))
        parameters = ctypes.c_void_p(ctypes.addressof(nanoseconds))
        driver.launchKernel(function.ptr, *_STALL.grid, *_STALL.block, 0, stream, ctypes.addressof(parameters), 0)

    def module(self, launch: KernelLaunch) -> Any:
        """Return the module that contains a launch's kernel, compiled and loaded at most once."""
        key = (launch.source, launch.defines)
        if key not in self._modules:
            module = _new_module()
            module.load(compile_kernel(*key, self.sm))
            self._modules[key] = module
        return self._modules[key]


def _new_module() -> Any:
    from cupy.cuda.function import Module

    return Module()


def bind(
    work: Work, launch: KernelLaunch, function: int, launch_kernel: Launch, current_stream: Callable[[], int]
) -> Launch:
    """Return a function of the arrays' addresses that launches `function` with a single call of the driver.

    Every parameter takes eight bytes of a block that all launches reuse: the driver copies it during the call."""
    n_arrays, n_parameters = len(work.operands), len(work.operands) + len(work.scalars)
    formats = ["Q"] * n_arrays + ["q" if isinstance(scalar, int) else "f4x" for scalar in work.scalars]
    # The block holds the parameters, then the address of each.
    block = ctypes.create_string_buffer(16 * n_parameters)
    begin = ctypes.addressof(block)
    parameters = begin + 8 * n_parameters
    addresses = range(begin, parameters, 8)
    struct.pack_into(f"<{''.join(formats)}{n_parameters}Q", block, 0, *[0] * n_arrays, *work.scalars, *addresses)
    fill = struct.Struct(f"<{n_arrays}Q").pack_into
    launch_on = functools.partial(launch_kernel, function, *launch.grid, *launch.block, 0)

    def run(*addresses: int) -> None:
        fill(block, 0, *addresses)
        launch_on(current_stream(), parameters, 0)

    return run
