"""Tables of pages as messages: a SequenceProto, or a MapProto whose INT64 keys are the ids, of quantized or ordinary tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tenonnx.cache.pages import PageSpec, PageTable
from tenonnx.check.paged import page_findings
from tenonnx.errors import PageError, PayloadError
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import MapProto, QuantizedTensorProto, SequenceProto, TensorProto, TypeProto
from tenonnx.schema.payload import tensor_array
from tenonnx.shapes.symbols import PLAIN_PAGES
from tenonnx.structs import Format
from tenonnx.structs.formats_pages import page_format
from tenonnx.structs.quantizations import Quantizations, declare_quantization

_IDS_PER_PAGE = 16  # an id costs a descriptor, used or not


class Saved(NamedTuple):
    """What a message holds: type and dims of all pages, and id, format and UINT8 content of each."""

    spec: PageSpec
    plain: bool
    pages: list[tuple[int, Format, np.ndarray]]


def read(container: Any, model: Any, known: Iterable[Format]) -> Saved:
    """The pages of a SequenceProto or MapProto; ``PayloadError`` or ``CheckError`` where one is unsound."""
    sequence = container.values if isinstance(container, MapProto) else container
    plain = sequence.value_type.HasField("tensor_type") or bool(sequence.tensor_values)
    values = sequence.tensor_values if plain else sequence.quantized_tensor_values
    declared = sequence.value_type.tensor_type if plain else sequence.value_type.quantized_tensor_type
    dims = tuple(dim.dim_value for dim in declared.shape.dim) or tuple(values[0].dims if values else ())
    if not dims:
        raise PayloadError("a table without pages tells no dims; give value_type the shape of its pages")
    elem_type = declared.elem_type or (values[0].data_type if plain and values else 0)
    spec = PageSpec(elem_type, dims)
    contents = list(_plain(values, spec) if plain else _quantized(sequence, Quantizations(model, tuple(known))))
    ids = _ids(container, len(contents))
    return Saved(spec, plain, [(number, *content) for number, content in zip(ids, contents, strict=True)])


def _ids(container: Any, count: int) -> list[int]:
    if not isinstance(container, MapProto):
        return list(range(count))
    ids = list(container.keys)
    if container.key_type != TensorProto.INT64 or len(ids) != count or len(set(ids)) != count:
        raise PayloadError(f"a map of {count} pages with {len(set(ids))} INT64 keys; each page needs a key of its own")
    last = _IDS_PER_PAGE * (count + 1)
    if not all(0 <= number < last for number in ids):
        raise PayloadError(f"the keys {min(ids)} to {max(ids)} of a map of {count} pages; ids of pages are 0 to {last - 1} here")
    return ids


def _quantized(sequence: Any, quantizations: Quantizations) -> Iterator[tuple[Format, np.ndarray]]:
    for finding in page_findings(sequence, quantizations, "sequence"):
        raise PayloadError(str(finding))
    for value in sequence.quantized_tensor_values:
        inline = value.HasField("quantization") and not value.HasField("quantized_type")
        format = quantizations.inline(value.quantization) if inline else quantizations[value.quantized_type]
        yield format, np.frombuffer(value.raw_data, np.uint8)


def _plain(values: Any, spec: PageSpec) -> Iterator[tuple[Format, np.ndarray]]:
    if spec.elem_type not in PLAIN_PAGES:
        raise PayloadError(f"pages that are tensors of element type {spec.elem_type}; expected FLOAT, FLOAT16 or BFLOAT16")
    for number, value in enumerate(values):
        if value.data_type != spec.elem_type or tuple(value.dims) != spec.dims:
            raise PayloadError(
                f"page {number}: is of element type {value.data_type} and dims {list(value.dims)}; all pages of a container are "
                f"of {spec.elem_type} and {list(spec.dims)}"
            )
        array = np.ascontiguousarray(tensor_array(value, DataRoot(None), f"page {number}"))
        yield page_format(PLAIN_PAGES[spec.elem_type], 1), array.reshape(-1).view(np.uint8)


def write(table: PageTable, model: Any, name: str, keyed: bool, plain: bool) -> Any:
    """The message of a table: a MapProto of the ids in use where ``keyed``, else a SequenceProto of all."""
    sequence = SequenceProto(elem_type=SequenceProto.TENSOR if plain else SequenceProto.QUANTIZED_TENSOR)
    held = TypeProto.Tensor if plain else TypeProto.QuantizedTensor
    kind = held(elem_type=table.spec.elem_type)
    for dim in table.spec.dims:
        kind.shape.dim.add(dim_value=dim)
    (sequence.value_type.tensor_type if plain else sequence.value_type.quantized_tensor_type).CopyFrom(kind)
    ids = [number for number in range(len(table)) if not keyed or not table.missing(number)]
    for number in ids:
        page, content = table[number], table[number].data.tobytes()
        if plain:
            if page.format.name != PLAIN_PAGES.get(table.spec.elem_type):
                raise PageError(f"page {number}: has format {page.format.name}, which no ordinary tensor has; save it quantized")
            sequence.tensor_values.add(data_type=table.spec.elem_type, dims=table.spec.dims, raw_data=content)
        else:
            index = declare_quantization(model, page.format, table.spec.elem_type)
            sequence.quantized_tensor_values.append(
                QuantizedTensorProto(dims=table.spec.dims, raw_data=content, n_bytes=page.nbytes, quantized_type=index)
            )
    if keyed:
        return MapProto(name=name, key_type=TensorProto.INT64, keys=ids, values=sequence)
    sequence.name = name
    return sequence
