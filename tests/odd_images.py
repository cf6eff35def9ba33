"""Image files as they are found in the wild: bytes by name. Those that every feed takes, and those that none does."""

import functools
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

_y, _x = np.mgrid[0:80, 0:100]
PHOTO = Image.fromarray(np.stack([_x * 2, _y * 3, 255 - _x * 2], -1).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **settings: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **({"quality": 95} | settings))
    return out.getvalue()


def _at_frame(data: bytes, offset: int, put: bytes) -> bytes:
    """A JPEG with bytes of its frame header replaced: 1 its kind, 4 bits, 5 height, 7 width, 9 channels."""
    place = data.index(b"\xff\xc0") + offset
    return data[:place] + put + data[place + len(put) :]


def _adobe(data: bytes) -> slice:
    begin = data.index(b"\xff\xee")
    return slice(begin, begin + 2 + int.from_bytes(data[begin + 2 : begin + 4], "big"))


def _ycck() -> bytes:
    data = encoded(PHOTO.convert("CMYK"))
    return data[: _adobe(data).stop - 1] + b"\x02" + data[_adobe(data).stop :]


def _with_alpha() -> Image.Image:
    pixels = np.asarray(PHOTO.convert("RGBA")).copy()
    pixels[..., 3] = _x
    return Image.fromarray(pixels)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + kind + content + zlib.crc32(kind + content).to_bytes(4, "big")


def _png(rows: bytes, interlaced: bool) -> bytes:
    """A PNG of PHOTO's size from its rows, each after its filter's number, as they are packed."""
    header = b"".join(n.to_bytes(4, "big") for n in PHOTO.size) + bytes([8, 2, 0, 0, interlaced])
    packed = _chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + packed + _chunk(b"IEND", b"")


def _rows(pixels: Any) -> bytes:
    return b"".join(b"\0" + row.tobytes() for row in pixels)


def _interlaced_rows() -> bytes:
    """The rows of Adam7's passes, which no library here writes."""
    pixels, firsts = np.asarray(PHOTO), ["00", "40", "04", "20", "02", "10", "01"]
    steps = [(8, 8), (8, 8), (4, 8), (4, 4), (2, 4), (2, 2), (1, 2)]
    passes = [pixels[int(y) :: dy, int(x) :: dx] for (x, y), (dx, dy) in zip(firsts, steps, strict=True)]
    return b"".join(map(_rows, passes))


@functools.cache
def accepted() -> dict[str, bytes]:
    """ImageNet has the first five: what a PNG named .JPEG holds is one of its known oddities."""
    jpeg = encoded(PHOTO)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turn by 90 degrees
    return {
        "plain": jpeg,
        "grey": encoded(PHOTO.convert("L")),
        "cmyk": encoded(PHOTO.convert("CMYK")),
        "progressive": encoded(PHOTO, progressive=True),
        "png": encoded(PHOTO, "PNG"),
        "ycck": _ycck(),
        "rgb": encoded(PHOTO, keep_rgb=True),
        "turned": encoded(PHOTO, exif=exif),
        "profile": encoded(PHOTO, icc_profile=b"x" * 70_000),
        "fill bytes": jpeg[:2] + b"\xff" * 3 + jpeg[2:],
        "bytes behind": jpeg + b"more" * 10,
        "interlaced png": _png(_interlaced_rows(), interlaced=True),
        "grey png": encoded(PHOTO.convert("L"), "PNG"),
        "alpha png": encoded(_with_alpha(), "PNG"),
        "palette png": encoded(PHOTO.convert("P"), "PNG", transparency=3),
    }


@functools.cache
def refused() -> dict[str, tuple[bytes, str]]:
    """And why."""
    jpeg, cmyk, png = encoded(PHOTO), encoded(PHOTO.convert("CMYK")), encoded(PHOTO, "PNG")
    checksum, rows = png.index(b"IEND") - 5, _rows(np.asarray(PHOTO))
    wide = Image.fromarray((_x * 600).astype(np.uint16))
    return {
        "gif": (encoded(PHOTO.convert("P"), "GIF"), "is a GIF"),
        "bmp": (encoded(PHOTO, "BMP"), "is a BMP"),
        "webp": (encoded(PHOTO, "WEBP"), "is a WebP"),
        "tiff": (encoded(PHOTO, "TIFF"), "is a TIFF"),
        "16-bit png": (encoded(wide, "PNG"), "is a PNG with 16 bits per channel"),
        "1-bit png": (encoded(PHOTO.convert("1"), "PNG"), "is a PNG with 1 bits per channel"),
        "12-bit": (_at_frame(jpeg, 4, b"\x0c"), "is a JPEG with 12 bits per channel"),
        "arithmetic": (_at_frame(jpeg, 1, b"\xc9"), "is a JPEG of an unsupported kind"),
        "lossless": (_at_frame(jpeg, 1, b"\xc3"), "is a JPEG of an unsupported kind"),
        "300 megapixels": (
            _at_frame(jpeg, 5, (15_000).to_bytes(2, "big") + (20_000).to_bytes(2, "big")),
            "is a JPEG of 20000x15000 pixels",
        ),
        "no height": (_at_frame(jpeg, 5, b"\0\0"), "is a JPEG of 100x0 pixels"),
        "a thread": (encoded(Image.new("RGB", (3, 400))), "is a JPEG of 3x400 pixels, one side more than 100 times"),
        "cmyk of unknown sign": (
            cmyk[: _adobe(cmyk).start] + cmyk[_adobe(cmyk).stop :],
            "is a JPEG with 4 channels without Adobe's marker",
        ),
        "two channels": (_at_frame(jpeg, 9, b"\x02"), "is a JPEG with 2 channels"),
        "bytes between": (jpeg[:20] + b"\0\0" + jpeg[20:], "has a broken header"),
        "cut off": (jpeg[:100], "has a broken header"),
        "cut off png": (encoded(PHOTO, "PNG")[:20], "has a broken header"),
        "png with a wrong checksum": (
            png[:checksum] + bytes([png[checksum] ^ 1]) + png[checksum + 1 :],
            "is a damaged PNG (a checksum)",
        ),
        "png without its end": (png[:-20], "is a truncated PNG"),
        "png of some rows": (_png(rows[:-400], interlaced=False), "is a PNG with missing rows"),
        "a page": (b"<html>404</html>" * 10, "is not an image"),
        "empty": (b"", "is empty"),
    }
