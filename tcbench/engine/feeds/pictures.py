"""Rendering of the generated set's images: a texture and a hue per class, covered by shapes and natural noise.

Set a new `generated.SET_VERSION` when pixels or sizes change. NumPy and Pillow are imported only where they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

N_CLASSES = 16

_TEXTURES = ("stripes", "rings", "checks", "blobs")
_SIZES: tuple[tuple[int, int, int], ...] = (
    # (width, height, share in %), modelled on ImageNet's training set: three quarters are 500 wide or 500 high.
    (500, 375, 44),
    (500, 333, 15),
    (375, 500, 12),
    (333, 500, 7),
    (500, 500, 3),
    (640, 480, 6),
    (400, 300, 6),
    (320, 240, 4),
    (800, 600, 2),
    (256, 340, 1),
)
_NOISE_SIDE = 2048
_noise_bank: np.ndarray | None = None


def texture_of(kind: int) -> str:
    """Return the texture of class number `kind`."""
    return _TEXTURES[kind % len(_TEXTURES)]


def render(index: int) -> tuple[Image.Image, int]:
    """Return image `index` of the set and its JPEG quality.

    The class's texture and hue lie under shapes and 1/f noise. Natural images have an amplitude spectrum of about 1/f
    (Field 1987, doi:10.1364/JOSAA.4.002379), so the file's size and decoding time are those of a photograph."""
    import numpy as np
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([2018, index])
    kind = index % N_CLASSES
    width, height = _draw_size(rng)
    noise = _noise(rng, height, width)

    wave = _texture(rng, texture_of(kind), height, width)[..., None]
    dark, light = _colours(rng, kind)
    picture = dark + (light - dark) * wave

    canvas = Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(canvas)
    for _ in range(int(rng.integers(3, 9))):
        _draw_shape(rng, draw, width, height)

    contrast = rng.uniform(26.0, 44.0)
    # Mostly luminance: the channels of a photograph are strongly correlated.
    shading = contrast * (0.9 * noise[..., :1] + 0.3 * noise)
    pixels = np.asarray(canvas, dtype=np.float32) + shading
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), int(rng.integers(90, 96))


def _draw_size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw an image's width and height."""
    shares = [share for _, _, share in _SIZES]
    width, height, _ = _SIZES[int(rng.choice(len(_SIZES), p=[share / sum(shares) for share in shares]))]
    # One in five has an odd height, as if cropped by hand.
    if rng.random() < 0.2:
        height -= int(rng.integers(0, height // 6))
    return width, height


def _noise(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Return 1/f noise (H, W, 3): a random cut, mirrored at random, from a bank of mean 0 and standard deviation 1."""
    import numpy as np

    global _noise_bank
    if _noise_bank is None:
        bank_rng = np.random.default_rng(2018)
        fy = np.fft.fftfreq(_NOISE_SIDE)[:, None]
        fx = np.fft.rfftfreq(_NOISE_SIDE)[None, :]
        frequency = np.hypot(fy, fx)
        frequency[0, 0] = np.inf
        bank = np.empty((_NOISE_SIDE, _NOISE_SIDE, 3), np.float32)
        for channel in range(3):
            white = bank_rng.standard_normal((_NOISE_SIDE, _NOISE_SIDE), dtype=np.float32)
            plane = np.fft.irfft2(np.fft.rfft2(white) / frequency, s=white.shape)
            bank[..., channel] = plane / plane.std()
        _noise_bank = bank
    top = int(rng.integers(0, _NOISE_SIDE - height + 1))
    left = int(rng.integers(0, _NOISE_SIDE - width + 1))
    cut = _noise_bank[top : top + height, left : left + width]
    return cut[:: -1 if rng.random() < 0.5 else 1, :: -1 if rng.random() < 0.5 else 1]


def _texture(rng: np.random.Generator, texture: str, height: int, width: int) -> np.ndarray:
    """Return a texture (H, W) in 0..1, with 6 to 10 periods over the longer side."""
    import numpy as np

    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / max(height, width)
    periods = 2 * np.pi * rng.uniform(6.0, 10.0)
    phase = rng.uniform(0, 2 * np.pi, 2)
    if texture == "rings":
        centre = rng.uniform(0.25, 0.75, 2)
        wave = np.sin(periods * 2 * np.hypot(y - centre[0], x - centre[1]))
    elif texture == "checks":
        wave = np.sign(np.sin(periods * x + phase[0]) * np.sin(periods * y + phase[1]))
    elif texture == "blobs":
        wave = np.sin(periods * x + phase[0]) * np.sin(periods * y + phase[1])
    else:
        angle = rng.uniform(-0.4, 0.4)
        wave = np.sin(periods * (x * np.cos(angle) + y * np.sin(angle)) + phase[0])
    shades: np.ndarray = (0.5 + 0.5 * wave).astype(np.float32)
    return shades


def _colours(rng: np.random.Generator, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a dark and a light colour (3,) in 0..255. Their hue is that of class `kind`, with small variations."""
    import colorsys

    import numpy as np

    hue = (kind + rng.uniform(-0.25, 0.25)) / N_CLASSES
    dark = np.array(colorsys.hsv_to_rgb(hue, 0.6, rng.uniform(0.25, 0.4)), np.float32)
    light = np.array(colorsys.hsv_to_rgb(hue, 0.45, rng.uniform(0.65, 0.85)), np.float32)
    return 255 * dark, 255 * light


def _draw_shape(rng: np.random.Generator, draw: Any, width: int, height: int) -> None:
    """Draw an ellipse or a quadrilateral of random colour, place and size."""
    x, y = int(rng.integers(0, width)), int(rng.integers(0, height))
    w, h = (int(rng.integers(side // 12, side // 3)) for side in (width, height))
    colour = tuple(int(channel) for channel in rng.integers(20, 236, 3))
    if rng.random() < 0.5:
        draw.ellipse((x - w // 2, y - h // 2, x + w // 2, y + h // 2), fill=colour)
    else:
        corners = [(x + int(rng.integers(-w, w + 1)), y + int(rng.integers(-h, h + 1))) for _ in range(4)]
        draw.polygon(corners, fill=colour)
