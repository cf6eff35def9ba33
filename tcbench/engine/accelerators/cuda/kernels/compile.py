"""Compiling CUDA source with NVRTC, for any GPU that NVRTC supports; this machine needs no GPU.

Owns the compiler's options and the cache of compiled kernels in the user's cache folder. CuPy's binding of NVRTC is
imported when it is called."""

import functools
import hashlib
from pathlib import Path

from tcbench.core.cache import Cache, Entry, Key, folder

FOLDER = Path(__file__).parent
_HEADERS = ("common.cuh", "windows.cuh")
_OPTIONS = ("--std=c++17", "--fmad=false")
"""Compiler options. `--fmad=false` makes every kernel round a sum of products as NumPy does; it costs no time, since
the kernels are limited by memory. Division and square root are IEEE-compliant by default."""
_cache = functools.cache(lambda _: Cache.for_code("kernels-v2"))
"""One cache per folder, so that the warning about an unwritable folder appears once."""


class CompileError(RuntimeError):
    """An error of NVRTC: an unsupported architecture, or a source that does not compile, with the compiler's log."""


def compile_kernel(source: str, defines: tuple[str, ...], sm: int) -> bytes:
    """Return the cubin of a source file in this folder for compute capability `sm` (90 for 9.0), compiled or cached.

    `defines`: macros as "NAME=value". Raises CompileError, and ImportError or RuntimeError without CuPy or NVRTC."""
    cache, key = _cache(folder("kernels-v2")), _key(source, defines, sm)
    cached = cache.get(key)
    if cached is None:
        cached = Entry({}, compile_uncached(source, defines, sm))
        cache.put(key, cached)
    return cached.data


def compile_uncached(source: str, defines: tuple[str, ...], sm: int) -> bytes:
    """Compile as `compile_kernel` does, without reading or writing the cache."""
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
    """Return the cache key of a kernel: its source with headers, options, compute capability and compiler version."""
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
