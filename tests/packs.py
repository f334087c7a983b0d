"""A small model whose weights are stored packed: five formats, read by MatMul and Gather, their bytes in a file beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tenonnx import Session, load, save
from tenonnx.compiled import store
from tenonnx.schema.messages import AttributeProto, ModelProto
from tenonnx.structs import catalogue, declare

COLUMNS = 64
WEIGHTS = {"a": ("Q4_1", 40), "b": ("Q8_0", 9), "c": ("F16", 8), "d": ("Q4_0", 17), "e": ("F32", 3), "f": ("BF16", 1)}
PACKED = 6  # weights that kernels read packed


def write(path: Path, seed: int = 0, *, external: bool = True) -> Path:
    """Write the model; ``weights.bin`` holds its weights unless they stay inline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    model: Any = ModelProto(ir_version=10)
    for domain, version in (("", 24), ("tenonnx", 1)):
        model.opset_import.add(domain=domain, version=version)
    graph = model.graph
    graph.name = "packs"
    _info(graph.input.add(name="x"), 1, ["n", COLUMNS])
    _info(graph.input.add(name="ids"), 7, ["k"])
    data = b""
    for name, (format_name, rows) in WEIGHTS.items():
        format = catalogue[format_name]
        payload = format.encode(rng.standard_normal((rows, COLUMNS)).astype(np.float32)).tobytes()
        value = graph.struct_initializer.add(name=name, type=declare(model, format, (rows, COLUMNS)))
        if external:
            for key, text in (("location", "weights.bin"), ("offset", str(len(data))), ("length", str(len(payload)))):
                value.external_data.add(key=key, value=text)
            data += payload
        else:
            value.raw_data = payload
        graph.node.add(op_type="StructDecode", domain="tenonnx", input=[name], output=[f"{name}.decoded"])
        transpose = graph.node.add(op_type="Transpose", input=[f"{name}.decoded"], output=[f"{name}.t"])
        transpose.attribute.add(name="perm", type=AttributeProto.INTS, ints=[1, 0])
        graph.node.add(op_type="MatMul", input=["x", f"{name}.t"], output=[f"{name}.y"])
        _info(graph.output.add(name=f"{name}.y"), 1, ["n", rows])
    graph.node.add(op_type="Gather", input=["b.decoded", "ids"], output=["rows"])
    _info(graph.output.add(name="rows"), 1, ["k", COLUMNS])
    if external:
        (path.parent / "weights.bin").write_bytes(data)
    save(model, path)
    return path


def built(path: Path, seed: int = 0, **options: Any) -> Path:
    """The model with its packs."""
    write(path, seed)
    store.build(path, **options)
    return path


def side(path: Path) -> Path:
    """The one payload file of a model."""
    (found,) = path.parent.glob(f"{path.name}.*.packs")
    return found


def run(session: Session) -> dict[str, bytes]:
    """The bits of every output for fixed inputs."""
    x = np.random.default_rng(7).standard_normal((3, COLUMNS)).astype(np.float32)
    return {name: array.tobytes() for name, array in session.run({"x": x, "ids": np.array([8, 0, 3])}).items()}


def kinds(session: Session) -> list[str]:
    return [verdict.kind for verdict in session.packs]


def edit(path: Path, change: Any) -> Path:
    """The model with ``change(model)`` made to it."""
    model = load(path)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def _info(value: Any, elem_type: int, dims: list[int | str]) -> None:
    value.type.tensor_type.elem_type = elem_type
    for dim in dims:
        if isinstance(dim, int):
            value.type.tensor_type.shape.dim.add(dim_value=dim)
        else:
            value.type.tensor_type.shape.dim.add(dim_param=dim)
