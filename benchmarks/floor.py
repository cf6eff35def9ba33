"""The floor of a CPU's step: ResNet-50's primitives in C++ (floor.cpp) beside ours and PyTorch, in turns.

    uv run --with onednn-devel-cpu-gomp==2023.2.0 python benchmarks/floor.py --shape 64x8 --shape 224x8
    uv run --with onednn-devel-cpu-gomp==2023.2.0 --extra torch python benchmarks/floor.py --dtype bf16

Builds floor.cpp by g++ against oneDNN's headers, which that package has, and the library that tcbench loads. Each dtype
is a table of its own: the floor by layout, ours, and PyTorch where it is installed; phases in ms, ratios to the rows
above. in_turns.py does the measuring, and takes `floor/bf16+nhwc` as a config too. The floor leaves out loss, pooling,
the last layer and input: see floor.cpp.
"""

import argparse
import functools
import importlib.metadata
import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.hardware import machine

PREFIX = "floor/"
HEADERS = "onednn-devel-cpu-gomp"
SOURCE = Path(__file__).with_suffix(".cpp")
DTYPES = {"fp32": "f32", "bf16": "bf16"}
LAYOUTS = ("nhwc", "blocked", "nchw")
OURS = ("batched+nhwc+fused", "batched+nhwc+fused+static_graph")
PYTORCH = ("nhwc+fused_optimizer", "nhwc+fused_optimizer+compile")


def command(name: str, image_size: int, batch_size: int) -> list[str]:
    """Return the command for a floor with a name like `floor/bf16+nhwc`."""
    dtype, _, layout = name.removeprefix(PREFIX).partition("+")
    if dtype not in DTYPES or layout not in LAYOUTS:
        raise SystemExit(f"{name}: expected {PREFIX}DTYPE+LAYOUT of {', '.join(DTYPES)} and {', '.join(LAYOUTS)}")
    return [str(build()), str(batch_size), str(image_size), DTYPES[dtype], layout]


@functools.cache
def build() -> Path:
    """The program, in a folder of its own that stays until the process ends."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise SystemExit("floor.cpp needs g++: apt-get install g++")
    program = Path(_folder().name) / "floor"
    libdnnl = _file(library.PACKAGE, f"libdnnl.so.{library.MAJOR}")
    headers = _file(HEADERS, "oneapi/dnnl/dnnl.hpp").parents[2]
    options = ["-std=c++20", "-O3", "-march=native", "-fopenmp", "-I", str(headers), f"-Wl,-rpath,{libdnnl.parent}"]
    subprocess.run([compiler, *options, str(SOURCE), "-o", str(program), str(libdnnl)], check=True)
    return program


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tcbench-floor-")


def _file(package: str, ending: str) -> Path:
    """An installed package's file whose path ends so."""
    try:
        files = importlib.metadata.files(package) or ()
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"{package} is not installed: uv run --with {HEADERS}==2023.2.0 python ...") from None
    return next(Path(str(file.locate())).resolve() for file in files if file.match(ending))


def main() -> None:
    import in_turns

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", help="PIXELSxBATCH; default 64x8")
    parser.add_argument("--dtype", action="append", choices=[*DTYPES], help="default: both")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="of the floor; default nhwc and blocked")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5, help="steps per turn; the first is not counted")
    parser.add_argument("--threads", type=int, default=machine.usable_cpus())
    arguments = parser.parse_args()
    for shape in arguments.shape or ["64x8"]:
        image_size, batch_size = map(int, shape.split("x"))
        for dtype in arguments.dtype or DTYPES:
            names = [f"{PREFIX}{dtype}+{layout}" for layout in arguments.layout or LAYOUTS[:2]]
            names += [f"{dtype}+{rungs}" for rungs in OURS]
            if importlib.util.find_spec("torch"):
                names += [f"torch/{dtype}+{rungs}" for rungs in PYTORCH]
            in_turns.compare(names, image_size, batch_size, arguments.threads, arguments.rounds, arguments.steps, False)


if __name__ == "__main__":
    main()
