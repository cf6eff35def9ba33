"""Tells image files that every feed takes, and takes for the same pixels, from the first bytes of a JPEG, without
decoding it, and from all of a PNG, whose damage some decoders overlook.

One rule for all decoders, since each has its own otherwise: Pillow refuses what is too large, DALI a GIF; of 16 bits
each takes others; of CMYK without Adobe's marker some take the inverse. A file is what its bytes say, not its name: one
of ImageNet's .JPEG files is a PNG. What is broken further on in a JPEG is found when it is decoded."""

import os
import zlib

MAX_PIXELS = 89_478_485
"""Above it Pillow warns of a decompression bomb."""
MAX_ASPECT = 100
"""Longer over shorter side: the shorter is scaled to a fixed size, and the longer with it."""
EXPECTED = f"a JPEG or PNG of 8 bits a channel and at most {MAX_PIXELS / 1e6:.0f} megapixels"

_AT_ONCE = 4096
_OTHERS = {
    b"GIF8": "a GIF",
    b"BM": "a BMP",
    b"RIFF": "a WebP",
    b"II*\0": "a TIFF",
    b"MM\0*": "a TIFF",
    b"\0\0\0\x0cjP": "a JPEG 2000",
}
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""The markers that begin a frame and hold its size; the first three are baseline, extended and progressive Huffman."""


def refusal(path: str) -> str | None:
    """The reason why the file at `path` is no image for every feed: the end of a sentence that begins with its name.
    None for one that is. Raises OSError where it cannot be read."""
    file = os.open(path, os.O_RDONLY)
    try:
        if hasattr(os, "posix_fadvise"):  # no reading ahead: what a run finds in memory must not depend on this check
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        head = os.read(file, _AT_ONCE)
        if head.startswith(b"\xff\xd8"):
            return _jpeg(file, head)
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(head) or _damage(os.pread(file, os.fstat(file).st_size, 0))
    finally:
        os.close(file)
    if not head:
        return "is empty"
    return "is " + next((kind for magic, kind in _OTHERS.items() if head.startswith(magic)), "no image")


def _jpeg(file: int, head: bytes) -> str | None:
    """Walks the segments up to the frame's, which says what the image is (ITU-T T.81, B.2.2)."""
    start, at, adobe = 0, 2, False
    while True:
        if at + 10 > start + len(head):
            start, head = at, os.pread(file, _AT_ONCE, at)
        segment = head[at - start : at - start + 10]
        if len(segment) < 10 or segment[0] != 0xFF:
            return "is broken in its header"
        code = segment[1]
        if code in _FRAMES:
            break
        if code == 0xFF:  # any marker may be preceded by such
            at += 1
            continue
        length = int.from_bytes(segment[2:4], "big")
        if length < 2 or code < 0xC4 or 0xD0 <= code <= 0xDA:
            return "is broken in its header"
        adobe = adobe or (code == 0xEE and segment[4:9] == b"Adobe")
        at += 2 + length
    if code > 0xC2:
        return "is a JPEG of a rare kind (lossless, hierarchical or arithmetic coding)"
    bits, channels = segment[4], segment[9]
    if channels not in (1, 3, 4) or (channels == 4 and not adobe):
        return f"is a JPEG of {channels} channels" + (" without Adobe's marker" if channels == 4 else "")
    return _size("JPEG", bits, int.from_bytes(segment[7:9], "big"), int.from_bytes(segment[5:7], "big"))


def _png(head: bytes) -> str | None:
    """Its first chunk says what it is (PNG specification, 11.2.1)."""
    if len(head) < 33 or head[12:16] != b"IHDR":
        return "is broken in its header"
    return _size("PNG", head[24], int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))


def _damage(png: bytes) -> str | None:
    """Looks into all chunks of a PNG (its specification, 5.3): their checksums, and whether every row is there."""
    at, kind, packed = 8, b"", []
    while kind != b"IEND":
        end = at + 12 + int.from_bytes(png[at : at + 4], "big")
        kind = png[at + 4 : at + 8]
        if end > len(png) or zlib.crc32(png[at + 4 : end - 4]) != int.from_bytes(png[end - 4 : end], "big"):
            return "is a damaged PNG (a checksum)" if end <= len(png) else "is a PNG that is cut off"
        if kind == b"IDAT":
            packed.append(png[at + 8 : end - 4])
        at = end
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    channels = {2: 3, 4: 2, 6: 4}.get(png[25], 1)
    passes = _ADAM7 if png[28] else ((0, 0, 1, 1),)
    sizes = (((width - x + dx - 1) // dx, (height - y + dy - 1) // dy) for x, y, dx, dy in passes)
    n_bytes = sum((1 + columns * channels) * rows for columns, rows in sizes if columns > 0 and rows > 0)
    try:
        rows = zlib.decompressobj().decompress(b"".join(packed), n_bytes)
    except zlib.error:
        return "is a damaged PNG (its packed rows)"
    return None if len(rows) == n_bytes else "is a PNG without all of its rows"


_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row, and the steps between columns and rows, of each pass of an interlaced PNG (8.2 there)."""


def _size(kind: str, bits: int, width: int, height: int) -> str | None:
    if bits != 8:
        return f"is a {kind} of {bits} bits a channel"
    shorter, longer = sorted((width, height))
    if not shorter or width * height > MAX_PIXELS:
        return f"is a {kind} of {width}x{height} pixels"
    if longer > MAX_ASPECT * shorter:
        return f"is a {kind} of {width}x{height} pixels, one side more than {MAX_ASPECT} times the other"
    return None
