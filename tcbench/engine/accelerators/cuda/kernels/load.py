"""Kernels on a GPU: compiled, loaded once, and launched with as little Python as there can be.

Owns loaded modules and the parameter block of a launch. CuPy is imported where a GPU is at hand; the launching itself
takes the driver's call as an argument, so that tests can put another in its place."""

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
"""cuLaunchKernel: function, grid (3), block (3), shared bytes, stream, address of the parameters' addresses, extra."""


class Kernels:
    """The kernels on the current device, whose compute capability is `sm`. What it prepares launches as long as it
    lives, and from one thread at a time. `current_stream` gives the stream's address at each launch."""

    def __init__(self, sm: int, current_stream: Callable[[], int]) -> None:
        self.sm = sm
        self._current_stream = current_stream
        self._modules: dict[tuple[str, tuple[str, ...]], Any] = {}

    def prepare(self, work: Work, launch: KernelLaunch | None = None) -> Launch:
        """A function of the addresses of the work's arrays, in order, that launches it on the current stream. `launch`,
        if given, stands in for `launch_of(work)`. Raises what that and `compile_kernel` raise."""
        from cupy.cuda import driver

        launch = launch or launch_of(work)
        function = self.module(launch).get_function(launch.function)
        return bind(work, launch, function.ptr, driver.launchKernel, self._current_stream)

    def stall(self, seconds: float) -> None:
        """Launch what lasts so long and does nothing."""
        from cupy.cuda import driver

        function = self.module(_STALL).get_function(_STALL.function)
        stream, nanoseconds = self._current_stream(), ctypes.c_longlong(round(seconds * 1e9))
        parameters = ctypes.c_void_p(ctypes.addressof(nanoseconds))
        driver.launchKernel(function.ptr, *_STALL.grid, *_STALL.block, 0, stream, ctypes.addressof(parameters), 0)

    def module(self, launch: KernelLaunch) -> Any:
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
    """A function of addresses that launches `function`: it fills in the addresses and makes one call. Every parameter
    has eight bytes of its own; the driver has copied them when its call returns."""
    n_arrays, n_parameters = len(work.operands), len(work.operands) + len(work.scalars)
    formats = ["Q"] * n_arrays + ["q" if isinstance(scalar, int) else "f4x" for scalar in work.scalars]
    # The values, then their addresses.
    block = ctypes.create_string_buffer(16 * n_parameters)
    begin = ctypes.addressof(block)
    parameters = begin + 8 * n_parameters
    where = range(begin, parameters, 8)
    struct.pack_into(f"<{''.join(formats)}{n_parameters}Q", block, 0, *[0] * n_arrays, *work.scalars, *where)
    fill = struct.Struct(f"<{n_arrays}Q").pack_into
    launched = functools.partial(launch_kernel, function, *launch.grid, *launch.block, 0)

    def run(*addresses: int) -> None:
        fill(block, 0, *addresses)
        launched(current_stream(), parameters, 0)

    return run
