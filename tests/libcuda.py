"""A library that is called as the driver's is, of one GPU that environment variables describe."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "engine" / "accelerators" / "cuda" / "one_gpu.c"


def one_gpu(folder: Path) -> Path:
    """The folder, with the library in it."""
    if not shutil.which("g++"):
        pytest.skip("no C++ compiler (g++) on this machine")
    # Without a soname, by which dlopen would find it for all that ask for libcuda.so.1 in this process later.
    options = ["-x", "c", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(["g++", *options, str(SOURCE)], check=True)
    return folder
