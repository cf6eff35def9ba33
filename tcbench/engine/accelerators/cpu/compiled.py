"""Compilation of tcbench's C sources at run time. Callers have a fallback for machines without a C compiler.

Compiled libraries are kept in the user's cache, with the verdict of their check. The cache key is the source, the
compiler and its options, and the processor."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tcbench.core import files
from tcbench.core.cache import Cache, Entry, Key
from tcbench.hardware import machine

_OPTIONS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared")
"""No contraction into fused multiply-adds: products are rounded before they are added, as in NumPy."""
_TIMEOUT_S = 60


def compiler() -> str | None:
    """Return the path of this machine's C compiler, or None."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def load_library(source: Path, check: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL | None:
    """Compile a C source file and load it, or load it from the cache.

    Returns None if the source does not compile or load, or if `check` returns False. A new library is checked once; the
    cache keeps the verdict, failures included."""
    program = compiler()
    if program is None:
        return None
    cache, key = Cache.for_code("compiled-v1"), _key(Path(program), source)
    cached = cache.get(key)
    if cached is None:
        binary = _compile(program, source)
        library = _load(binary)
        cached = Entry({"serves": library is not None and check(library)}, binary)
        # A library that compiles but does not load is not cached, since another process may be able to load it.
        if library is not None or not binary:
            cache.put(key, cached)
    else:
        library = _load(cached.data)
    return library if cached.content.get("serves") is True else None


def _key(program: Path, source: Path) -> Key:
    """Return the cache key of a source file compiled by a program on this machine."""
    state = program.stat()
    return {
        "source": hashlib.sha256(source.read_bytes()).hexdigest(),
        "options": " ".join(_OPTIONS),
        "compiler": f"{program.resolve()} {state.st_size} {state.st_mtime_ns}",
        "processor": f"{machine.cpu_name()} {machine.processor()}",
        "features": hashlib.sha256(" ".join(sorted(machine.cpu_flags())).encode()).hexdigest(),
    }


def _compile(program: str, source: Path) -> bytes:
    """Return the compiled library's bytes, empty if compilation fails."""
    try:
        with tempfile.TemporaryDirectory(prefix="tcbench-") as folder:
            output = Path(folder) / "library.so"
            command = [program, *_OPTIONS, "-o", str(output), str(source)]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=True)
            return output.read_bytes()
    except (OSError, subprocess.SubprocessError):
        return b""


def _load(binary: bytes) -> ctypes.CDLL | None:
    """Load a library from memory, so that no folder has to allow execution.

    The file descriptor stays open: the loader identifies a library by its path, and must not see the same path twice.
    """
    if not binary:
        return None
    try:
        return ctypes.CDLL(f"/proc/self/fd/{files.unnamed_file(binary)}")
    except OSError:
        return None
