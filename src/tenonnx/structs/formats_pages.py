"""Formats of cache pages, cut to the head size: a block never leaves its row, so that a token is written by itself.

``INT8_PAGE``, ``INT4_PAGE`` and ``INT2_PAGE`` keep a FLOAT16 scale and minimum for each block of 32 elements, or of 16 or 8
where 32 does not divide the head size. ``FP8_PAGE`` keeps FLOAT8E4M3FN elements with a FLOAT16 scale for each row. Any format
of the catalogue is a page format too where its blocks divide the page.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tenonnx.errors import ShapeError
from tenonnx.structs.builder import bits, structure
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats import Format
from tenonnx.structs.formats_linear import codes, column, components, reciprocal
from tenonnx.structs.scalars import f8e4m3fn, f16, u8

BLOCKS = (32, 16, 8)  # elements, the largest that divides the head size
_COMPONENTS = {4: ("lo", "hi"), 2: ("c0", "c1", "c2", "c3")}  # of a byte, the least significant first
_LARGEST_HALF, _LARGEST_FP8 = np.float32(65504), np.float32(448)


def _affine(x: np.ndarray, largest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale, minimum and codes: codes count from the minimum as FLOAT16 holds it; NaN becomes code 0."""
    minimum = x.min(axis=1, keepdims=True).clip(-_LARGEST_HALF, _LARGEST_HALF).astype(np.float16)
    low = minimum.astype(np.float32)
    scale = ((x.max(axis=1, keepdims=True) - low) / np.float32(largest)).clip(0, _LARGEST_HALF).astype(np.float16)
    steps = np.rint((x - low) * reciprocal(scale.astype(np.float32)))
    return scale[:, 0], minimum[:, 0], np.nan_to_num(steps.clip(0, largest)).astype(np.uint8)


@cache
def integer_page(width: int, block: int) -> Format:
    """``INT<width>_PAGE`` with blocks of ``block`` elements: value = d · code + m, codes of ``width`` bits."""
    name = f"INT{width}_PAGE" + (f"_{block}" if block != BLOCKS[0] else "")
    if width == 8:
        return Format(
            name,
            structure(name, d=f16, m=f16, qs=u8[block]),
            (block,),
            lambda x: column(x.d) * x.qs.astype(np.float32) + column(x.m),
            lambda x: dict(zip(("d", "m", "qs"), _affine(x, 255), strict=True)),
        )
    names, run = _COMPONENTS[width], block * width // 8

    def quantize(x: np.ndarray) -> dict[str, Any]:
        d, m, found = _affine(x, 2**width - 1)
        return {"d": d, "m": m, "qs": components(found, names, run)}

    return Format(
        name,
        structure(name, d=f16, m=f16, qs=bits(**dict.fromkeys(names, width))[run]),
        (block,),
        lambda x: column(x.d) * codes(x.qs, run).astype(np.float32) + column(x.m),
        quantize,
    )


def _quantize_fp8(x: np.ndarray) -> dict[str, Any]:
    """The largest magnitude of a row becomes the largest finite value, as far as a FLOAT16 scale can say it."""
    scale = (np.abs(x).max(axis=1, keepdims=True) / _LARGEST_FP8).clip(0, _LARGEST_HALF).astype(np.float16)
    steps = (x * reciprocal(scale.astype(np.float32))).clip(-_LARGEST_FP8, _LARGEST_FP8)
    return {"d": scale[:, 0], "values": steps.astype(f8e4m3fn.scalar.numpy)}


@cache
def fp8_page(size: int) -> Format:
    """``FP8_PAGE`` for rows of ``size`` elements: FLOAT8E4M3FN times a FLOAT16 scale."""
    name = f"FP8_PAGE_{size}"
    block = structure(name, d=f16, values=f8e4m3fn[size])
    return Format(name, block, (size,), lambda x: column(x.d) * x["values"].astype(np.float32), _quantize_fp8)


_WIDTHS = {"INT8_PAGE": 8, "INT4_PAGE": 4, "INT2_PAGE": 2}
PAGE_FORMATS = ("F32", "F16", "BF16", "FP8_PAGE", *_WIDTHS, "Q8_0", "Q4_0", "MXFP4")  # those that kernels read and write


def page_format(name: str, head_size: int) -> Format:
    """The format that a page of rows of ``head_size`` elements has under this name.

    Raises ``UnsupportedError`` for an unknown name, ``ShapeError`` where no block of the format divides the head size.
    """
    key = name.upper()
    if key == "FP8_PAGE":
        return fp8_page(head_size)
    if key not in _WIDTHS:
        return catalogue[name]
    block = next((block for block in BLOCKS if head_size % block == 0), None)
    if block is None:
        raise ShapeError(f"{key}: no block of {', '.join(map(str, BLOCKS))} divides the head size {head_size}; use F16")
    return integer_page(_WIDTHS[key], block)


def family(format: Format) -> str:
    """The name by which people ask for a format, whatever the head size: ``FP8_PAGE`` for ``FP8_PAGE_64``."""
    base = format.name.rpartition("_")[0]
    return base if base == "FP8_PAGE" or base in _WIDTHS else format.name


def token_writable(format: Format) -> bool:
    """Whether one row (one token of one head) can be written by itself: no block spans several rows, and values are encoded."""
    return all(size == 1 for size in format.block_shape[:-1]) and format.quantize is not None
