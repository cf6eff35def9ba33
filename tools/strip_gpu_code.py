"""Clears the GPU code that one GPU cannot run from CUDA libraries, so that they compress well (`tools/gpu_carry.py`).

Sizes and offsets stay as they are: cleared code is overwritten with zeros, and its headers remain. A fat binary keeps
its machine code for the architecture. If it has none for it, it keeps its PTX, which the driver compiles.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")
"""A fat binary's header: magic number, version, bytes of this header, bytes of all its entries."""
_ENTRY = struct.Struct("<HHIQQII")
"""The first fields of an entry's header: kind, version, header bytes, code bytes, two others, architecture."""
_PTX, _MACHINE_CODE = 1, 2


class Code(NamedTuple):
    """One entry of a fat binary: what it runs on, and where its code lies in the file."""

    kind: int
    sm: int
    start: int
    end: int


def fat_binaries(library: bytes | bytearray) -> Iterator[list[Code]]:
    """Yield the entries of each fat binary in a library. Raises ValueError if an entry does not fit in its binary."""
    position = library.find(_MAGIC)
    while position >= 0:
        start = position + _CONTAINER.size
        _, version, header_bytes, n_bytes = _CONTAINER.unpack(library[position:start].ljust(_CONTAINER.size, b"\0"))
        if (version, header_bytes) == (1, _CONTAINER.size):  # else the number is part of something else
            yield _entries(library, start, start + n_bytes)
            start += n_bytes
        position = library.find(_MAGIC, start)


def _entries(library: bytes | bytearray, position: int, end: int) -> list[Code]:
    entries = []
    while position < end:
        kind, _, header_bytes, n_bytes, _, _, sm = _ENTRY.unpack_from(library, position)
        start = position + header_bytes
        if header_bytes < _ENTRY.size or start + n_bytes > min(end, len(library)):
            raise ValueError(f"an entry of a fat binary at byte {position} does not fit in it")
        position = start + n_bytes
        entries.append(Code(kind, sm, start, position))
    return entries


def strip(library: bytearray, sm: int) -> int:
    """Overwrite with zeros the code in a library that a GPU of this architecture never loads; return its bytes."""
    n_cleared = 0
    for binary in fat_binaries(library):
        native = [code for code in binary if (code.kind, code.sm) == (_MACHINE_CODE, sm)]
        needed = native or [code for code in binary if code.kind == _PTX]
        for code in (code for code in binary if code not in needed):
            library[code.start : code.end] = bytes(code.end - code.start)
            n_cleared += code.end - code.start
    return n_cleared


def strip_folder(folder: Path, sm: int) -> int:
    """Strip every library below a folder in place; return the bytes that were cleared."""
    total = 0
    for path in sorted(folder.rglob("*.so*")):
        library = bytearray(path.read_bytes())
        if n_bytes := strip(library, sm):
            path.write_bytes(library)
        total += n_bytes
    return total
