"""A check that every feed can read an image file and decodes it to the same pixels.

Decoders differ: Pillow refuses very large images, DALI refuses GIF, 16-bit files are supported differently, and some
decoders invert CMYK without Adobe's marker. One rule therefore holds for all of them. The check reads the header of a
JPEG without decoding it; damage further on is found when it is decoded. It reads all of a PNG, because some decoders
overlook its damage. The file's bytes count, not its name: one of ImageNet's .JPEG files is a PNG."""

import os
import zlib

MAX_PIXELS = 89_478_485
"""The most pixels of an image; above it Pillow warns of a decompression bomb."""
MAX_ASPECT = 100
"""The highest ratio of the longer side to the shorter one, which is scaled to a fixed size."""
EXPECTED = f"a JPEG or PNG with 8 bits per channel and at most {MAX_PIXELS / 1e6:.0f} megapixels"

_BLOCK_BYTES = 4096
_FORMATS = {
    b"GIF8": "a GIF",
    b"BM": "a BMP",
    b"RIFF": "a WebP",
    b"II*\0": "a TIFF",
    b"MM\0*": "a TIFF",
    b"\0\0\0\x0cjP": "a JPEG 2000",
}
_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""The JPEG markers of a frame header. The first three are baseline, extended and progressive Huffman coding."""


def refusal(path: str) -> str | None:
    """Return why some feed cannot read the file at `path`, as the end of a sentence that starts with its name, or None
    if all feeds can. Raises OSError if the file cannot be read."""
    file = os.open(path, os.O_RDONLY)
    try:
        # No read-ahead, so that this check does not fill the page cache for a run.
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        head = os.read(file, _BLOCK_BYTES)
        if head.startswith(b"\xff\xd8"):
            return _jpeg_refusal(file, head)
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(head) or _png_damage(os.pread(file, os.fstat(file).st_size, 0))
    finally:
        os.close(file)
    if not head:
        return "is empty"
    return "is " + next((kind for magic, kind in _FORMATS.items() if head.startswith(magic)), "not an image")


def _jpeg_refusal(file: int, head: bytes) -> str | None:
    """Return why a JPEG is refused, or None if all feeds can read it. `head` has the first bytes of the open `file`.
    The reason is in the frame header, which follows a number of other segments (ITU-T T.81, B.2.2)."""
    start, offset, adobe = 0, 2, False  # `head` holds the file's bytes from `start` on
    while True:
        if offset + 10 > start + len(head):
            start, head = offset, os.pread(file, _BLOCK_BYTES, offset)
        segment = head[offset - start : offset - start + 10]
        if len(segment) < 10 or segment[0] != 0xFF:
            return "has a broken header"
        code = segment[1]
        if code in _FRAMES:
            break
        if code == 0xFF:  # a fill byte, which may precede any marker
            offset += 1
            continue
        length = int.from_bytes(segment[2:4], "big")
        if length < 2 or code < 0xC4 or 0xD0 <= code <= 0xDA:
            return "has a broken header"
        adobe = adobe or (code == 0xEE and segment[4:9] == b"Adobe")
        offset += 2 + length
    if code > 0xC2:
        return "is a JPEG of an unsupported kind (lossless, hierarchical or arithmetic coding)"
    bits, channels = segment[4], segment[9]
    if channels not in (1, 3, 4) or (channels == 4 and not adobe):
        return f"is a JPEG with {channels} channels" + (" without Adobe's marker" if channels == 4 else "")
    return _size_refusal("JPEG", bits, int.from_bytes(segment[7:9], "big"), int.from_bytes(segment[5:7], "big"))


def _png(head: bytes) -> str | None:
    """Return why a PNG is refused by its first chunk (PNG specification, 11.2.1), or None. Does not decode it."""
    if len(head) < 33 or head[12:16] != b"IHDR":
        return "has a broken header"
    return _size_refusal("PNG", head[24], int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big"))


def _png_damage(png: bytes) -> str | None:
    """Return what is damaged in a PNG, by the checksums of all its chunks and the number of its rows, or None if it is
    intact (PNG specification, 5.3)."""
    begin, kind, packed = 8, b"", []
    while kind != b"IEND":
        end = begin + 12 + int.from_bytes(png[begin : begin + 4], "big")
        kind = png[begin + 4 : begin + 8]
        if end > len(png) or zlib.crc32(png[begin + 4 : end - 4]) != int.from_bytes(png[end - 4 : end], "big"):
            return "is a damaged PNG (a checksum)" if end <= len(png) else "is a truncated PNG"
        if kind == b"IDAT":
            packed.append(png[begin + 8 : end - 4])
        begin = end
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    channels = {2: 3, 4: 2, 6: 4}.get(png[25], 1)
    passes = _ADAM7 if png[28] else ((0, 0, 1, 1),)
    sizes = (((width - left + dx - 1) // dx, (height - top + dy - 1) // dy) for left, top, dx, dy in passes)
    n_bytes = sum((1 + columns * channels) * rows for columns, rows in sizes if columns > 0 and rows > 0)
    try:
        rows = zlib.decompressobj().decompress(b"".join(packed), n_bytes)
    except zlib.error:
        return "is a damaged PNG (its compressed rows)"
    return None if len(rows) == n_bytes else "is a PNG with missing rows"


_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column, first row, column step and row step of each pass of an interlaced PNG (PNG specification, 8.2)."""


def _size_refusal(kind: str, bits: int, width: int, height: int) -> str | None:
    """Return why an image with these bits per channel and this size in pixels is refused, or None if it is not. `kind`
    is the name of the file format in the message."""
    if bits != 8:
        return f"is a {kind} with {bits} bits per channel"
    shorter, longer = sorted((width, height))
    if not shorter or width * height > MAX_PIXELS:
        return f"is a {kind} of {width}x{height} pixels"
    if longer > MAX_ASPECT * shorter:
        return f"is a {kind} of {width}x{height} pixels, one side more than {MAX_ASPECT} times the other"
    return None
