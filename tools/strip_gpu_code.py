"""Clear the GPU code that one GPU cannot run from CUDA libraries, so that they compress well.

    python tools/strip_gpu_code.py --sm 90 FOLDER...    every *.so* file below each FOLDER, in place

Sizes and offsets stay as they are: cleared code is overwritten with zeros, and its headers remain. A fat binary keeps
its machine code for the architecture. If it has none for it, it keeps its PTX, which the driver compiles.
"""

import argparse
import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")
"""A fat binary's header: magic number, version, bytes of this header, bytes of all its entries."""
_ENTRY = struct.Struct("<HHIQQII")
"""The first fields of an entry's header: kind, version, header bytes, code bytes, two others, architecture."""
_PTX, _MACHINE_CODE = 1, 2


@dataclass(frozen=True)
class Code:
    """One entry of a fat binary: where its code lies in the file, and what it runs on."""

    kind: int
    sm: int
    start: int
    end: int


def fat_binaries(library: bytes | bytearray) -> list[list[Code]]:
    """Return the entries of each fat binary in a library. Raises ValueError if an entry does not fit in its binary."""
    binaries = []
    position = library.find(_MAGIC)
    while position >= 0:
        entries_start = position + _CONTAINER.size
        header = library[position:entries_start].ljust(_CONTAINER.size, b"\0")
        _, version, header_bytes, n_bytes = _CONTAINER.unpack(header)
        if (version, header_bytes) == (1, _CONTAINER.size) and entries_start + n_bytes <= len(library):
            binaries.append(list(_entries(library, entries_start, entries_start + n_bytes)))
            position = entries_start + n_bytes - len(_MAGIC)
        position = library.find(_MAGIC, position + len(_MAGIC))  # else the number is part of something else
    return binaries


def _entries(library: bytes | bytearray, position: int, end: int) -> list[Code]:
    found = []
    while position < end:
        kind, _, header_bytes, n_bytes, _, _, sm = _ENTRY.unpack_from(library, position)
        start = position + header_bytes
        if header_bytes < _ENTRY.size or start + n_bytes > end:
            raise ValueError(f"an entry of a fat binary at byte {position} does not fit in it")
        found.append(Code(kind, sm, start, start + n_bytes))
        position = start + n_bytes
    return found


def cleared(binary: list[Code], sm: int) -> list[Code]:
    """Return the entries of a fat binary that a GPU of this architecture never loads."""
    native = [code for code in binary if (code.kind, code.sm) == (_MACHINE_CODE, sm)]
    kept = native or [code for code in binary if code.kind == _PTX]
    return [code for code in binary if code not in kept]


def strip(library: bytearray, sm: int) -> int:
    """Overwrite with zeros the code in a library that a GPU of this architecture never loads; return its bytes."""
    unused = [code for binary in fat_binaries(library) for code in cleared(binary, sm)]
    for code in unused:
        library[code.start : code.end] = bytes(code.end - code.start)
    return sum(code.end - code.start for code in unused)


def strip_folder(folder: Path, sm: int) -> int:
    """Strip every library below a folder in place; return the bytes that were cleared."""
    total = 0
    for path in sorted(folder.rglob("*.so*")):
        library = bytearray(path.read_bytes())
        n_bytes = strip(library, sm)
        if n_bytes:
            path.write_bytes(library)
            print(f"{path.name}: cleared {n_bytes >> 20} of {len(library) >> 20} MiB")
        total += n_bytes
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sm", type=int, required=True, help="the GPU's compute capability times ten, such as 90")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        strip_folder(folder, arguments.sm)
