"""What makes one part of a declared type invalid: one function per rule, each yielding what it finds.

A reader raises the first finding, the checker lists them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from tenonnx import dtypes
from tenonnx.errors import CheckError, TenonnxError
from tenonnx.structs.physical import TypeLimit
from tenonnx.structs.walk import Part

FIXED_WIDTH = ", ".join(dtypes.BY_NAME)


class Finding(NamedTuple):
    """A breach of ``rule``: kind "invalid", or "limit" for a valid type larger than this version reads."""

    rule: str
    kind: Literal["invalid", "limit"]
    where: str
    message: str

    def error(self) -> TenonnxError:
        """The finding as the exception that a reader raises."""
        text = f"{self.where}: {self.message}"
        return TypeLimit(text) if self.kind == "limit" else CheckError(text)


Rule = Callable[[Part], Iterator[tuple[str, str]]]  # yields (place below the part, message)


def kind_is_set(part: Part) -> Iterator[tuple[str, str]]:
    if part.structured and part.level:
        yield "", "an unset kind stands for any structured type, which has no size; name one declaration by type_index"
    elif part.structured:
        yield "", "a declaration sets none of array, structure and bit_packing; set one"
    else:
        yield "", "no type is given; expected tensor_type or struct_type"


def root_is_no_reference(part: Part) -> Iterator[tuple[str, str]]:
    if part.level == 0:
        yield ".type_index", "a declaration is no more than a reference; declare the type itself"


def only_roots_carry_more(part: Part) -> Iterator[tuple[str, str]]:
    for name in carried(part.message) if part.level and part.structured else ():
        yield f".{name}", f"a nested type carries {name}; only a declaration of its own may, so move it there or remove it"


def carried(declared: Any) -> list[str]:
    """Which of the fields that only a root may have a StructTypeProto has."""
    codecs = [name for name in ("decoder", "encoder") if declared.HasField(name)]
    return codecs + [name for name in ("name", "metadata_props") if getattr(declared, name)]


def leaf_is_supported(part: Part) -> Iterator[tuple[str, str]]:
    if part.kind != "tensor_type":
        yield f".{part.kind}", f"{part.kind} has no fixed size; a leaf is a tensor of a fixed-width type"
    elif part.message.tensor_type.elem_type not in dtypes.BY_NUMBER:
        found = part.message.tensor_type.elem_type
        name = "STRING" if found == dtypes.STRING else "undefined" if found == 0 else "unknown"
        yield ".tensor_type.elem_type", f"element type {found} ({name}) has no fixed width; use one of {FIXED_WIDTH}"


def leaf_shape_is_concrete(part: Part) -> Iterator[tuple[str, str]]:
    if not part.message.tensor_type.HasField("shape"):
        yield ".tensor_type.shape", "a tensor without a shape has no size; add one, of rank 0 for a scalar"
        return
    for index, dim in enumerate(part.message.tensor_type.shape.dim):
        if not dim.HasField("dim_value") or dim.dim_value < 0:
            found = dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or "no value")
            yield f".tensor_type.shape.dim[{index}]", f"found {found}; expected a concrete count, 0 or more"


def field_has_one_content(part: Part) -> Iterator[tuple[str, str]]:
    for index, field in enumerate(part.message.structure.field):
        if field.WhichOneof("content") is None:
            yield f".structure.field[{index}]", f"field {field.name!r} has neither type nor constant; give it one of them"


def field_names_are_unique(part: Part) -> Iterator[tuple[str, str]]:
    yield from _unique(".structure.field", (field.name for field in part.message.structure.field))


def component_names_are_unique(part: Part) -> Iterator[tuple[str, str]]:
    yield from _unique(".bit_packing.component", (component.name for component in part.message.bit_packing.component))


def _unique(place: str, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if not name:
            yield f"{place}[{index}].name", "the name is empty; give it one that no other here has"
        elif name in seen:
            yield f"{place}[{index}].name", f"the name {name!r} is taken by number {seen[name]}; rename one"
        seen.setdefault(name, index)


def component_has_width(part: Part) -> Iterator[tuple[str, str]]:
    for index, component in enumerate(part.message.bit_packing.component):
        if component.bit_width == 0:
            message = f"component {component.name!r} is 0 bits wide; expected 1 to 2^32-1"
            yield f".bit_packing.component[{index}].bit_width", message


def constant_is_inline_and_fixed_width(part: Part) -> Iterator[tuple[str, str]]:
    for index, field in enumerate(part.message.structure.field):
        if not field.HasField("constant"):
            continue
        place, tensor = f".structure.field[{index}].constant", field.constant
        if tensor.external_data or tensor.data_location:
            yield f"{place}.external_data", "a constant is part of the type; keep its bytes inline"
        elif min(tensor.dims, default=0) < 0:
            yield f"{place}.dims", f"found {list(tensor.dims)}; expected counts of 0 or more"
        elif tensor.data_type not in dtypes.BY_NUMBER:
            yield f"{place}.data_type", f"element type {tensor.data_type} has no fixed width; use one of {FIXED_WIDTH}"


PART_RULES: dict[str | None, tuple[Rule, ...]] = {
    None: (kind_is_set, only_roots_carry_more),
    "type_index": (root_is_no_reference, only_roots_carry_more),
    "array": (only_roots_carry_more,),
    "structure": (
        only_roots_carry_more,
        field_has_one_content,
        field_names_are_unique,
        constant_is_inline_and_fixed_width,
    ),
    "bit_packing": (only_roots_carry_more, component_names_are_unique, component_has_width),
    "tensor_type": (leaf_is_supported, leaf_shape_is_concrete),
}
_OTHER_LEAVES: tuple[Rule, ...] = (leaf_is_supported,)


def part_findings(parts: Iterable[Part]) -> Iterator[Finding]:
    """Everything that the rules find in the parts of one declaration."""
    for part in parts:
        for rule in PART_RULES.get(part.kind, _OTHER_LEAVES):
            for place, message in rule(part):
                yield Finding(rule_name(rule), "invalid", part.where + place, message)


def rule_name(rule: Any) -> str:
    """The name under which a rule's findings are listed."""
    return rule.__name__.replace("_", "-")


def value_findings(value: Any, where: str) -> Iterator[Finding]:
    """Whether a StructProto selects its type in exactly one way: an index, or -1 and an inline declaration."""
    inline = value.HasField("struct_type")
    message = None
    if not value.HasField("type"):
        message = "it has no type; set an index into struct_types, or -1 and an inline struct_type"
    elif value.type == -1 and not inline:
        message = "its type is -1 but it has no struct_type; add it, or set an index into struct_types"
    elif value.type != -1 and inline:
        message = f"it has type {value.type} and a struct_type of its own; set type to -1 or remove the struct_type"
    if message:
        yield Finding("value-selects-one-type", "invalid", where, message)


def of_limit(where: str, error: TypeLimit) -> Finding:
    """A type larger than this version reads."""
    return Finding("type-is-within-limits", "limit", where, str(error))


def of_cycle(where: str, indices: list[int]) -> Finding:
    """A declaration that contains itself, by the indices along the way round."""
    shown = indices if len(indices) <= 8 else [*indices[:4], "…", *indices[-3:]]
    path = " → ".join(map(str, shown))
    return Finding("references-are-acyclic", "invalid", where, f"struct_types {path} contain one another; no size exists")
