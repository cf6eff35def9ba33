"""CUDA source to machine code, through NVRTC: for any GPU that it knows, with or without one at hand.

Owns the compiler's options and the cache of what was compiled, in the user's cache folder. CuPy's binding of NVRTC is
imported where it is called."""

import functools
import hashlib
from pathlib import Path

from tcbench.core.cache import Cache, Entry, Key, folder

FOLDER = Path(__file__).parent
_HEADERS = ("common.cuh", "windows.cuh")
_OPTIONS = ("--std=c++17", "--fmad=false")
"""Without fused multiply-add a sum of products is rounded as NumPy rounds it, and alike in every kernel; memory, not
arithmetic, is what these kernels wait for. Division and square root are IEEE's by default."""
_cache = functools.cache(lambda _: Cache.of_code("kernels-v2"))
"""One for a folder: it says once that it cannot be written."""


class CompileError(RuntimeError):
    """NVRTC does not know an architecture, or refused a source: then the message holds its log."""


def compile_kernel(source: str, defines: tuple[str, ...], sm: int) -> bytes:
    """The cubin of a source file beside this module for compute capability `sm` (90 for 9.0). It is kept from one
    process to the next. Raises CompileError, and ImportError or RuntimeError where CuPy or NVRTC is missing."""
    cache, key = _cache(folder("kernels-v2")), _key(source, defines, sm)
    kept = cache.get(key)
    if kept is None:
        kept = Entry({}, compile_anew(source, defines, sm))
        cache.put(key, kept)
    return kept.data


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


def _key(source: str, defines: tuple[str, ...], sm: int) -> Key:
    texts = "\0".join(map(_text, (source, *_HEADERS)))
    return {
        "source": hashlib.sha256(texts.encode()).hexdigest(),
        "options": " ".join((*_OPTIONS, *defines)),
        "sm": sm,
        "nvrtc": _nvrtc_version(),
    }


def _nvrtc_version() -> str:
    from cupy.cuda import nvrtc

    return "{}.{}".format(*nvrtc.getVersion())
