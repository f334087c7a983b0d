"""Formats that compute layouts hold: random blocks of them, and their kernels by name."""

from dataclasses import dataclass

import gguf
import ml_dtypes
import numpy as np

from tenonnx.layouts import LAYOUTS, Layout, layout_for, packer, quantized_row_bytes
from tests.native.kernels import call

SCALES = np.array([0.0, 2.0**-24, -(2.0**-24), 6e-5, -0.01, 0.02, -1.0, 1.5, 600.0, -4000.0, 65504.0], np.float16)
EXPONENTS = np.array([70, 100, 120, 127, 128, 150], np.uint8)
BYTES = {"zeros": 0x00, "ones": 0xFF, "lowest": 0x80}


@dataclass(frozen=True)
class Source:
    """A block of a format in a file: its bytes, where FLOAT16 numbers and codes stand, and a code of largest magnitude."""

    nbytes: int
    halves: tuple[int, ...]
    codes: tuple[int, int]
    largest: int = 0xFF


QUANTIZED = {
    "Q4_0": Source(18, (0,), (2, 18)),
    "Q4_1": Source(20, (0, 2), (4, 20)),
    "Q5_0": Source(22, (0,), (2, 22)),
    "Q5_1": Source(24, (0, 2), (4, 24)),
    "Q8_0": Source(34, (0,), (2, 34), 0x80),
    "IQ4_NL": Source(18, (0,), (2, 18)),
    "MXFP4": Source(17, (), (1, 17)),
    "NVFP4": Source(36, (), (4, 36)),
    "TQ2_0": Source(66, (64,), (0, 64)),
    "Q2_K": Source(84, (80, 82), (16, 80)),
    "Q3_K": Source(110, (108,), (0, 96)),
    "Q4_K": Source(144, (0, 2), (16, 144)),
    "Q5_K": Source(176, (0, 2), (16, 176)),
    "Q6_K": Source(210, (208,), (0, 192)),
    "IQ4_XS": Source(136, (0,), (8, 136)),
}
PLAIN = {"F16": np.float16, "BF16": ml_dtypes.bfloat16, "F32": np.float32}
FORMATS = [*QUANTIZED, *PLAIN]


def elements(format_name: str) -> int:
    """Columns that a matrix of the format must be a multiple of."""
    return max(layout(format_name).columns, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format_name]][0])


def layout(format_name: str) -> Layout:
    found = layout_for(format_name, (1, 256))
    assert found is not None
    return found


def random_blocks(rng: np.random.Generator, format_name: str, n: int, k: int, fill: str = "random") -> np.ndarray:
    """Source bytes [N, row bytes]: any codes with everyday or extreme scales, or one code alone."""
    if format_name in PLAIN:
        values = rng.standard_normal((n, k)).astype(PLAIN[format_name])
        return np.ascontiguousarray(values).view(np.uint8).reshape(n, k * values.itemsize)
    source = QUANTIZED[format_name]
    columns = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format_name]][0]
    blocks = rng.integers(0, 256, (n, k // columns, source.nbytes), dtype=np.uint8)
    if fill in BYTES:
        blocks[..., slice(*source.codes)] = BYTES[fill]
    for at in source.halves:
        scales = rng.choice(SCALES, blocks.shape[:2])
        if fill == "random":
            scales = (rng.standard_normal(scales.shape) * 0.02).astype(np.float16)
        blocks[..., at : at + 2] = np.ascontiguousarray(scales[..., None]).view(np.uint8)
    if format_name == "MXFP4":
        blocks[..., 0] = rng.choice(EXPONENTS, blocks.shape[:2])
    if format_name == "NVFP4":
        blocks[..., :4] = rng.integers(0, 0x7F, (*blocks.shape[:2], 4))
    return blocks.reshape(n, k // columns * source.nbytes)


def pack(format_name: str, blocks: np.ndarray, k: int, isa: str = "", threads: int = 1) -> np.ndarray:
    packed = np.full(layout(format_name).nbytes(len(blocks), k), 0xA5, np.uint8)
    call(packer(format_name), [blocks.reshape(-1)], [packed], [len(blocks), k], threads=threads, isa=isa)
    return packed


def gather(format_name: str, packed: np.ndarray, ids: np.ndarray, n: int, k: int, isa: str = "") -> np.ndarray:
    out = np.full((*ids.shape, k), 7.0, np.float32)
    call(layout(format_name).gather, [packed, ids], [out], [n, k], isa=isa)
    return out


def quantize(x: np.ndarray, isa: str = "", threads: int = 1) -> np.ndarray:
    out = np.full((len(x), quantized_row_bytes(x.shape[1])), 0xA5, np.uint8)
    call("quantize_rows", [x], [out], threads=threads, isa=isa)
    return out


def multiply(format_name: str, x: np.ndarray, packed: np.ndarray, n: int, k: int, isa: str = "", threads: int = 1) -> np.ndarray:
    """Runs the layout's matmul over x as its kernel takes it (quantized, or FLOAT)."""
    y = np.full((len(x), n), 7.0, np.float32)
    call(layout(format_name).matmul, [x, packed], [y], [n, k], threads=threads, isa=isa)
    return y


def with_codes(format_name: str, blocks: np.ndarray, fill: int) -> np.ndarray:
    """The same scales with every byte of codes replaced."""
    source = QUANTIZED[format_name]
    changed = blocks.reshape(len(blocks), -1, source.nbytes).copy()
    changed[..., slice(*source.codes)] = fill
    return changed.reshape(blocks.shape)


__all__ = [
    "BYTES", "FORMATS", "LAYOUTS", "PLAIN", "QUANTIZED", "elements", "gather", "layout", "multiply", "pack", "quantize",
    "random_blocks", "with_codes",
]  # fmt: skip
