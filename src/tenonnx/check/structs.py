"""The rules of structured types over a whole model: its declarations, the values that use them, and their decoders.

What is wrong with one declaration alone is found by ``tenonnx.structs.rules``, which readers of a type share; the rules here
need the model around it. Each yields all that it finds; none stops another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tenonnx.check.diagnostics import Diagnostic
from tenonnx.check.subject import Subject, Value, bodies, graph_values, graphs
from tenonnx.errors import CheckError, PayloadError, TenonnxError
from tenonnx.schema.external import DataRoot, parse_external
from tenonnx.schema.messages import TensorProto
from tenonnx.structs import functions, rules
from tenonnx.structs.decoders import inferred_type, tensors
from tenonnx.structs.layout import leaves
from tenonnx.structs.physical import Node, TypeLimit
from tenonnx.structs.reader import INLINE, MAX_TYPES
from tenonnx.structs.recognize import Recognizer
from tenonnx.structs.rules import Finding


def declarations_are_valid(subject: Subject) -> Iterator[Finding]:
    """The rules of ``tenonnx.structs.rules``, references, cycles, sizes and limits, for each declaration of the model."""
    if not subject.readable:
        message = f"{len(subject.model.struct_types)} declarations, more than {MAX_TYPES}; remove those that nothing uses"
        yield Finding("type-is-within-limits", "limit", "struct_types", message)
        return
    for index in subject.indices:
        yield from subject.types.findings(index)


def values_have_valid_types(subject: Subject) -> Iterator[Finding]:
    """Each value selects one type, which exists; an inline type is held to the rules of a declaration."""
    for value in subject.values:
        problems = list(rules.value_findings(value.message, value.where))
        yield from problems
        if problems:
            continue
        index, count = value.message.type, len(subject.model.struct_types)
        if index == INLINE:
            yield from subject.types.inline_findings(value.message.struct_type, f"{value.where}.struct_type")
        elif not 0 <= index < count:
            message = f"type index {index} is not in struct_types, which has {count} entries"
            yield Finding("reference-exists", "invalid", f"{value.where}.type", message)


def root_is_whole_bytes(subject: Subject) -> Iterator[Finding]:
    """What a value may select ends at a byte's edge; a declaration that others only contain need not."""
    selected = {value.message.type for value in subject.values}
    for index, declaration, node in subject.nodes:
        is_root = index in selected or declaration.HasField("decoder") or index not in subject.types.referenced
        if is_root:
            yield from _whole_bytes(node, f"struct_types[{index}]")
    for value in subject.values:
        if value.node is not None and value.message.type == INLINE:
            yield from _whole_bytes(value.node, f"{value.where}.struct_type")


def _whole_bytes(node: Node, where: str) -> Iterator[Finding]:
    try:
        _ = node.nbytes
    except CheckError as error:
        yield Finding("root-is-whole-bytes", "invalid", where, str(error))


def payload_has_one_source(subject: Subject) -> Iterator[Finding]:
    for value in subject.values:
        if value.message.external_data and value.message.HasField("raw_data"):
            message = "it has both raw_data and external_data; keep one"
            yield Finding("payload-has-one-source", "invalid", value.where, message)


def payload_is_exact(subject: Subject) -> Iterator[Finding]:
    """The payload is exactly as long as its type says; with a data root the bytes of external data must be there too."""
    for value in subject.values:
        try:
            found = _payload_length(value, subject.data_root)
        except PayloadError as error:
            yield Finding("payload-is-exact", "invalid", f"{value.where}.external_data", str(error))
            continue
        if value.node is None or value.node.bits % 8 or found == value.node.nbytes:
            continue
        message = f"its type takes {value.node.nbytes} bytes, found {found}; the payload is truncated or of another type"
        yield Finding("payload-is-exact", "invalid", value.where, message)


