"""From a tensor to the bytes of a structured value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tenonnx import dtypes
from tenonnx.codecs.engines import runner
from tenonnx.codecs.growth import check_growth
from tenonnx.errors import CheckError, ShapeError, UnsupportedError
from tenonnx.structs import Format, catalogue, functions
from tenonnx.structs.decoders import encoder_model
from tenonnx.structs.layout import leaves
from tenonnx.structs.packing import pack_leaves
from tenonnx.structs.recognize import Recognizer


def encode(array: ArrayLike, format: Format | str | int, model: Any = None) -> np.ndarray:
    """UINT8[n]: the payload that stands for ``array``.

    ``format`` is a Format, the name of one of the catalogue, or an index into ``model.struct_types``, whose declared encoder
    is run, or that of the known format when it declares none. Raises ``UnsupportedError`` where there is no encoder,
    ``ShapeError`` for an array that the blocks do not divide, or of another shape than the type's.
    """
    if isinstance(format, int):
        return _encode_root(np.asarray(array), format, model)
    return (catalogue[format] if isinstance(format, str) else format).encode(array)


def _encode_root(array: np.ndarray, index: int, model: Any) -> np.ndarray:
    where = f"struct_types[{index}]"
    if model is None:
        raise CheckError(f"{where}: an index needs the model that declares it; pass model=")
    recognizer = Recognizer(model)
    node, root = recognizer.types.node(index, where), model.struct_types[index]
    if root.HasField("encoder"):
        places = [leaf for leaf in leaves(node) if leaf.constant is None]
        kind = dtypes.of_numpy(array.dtype, where)
        runnable = encoder_model(root.encoder, kind.number, array.shape, places, functions.index(model))
        check_growth(runnable, array.nbytes, where)
        return pack_leaves(node, runner(runnable, where)([array]), where)
    known = recognizer(index)
    if known is None:
        raise UnsupportedError(f"{where}: declares no encoder; compute its leaves, and pack those")
    if known.shape != array.shape:
        raise ShapeError(f"{where}: stands for shape {list(known.shape)}, found an array of {list(array.shape)}")
    return known.format.encode(array)
