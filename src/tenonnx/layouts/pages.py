"""Page formats that kernels read and write in place: the numbers by which a table of pages names them to a kernel."""

from __future__ import annotations

from tenonnx.errors import ShapeError
from tenonnx.structs import Format
from tenonnx.structs.formats_pages import PAGE_FORMATS, family, page_format

DESCRIPTOR = 4  # numbers of INT64 for each page: address, kind, elements of a block, bytes; native/kernels/page_rows.hpp
MAX_PAGE_TOKENS = 256
MAX_ROW = 512  # elements of a row

_KINDS = {name: kind for kind, name in enumerate(PAGE_FORMATS)}


def page_kind(format: Format) -> tuple[int, int] | None:
    """(kind, elements of a block) of a format that kernels know, else None: its pages go through decoder and encoder.

    A user's format that bears the name of one of these is none of them.
    """
    name = family(format)
    try:
        known = name in _KINDS and page_format(name, format.elements) is format
    except ShapeError:  # no such format has blocks of this size
        return None
    return (_KINDS[name], format.elements) if known else None
