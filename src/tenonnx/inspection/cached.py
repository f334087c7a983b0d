"""What a saved dense cache holds: positions, and each tensor with type, dims and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tenonnx import dtypes
from tenonnx.cache.rows import SavedRows

if TYPE_CHECKING:
    from rich.text import Text


def described(saved: SavedRows) -> dict[str, Any]:
    """The tensors as plain values, for JSON."""
    tensors = [
        {
            "name": name,
            "elem_type": dtypes.BY_NUMBER[saved.elem_type(name)].name,
            "dims": list(saved.dims(name)),
            "bytes": saved.nbytes(name),
        }
        for name in saved.tensors
    ]
    return {"tokens": saved.length, "bytes": sum(map(saved.nbytes, saved.tensors)), "tensors": tensors}


def row_lines(saved: SavedRows) -> Iterator[Text]:
    """One line for each tensor, in the order of the file."""
    from rich.text import Text

    found = described(saved)
    yield Text(f"{saved.length} tokens in {len(saved.tensors)} tensors, {found['bytes']:,} bytes")
    width = max(map(len, saved.tensors), default=0)
    for tensor in found["tensors"]:
        declared = f"{tensor['elem_type']}[{', '.join(map(str, tensor['dims']))}]"
        yield Text(f"  {tensor['name']:{min(width, 32)}}  {declared}  {tensor['bytes']:,} bytes")
