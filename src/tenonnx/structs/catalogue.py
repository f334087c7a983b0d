"""The known formats by name. A family is imported, and a decoder traced, when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from tenonnx.errors import CheckError, UnsupportedError
from tenonnx.structs.formats import Format

# Each family is the module ``formats_<family>`` with its formats in FORMATS.
_FAMILIES = {
    "linear": ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q1_0"),
    "k": ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
    "codebook": ("IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "NF4"),
    "ternary": ("TQ1_0", "TQ2_0", "BITNET"),
    "grouped": (
        *("INT4_32", "INT4_64", "INT4_128", "INT8_32", "INT8_64", "INT8_128"),
        *("GPTQ4_32", "GPTQ4_64", "GPTQ4_128", "AWQ4_32", "AWQ4_64", "AWQ4_128"),
        *("FP8_E4M3", "FP8_E5M2"),
    ),
    "records": ("RGB565", "SENSOR", "PCM24"),
}
_FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names}


class Catalogue:
    """Formats by name, in any case: ``catalogue["Q4_1"]``. Iterating gives the names; ``add`` takes a user's format."""

    def __init__(self) -> None:
        self._added: dict[str, Format] = {}

    def __getitem__(self, name: str) -> Format:
        key = name.upper()
        if key in self._added:
            return self._added[key]
        if key not in _FAMILY_OF:
            raise UnsupportedError(f"{name!r} is no known format; known are {', '.join(self)}")
        formats: dict[str, Format] = import_module(f"tenonnx.structs.formats_{_FAMILY_OF[key]}").FORMATS
        return formats[key]

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
        return isinstance(name, str) and (name.upper() in _FAMILY_OF or name.upper() in self._added)

    def __iter__(self) -> Iterator[str]:
        return iter((*_FAMILY_OF, *self._added))

    def __len__(self) -> int:
        return len(_FAMILY_OF) + len(self._added)


catalogue = Catalogue()
