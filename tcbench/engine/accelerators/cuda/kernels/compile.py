"""CUDA source to machine code, through NVRTC: for any GPU that it knows, with or without one at hand.

Owns the compiler's options and the cache of what was compiled, in the user's cache folder. CuPy's binding of NVRTC is
imported where it is called."""

import contextlib
import functools
import hashlib
import logging
from pathlib import Path

from tcbench.core import cache, files
from tcbench.core.errors import StoreError

FOLDER = Path(__file__).parent
_HEADERS = ("common.cuh", "windows.cuh")
_OPTIONS = ("--std=c++17", "--fmad=false")
"""Without fused multiply-add a sum of products is rounded as NumPy rounds it, and alike in every kernel; memory, not
arithmetic, is what these kernels wait for. Division and square root are IEEE's by default."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_LOG = logging.getLogger(__name__)


class CompileError(RuntimeError):
    """NVRTC does not know an architecture, or refused a source: then the message holds its log."""


def compile_kernel(source: str, defines: tuple[str, ...], sm: int) -> bytes:
    """The cubin of a source file beside this module for compute capability `sm` (90 for 9.0). It is kept from one
    process to the next, behind its digest: a damaged one is compiled again. Raises CompileError, and ImportError or
    RuntimeError where CuPy or NVRTC is missing."""
    path = cache.folder("kernels") / f"{_key(source, defines, sm)}.cubin"
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        cubin = kept[_DIGEST_BYTES:]
        # The driver's word on a damaged one names neither the file nor the cure.
        if kept[:_DIGEST_BYTES] == hashlib.sha256(cubin).digest():
            return cubin
    cubin = compile_anew(source, defines, sm)
    _keep(path, hashlib.sha256(cubin).digest() + cubin)
    return cubin


def compile_anew(source: str, defines: tuple[str, ...], sm: int) -> bytes:
    """As `compile_kernel`, past the cache."""
    from cupy.cuda import nvrtc

    supported = nvrtc.getSupportedArchs()
    if sm not in supported:
        major, minor = nvrtc.getVersion()
        raise CompileError(
            f"NVRTC {major}.{minor} compiles for sm_{min(supported)} to sm_{max(supported)}, not for sm_{sm}: "
            "'uv sync --extra volta' for GPUs older than sm_75, a newer CUDA for newer ones"
        )
    options = (f"--gpu-architecture=sm_{sm}", *_OPTIONS, *(f"-D{define}" for define in defines))
    texts, names = zip(*((_text(header).encode(), header.encode()) for header in _HEADERS), strict=True)
    program = nvrtc.createProgram(_text(source), source, texts, names)
    try:
        nvrtc.compileProgram(program, options)
        return bytes(nvrtc.getCUBIN(program))
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise CompileError(f"{source} ({' '.join(defines)}) for sm_{sm}: {error}\n{log}") from None
    finally:
        nvrtc.destroyProgram(program)


@functools.cache
def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _key(source: str, defines: tuple[str, ...], sm: int) -> str:
    parts = (_text(source), *map(_text, _HEADERS), *_OPTIONS, *defines, f"sm_{sm}", f"nvrtc {_nvrtc_version()}")
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _nvrtc_version() -> tuple[int, int]:
    from cupy.cuda import nvrtc

    major, minor = nvrtc.getVersion()
    return major, minor


def _keep(path: Path, content: bytes) -> None:
    """A cache that cannot be written is no error."""
    try:
        files.write(path, content)
    except StoreError as error:
        _LOG.info("compiled kernels are not kept: %s", error)
