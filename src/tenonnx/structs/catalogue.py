"""The known formats by name. They are imported when the first is asked for, and each decoder is traced when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from tenonnx.errors import CheckError, UnsupportedError
from tenonnx.structs.formats import Format


@cache
def _known() -> dict[str, Format]:
    from tenonnx.structs import formats_codebook, formats_grouped, formats_k, formats_linear, formats_records, formats_ternary

    families = (formats_linear, formats_k, formats_codebook, formats_ternary, formats_grouped, formats_records)
    return {name: format for family in families for name, format in family.FORMATS.items()}


class Catalogue:
    """Formats by name, in any case: ``catalogue["Q4_1"]``. Iterating gives the names; ``add`` takes a user's format."""

    def __init__(self) -> None:
        self._added: dict[str, Format] = {}

    def __getitem__(self, name: str) -> Format:
        key = name.upper()
        found = self._added.get(key) or _known().get(key)
        if found is None:
            raise UnsupportedError(f"{name!r} is no known format; known are {', '.join(self)}")
        return found

    def add(self, format: Format) -> Format:
        """Make a format known to this process by its name and, in models, by its bits and decoder; gives it back.

        Raises ``CheckError`` for a name that another format has, and for a decoder that is no function of its leaves. Adding
        the same object again changes nothing.
        """
        key = format.name.upper()
        _ = format.function  # so that recognition, which compares functions, never meets a broken one
        if key in self and self[key] is not format:
            raise CheckError(f"format {format.name!r} is known already; give this one another name")
        self._added[key] = format
        return format

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name.upper() in _known() or name.upper() in self._added)

    def __iter__(self) -> Iterator[str]:
        return iter(_known() | self._added)

    def __len__(self) -> int:
        return len(_known() | self._added)


catalogue = Catalogue()
