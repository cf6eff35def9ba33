"""Functions in C, compiled where this machine has a compiler; where it has none, callers do without.

What was compiled, and has passed its check, is kept in the user's cache. The compiler, its options, the source and the
processor are its key."""

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
"""Without contraction products are rounded before they are added, as NumPy rounds them."""
_LONGEST_S = 60


def compiler() -> str | None:
    """The C compiler of this machine."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def library(source: Path, check: Callable[[ctypes.CDLL], bool]) -> ctypes.CDLL | None:
    """The functions of a source file. None where it does not compile or load, or fails its check, which a library meets
    once, when it is new. What does not serve is remembered too."""
    program = compiler()
    if program is None:
        return None
    cache, key = Cache.of_code("compiled-v1"), _key(Path(program), source)
    kept = cache.get(key)
    if kept is None:
        data = _compile(program, source)
        made = _load(data)
        kept = Entry({"serves": made is not None and check(made)}, data)
        if made is not None or not data:  # another process may be allowed to load it
            cache.put(key, kept)
    else:
        made = _load(kept.data)
    return made if kept.content.get("serves") is True else None


def _key(program: Path, source: Path) -> Key:
    state = program.stat()
    return {
        "source": hashlib.sha256(source.read_bytes()).hexdigest(),
        "options": " ".join(_OPTIONS),
        "compiler": f"{program.resolve()} {state.st_size} {state.st_mtime_ns}",
        "processor": f"{machine.cpu_name()} {machine.processor()}",
        "features": hashlib.sha256(" ".join(sorted(machine.cpu_flags())).encode()).hexdigest(),
    }


def _compile(program: str, source: Path) -> bytes:
    """The library, empty if the compiler refuses."""
    try:
        with tempfile.TemporaryDirectory(prefix="tcbench-") as folder:
            made = Path(folder) / "library.so"
            command = [program, *_OPTIONS, "-o", str(made), str(source)]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, check=True)
            return made.read_bytes()
    except (OSError, subprocess.SubprocessError):
        return b""


def _load(data: bytes) -> ctypes.CDLL | None:
    """From memory, so that no folder has to allow execution. The descriptor stays open: the loader knows a library by
    its path, and the next one would have the same."""
    if not data:
        return None
    try:
        return ctypes.CDLL(f"/proc/self/fd/{files.unnamed_file(data)}")
    except OSError:
        return None
