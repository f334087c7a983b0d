"""Blocks of 32 codes under one scale, as onnxruntime's MatMulNBits takes them: w = (code - 2^(bits - 1)) · scale."""

from __future__ import annotations

import numpy as np

from tenonnx.structs import catalogue

BLOCK = 32
BITS = {"Q4_0": 4, "Q8_0": 8}  # of a code, for the formats that decode by this formula


def packed(name: str, payload: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """(codes UINT8[rows, blocks, bytes], scales FLOAT[rows · blocks]) of the weight [rows, columns] in a format of ``BITS``.

    The operator reads consecutive 4-bit codes from a byte's lower half first; the zero point is its default.
    """
    scales, *parts = catalogue[name].view(payload).leaves()
    if BITS[name] == 4:
        codes = np.concatenate(parts, axis=1)
        bytes_ = codes[:, 0::2] | codes[:, 1::2] << 4
    else:
        bytes_ = parts[0].view(np.uint8) ^ 0x80  # int8 + 128
    return bytes_.astype(np.uint8).reshape(rows, columns // BLOCK, -1), scales.reshape(-1).astype(np.float32)
