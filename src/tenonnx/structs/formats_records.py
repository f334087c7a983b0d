"""Packed values that are no weights: a pixel, a record of a sensor, a frame of audio."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonnx.structs.builder import bits, constant, pad, structure
from tenonnx.structs.formats import Format
from tenonnx.structs.scalars import u32

_PCM_SIGN = 1 << 23


def _rgb565(x: Any) -> Any:
    """Red, green, blue from 0 to 1."""
    pixel = x.pixel
    red, green, blue = (part.astype(np.float32) / np.float32(top) for part, top in ((pixel.r, 31), (pixel.g, 63), (pixel.b, 31)))
    return np.concatenate((red, green, blue), axis=1)


def _sensor(x: Any) -> Any:
    """The reading in degrees, NaN where it is not valid."""
    reading = x.status.reading.astype(np.float32) * x.step + x.lowest
    return np.where(x.status.valid == 1, reading, np.float32(np.nan))[:, 0]


def _pcm24(x: Any) -> Any:
    """Left and right from -1 to 1, of two's complement."""
    samples = np.concatenate((x.sample.left, x.sample.right), axis=1)
    return ((samples ^ _PCM_SIGN).astype(np.float32) - _PCM_SIGN) / np.float32(_PCM_SIGN)


FORMATS = {
    fmt.name: fmt
    for fmt in (
        # A row of an image of ``width`` pixels is a value of shape (width, 3).
        Format("RGB565", structure("RGB565", pixel=bits(b=5, g=6, r=5)[1]), (3,), _rgb565),
        # Milliseconds, two flags, a reading of 12 bits, and no bit without a name.
        Format(
            "SENSOR",
            structure(
                "SENSOR",
                time=u32,
                status=bits(valid=1, alarm=1, reading=12, unused=2)[1],
                spare=pad(16),
                step=constant(0.0625, np.float32),
                lowest=constant(-128, np.float32),
            ),
            (),
            _sensor,
        ),
        # A frame is one sample of each channel; a stretch of audio of n frames is a value of shape (n, 2).
        Format("PCM24", structure("PCM24", sample=bits(left=24, right=24)[1]), (2,), _pcm24),
    )
}