def _payload_length(value: Value, data_root: DataRoot | None) -> int:
    where = f"value {value.message.name!r}"
    if not value.message.external_data:
        return len(value.message.raw_data)
    named = parse_external(where, value.message.external_data)
    if named.length is None:
        raise PayloadError(f"{where}: external_data has no length; a structured value states its exact size")
    if data_root is not None:
        data_root.read(where, value.message.external_data)
    return named.length


def value_names_are_unique(subject: Subject) -> Iterator[Finding]:
    """A struct initializer has a name that no other initializer of its graph has."""
    for where, graph in graphs(subject.model):
        seen = {tensor.name for tensor in graph.initializer}
        for index, value in enumerate(graph.struct_initializer):
            place = f"{where}.struct_initializer[{index}].name"
            if not value.name:
                yield Finding(
                    "value-names-are-unique", "invalid", place, "the value has no name; give it one that nodes can read"
                )
            elif value.name in seen:
                message = f"another initializer is named {value.name!r}; rename one"
                yield Finding("value-names-are-unique", "invalid", place, message)
            seen.add(value.name)


def decoder_fits_its_leaves(subject: Subject) -> Iterator[Finding]:
    """A decoder takes each leaf by position, in its type, and gives one tensor."""
    recognizer, local = Recognizer(subject.model, subject.types), functions.index(subject.model)
    for index, declaration, node in subject.nodes:
        if not declaration.HasField("decoder") or recognizer(index) is not None:
            continue
        where, places = f"struct_types[{index}].decoder", leaves(node)
        faults = list(functions.signature_faults(declaration.decoder, places))
        for fault in faults:
            yield Finding("decoder-fits-its-leaves", "invalid", where, f"it {fault}")
        if faults:
            continue
        try:
            inferred_type(declaration.decoder, places, local, where)
        except TypeLimit as error:
            yield Finding("decoder-fits-its-leaves", "limit", where, str(error))
        except TenonnxError as error:
            yield Finding("decoder-fits-its-leaves", "invalid", where, str(error))


def encoder_fits_its_leaves(subject: Subject) -> Iterator[Finding]:
    """An encoder takes the logical value and gives each leaf but the constants, by position."""
    for index, declaration, node in subject.nodes:
        if not declaration.HasField("encoder"):
            continue
        encoder, expected = declaration.encoder, sum(leaf.constant is None for leaf in leaves(node))
        if (len(encoder.input), len(encoder.output)) != (1, expected):
            message = f"it takes {len(encoder.input)} inputs and gives {len(encoder.output)} outputs; expected 1 and {expected}"
            yield Finding("encoder-fits-its-leaves", "invalid", f"struct_types[{index}].encoder", message)


def codec_is_self_contained(subject: Subject) -> Iterator[Finding]:
    """A decoder or encoder holds its tensors inline: it is part of a type, and runs wherever the type is read."""
    for index in subject.indices:
        declaration = subject.model.struct_types[index]
        for name in ("decoder", "encoder"):
            if declaration.HasField(name) and any(map(_is_external, tensors(getattr(declaration, name)))):
                message = "it keeps a tensor in another file; hold the tensor inline"
                yield Finding("codec-is-self-contained", "invalid", f"struct_types[{index}].{name}", message)


def _is_external(tensor: Any) -> bool:
    return bool(tensor.external_data) or tensor.data_location == TensorProto.EXTERNAL


def static_type_is_bare(subject: Subject) -> Iterator[Finding]:
    """The type of a graph's value, or of an attribute, names one declaration or any, and carries nothing of its own."""
    count = len(subject.model.struct_types)
    for where, declared in _declared_types(subject.model):
        for place, static in _static_types(declared, where):
            yield from _static_faults(static, place, count)


def _declared_types(model: Any) -> Iterator[tuple[str, Any]]:
    """Every TypeProto of the model that is not part of a declaration."""
    for where, body in bodies(model):
        parts = ("input", "output", "value_info") if hasattr(body, "struct_initializer") else ("value_info",)
        for part in parts:
            for index, info in enumerate(getattr(body, part)):
                yield f"{where}.{part}[{index}].type", info.type
        for node in body.node:
            for attribute in node.attribute:
                place = f"{where}.{node.name or node.op_type}.{attribute.name}"
                yield from ((place, declared) for declared in attribute.type_protos)
                if attribute.HasField("tp"):
                    yield place, attribute.tp


