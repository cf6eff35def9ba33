"""tools/strip_gpu_code.py on fat binaries that are put together here."""

import struct

import pytest
import strip_gpu_code

PTX, MACHINE_CODE = 1, 2
HEADER_BYTES = 64


def entry(kind: int, sm: int, code: bytes) -> bytes:
    return struct.pack("<HHIQQII", kind, 257, HEADER_BYTES, len(code), 0, 0, sm).ljust(HEADER_BYTES, b"h") + code


def fat_binary(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


def test_only_machine_code_for_the_gpu_is_kept_and_ptx_where_there_is_none():
    several = [entry(MACHINE_CODE, 80, b"a" * 40), entry(MACHINE_CODE, 90, b"b" * 24), entry(PTX, 120, b"c" * 16)]
    older = [entry(MACHINE_CODE, 75, b"d" * 8), entry(PTX, 75, b"e" * 32)]
    number = struct.pack("<IHHQ", 0xBA55ED50, 7, 16, 4)  # no fat binary of the known version
    library = bytearray(b"code" + fat_binary(*several) + number + b"data" + fat_binary(*older) + b"end")
    n_bytes = len(library)
    assert strip_gpu_code.strip(library, 90) == 40 + 16 + 8
    assert len(library) == n_bytes
    left = {letter: library.count(letter.encode() * 8) for letter in "abcde"}
    assert left == {"a": 0, "b": 3, "c": 0, "d": 0, "e": 4}
    assert library.count(b"h" * (HEADER_BYTES - 32)) == 5 and library.endswith(b"end")
    assert strip_gpu_code.strip(library, 90) == 40 + 16 + 8  # the headers are still there
    assert library.count(b"b" * 8) == 3


def test_a_library_without_gpu_code_or_with_a_damaged_one_is_told_apart(tmp_path):
    (tmp_path / "plain.so").write_bytes(b"code")
    assert strip_gpu_code.strip_folder(tmp_path, 90) == 0
    damaged = bytearray(fat_binary(entry(MACHINE_CODE, 80, b"a" * 40)))
    damaged[24:32] = struct.pack("<Q", 400)
    with pytest.raises(ValueError, match="does not fit"):
        strip_gpu_code.strip(damaged, 90)
