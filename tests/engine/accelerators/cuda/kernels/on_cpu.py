"""The kernels as C++, run by the CPU behind `cuda_on_cpu.h`, through the same parameter block as on a GPU.

All modules that some pieces of work need become one shared library: each in a namespace of its own, with its
definitions, and a function for each kernel that takes a grid, a block and the parameters' addresses.
"""

import ctypes
import functools
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tcbench.engine.accelerators.cuda.kernels.compile import FOLDER
from tcbench.engine.accelerators.cuda.kernels.launches import KernelLaunch
from tcbench.engine.accelerators.cuda.kernels.load import bind
from tcbench.engine.work import Work

Module = tuple[str, tuple[str, ...]]
KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(')
HEADER = """
#include "cuda_on_cpu.h"
#define AS_C(name) \\
    extern "C" void name##_on_cpu(const unsigned* g, const unsigned* b, bool barriers, void** parameters)
"""

# Of global_average_forward, the NCHW one alone.
WITH_BARRIERS = {
    *("unscale", "global_average_forward", "bias_gradient", "bias_gradient_of_maps", "softmax_cross_entropy_forward"),
    *("mean_loss", "batched_update", "check_finite", "damp_factors"),
}


@functools.cache
def compiler() -> str | None:
    """A C++20 compiler of this machine, None if there is none."""
    for name in ("g++", "clang++"):
        path = shutil.which(name)
        program = "#include <ucontext.h>\nint main() {}"
        command = [path or name, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"]
        if path and subprocess.run(command, input=program, text=True, capture_output=True).returncode == 0:
            return path
    return None


class CpuKernels:
    """The kernels of some modules, compiled into `folder`."""

    def __init__(self, modules: Iterable[Module], folder: Path, sources: Path = FOLDER) -> None:
        self._prefixes = {module: f"module{index}" for index, module in enumerate(sorted(set(modules)))}
        source, library = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(HEADER + "".join(self._namespace(module, sources) for module in self._prefixes))
        command = [str(compiler()), "-std=c++20", "-O0", "-fPIC", "-shared"]
        # As --fmad=false; and kernels read pixels through 16-byte words.
        command += ["-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Werror", "-Wno-unknown-pragmas"]
        command += ["-Wno-unused-function", "-Wno-unused-variable"]
        command += ["-I", str(Path(__file__).parent), "-I", str(sources), "-o", str(library), str(source)]
        done = subprocess.run(command, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[:4000]
        self.library = ctypes.CDLL(str(library))

    def _namespace(self, module: Module, sources: Path) -> str:
        name, defines = module
        prefix = self._prefixes[module]
        # Functions of one name in several namespaces may not all be C's.
        text = (sources / name).read_text().replace('extern "C" __global__', "__global__")
        lines = [f"#define {define.replace('=', ' ')}\n" for define in defines]
        lines += [f"namespace {prefix} {{\n{text}\n}}\n"]
        for kernel in sorted(set(KERNEL.findall((sources / name).read_text()))):
            call = f"launch({prefix}::{kernel}, {{g[0], g[1], g[2]}}, {{b[0], b[1], b[2]}}, barriers, parameters);"
            lines += [f"AS_C({prefix}_{kernel}) {{ {call} }}\n"]
        lines += [f"#undef {define.partition('=')[0]}\n" for define in defines]
        return "".join(lines)

    def launch(self, work: Work, launch: KernelLaunch, *addresses: int) -> None:
        prefix = self._prefixes[launch.source, launch.defines]
        function = self.library[f"{prefix}_{launch.function}_on_cpu"]
        barriers = launch.function in WITH_BARRIERS and "NHWC=1" not in launch.defines

        def launch_kernel(_function, gx, gy, gz, bx, block_y, bz, shared_bytes, stream, parameters, extra):
            assert (shared_bytes, stream, extra) == (0, 7, 0)
            three = ctypes.c_uint * 3
            function(three(gx, gy, gz), three(bx, block_y, bz), ctypes.c_bool(barriers), ctypes.c_void_p(parameters))

        bind(work, launch, 0, launch_kernel, lambda: 7)(*addresses)