def initializer_is_of_its_declared_type(subject: Subject) -> Iterator[Finding]:
    """A struct initializer that an input, output or value_info of its graph names has the type that is declared there."""
    for where, graph in graphs(subject.model):
        declared = {info.name: info.type for part in (graph.value_info, graph.output, graph.input) for info in part}
        for index, value in enumerate(graph.struct_initializer):
            static = declared.get(value.name)
            if static is None:
                continue
            kind = static.WhichOneof("value")
            named = kind == "struct_type" and static.struct_type.WhichOneof("kind") == "type_index"
            if kind != "struct_type" or (named and value.type != static.struct_type.type_index):
                expected = f"struct_types[{static.struct_type.type_index}]" if named else f"a {kind}"
                message = f"{value.name!r} has type {value.type}, but the graph declares {expected}; make them agree"
                yield Finding("initializer-is-of-its-declared-type", "invalid", f"{where}.struct_initializer[{index}]", message)


def _static_types(declared: Any, where: str) -> Iterator[tuple[str, Any]]:
    """The structured types in a value's type: itself, or what a sequence, map or optional of it holds."""
    kind = declared.WhichOneof("value")
    while kind in ("sequence_type", "optional_type", "map_type"):
        inner = "value_type" if kind == "map_type" else "elem_type"
        declared, where = getattr(getattr(declared, kind), inner), f"{where}.{kind}.{inner}"
        kind = declared.WhichOneof("value")
    if kind == "struct_type":
        yield f"{where}.struct_type", declared.struct_type


def _static_faults(static: Any, where: str, count: int) -> Iterator[Finding]:
    kind = static.WhichOneof("kind")
    if kind not in (None, "type_index"):
        message = f"a value's type declares its own {kind}; move it to struct_types and name it by type_index"
        yield Finding("static-type-is-bare", "invalid", where, message)
    elif kind == "type_index" and not 0 <= static.type_index < count:
        message = f"type index {static.type_index} is not in struct_types, which has {count} entries"
        yield Finding("reference-exists", "invalid", f"{where}.type_index", message)
    for name in rules.carried(static):
        message = f"a value's type carries {name}; only a declaration may, so remove it"
        yield Finding("static-type-is-bare", "invalid", f"{where}.{name}", message)


RULES: tuple[Callable[[Subject], Iterator[Finding]], ...] = (
    declarations_are_valid,
    values_have_valid_types,
    root_is_whole_bytes,
    payload_has_one_source,
    payload_is_exact,
    value_names_are_unique,
    decoder_fits_its_leaves,
    encoder_fits_its_leaves,
    codec_is_self_contained,
    static_type_is_bare,
    initializer_is_of_its_declared_type,
)


def check_structs(model: Any, data_root: DataRoot | None = None, *, all_types: bool = True) -> Iterator[Diagnostic]:
    """Every finding on the structured types of a model and the values of its graph; packs have a check of their own.

    External bytes are looked at only with a ``data_root``. Without ``all_types`` only the types that the graph reaches are
    checked: what packs alone use never makes a model unfit to run.
    """
    placed = graph_values(model)
    indices = range(len(model.struct_types)) if all_types else _reached(model, placed)
    subject = Subject(model, data_root, placed, indices)
    for rule in RULES:
        for finding in rule(subject):
            yield Diagnostic("error", finding.kind, finding.rule, finding.where, finding.message)


def _reached(model: Any, placed: Sequence[tuple[str, Any]]) -> list[int]:
    """The declarations that the graph names; what those refer to is read along with them."""
    found = {value.type for _, value in placed}
    for where, declared in _declared_types(model):
        found.update(static.type_index for _, static in _static_types(declared, where) if static.HasField("type_index"))
    return sorted(index for index in found if 0 <= index < len(model.struct_types))
