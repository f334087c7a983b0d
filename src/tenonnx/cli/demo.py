"""tenonnx demo: the storage contract on the specification's model example."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tenonnx.cli.common import command, fail, prose

if TYPE_CHECKING:
    import numpy as np

BATCH, HEADS, CAPACITY, HEAD_SIZE = 1, 3, 1024, 64


def cache_model() -> Any:
    """The specification's example: a READ_WRITE cache, updated in place by one node, returned under another name."""
    from tenonnx.schema.messages import ModelProto, TensorProto, ValueAliasProto, ValueInfoProto

    model = ModelProto(ir_version=11, producer_name="tenonnx")
    model.opset_import.add(domain="tenonnx", version=1)
    graph = model.graph
    graph.name = "cache_example"

    def declare(values: Any, name: str, elem_type: int, dims: list[int | str]) -> Any:
        value = values.add(name=name)
        value.type.tensor_type.elem_type = elem_type
        value.type.tensor_type.shape.SetInParent()
        for dim in dims:
            value.type.tensor_type.shape.dim.add(**({"dim_value": dim} if isinstance(dim, int) else {"dim_param": dim}))
        return value

    cache_dims: list[int | str] = [2, "batch", "heads", "max_length", "head_size"]
    declare(graph.input, "cache", TensorProto.FLOAT16, cache_dims).access = ValueInfoProto.READ_WRITE
    declare(graph.input, "values", TensorProto.FLOAT16, [2, "batch", "heads", "new_length", "head_size"])
    declare(graph.input, "position", TensorProto.INT64, [])
    node = graph.node.add(op_type="CacheUpdate", domain="tenonnx", name="update")
    node.input.extend(["cache", "values", "position"])
    node.output.append("updated_cache")
    node.output_alias.add(output_index=0, input_index=0, kind=ValueAliasProto.MUST_ALIAS)
    declare(graph.output, "updated_cache", TensorProto.FLOAT16, cache_dims).alias_of = "cache"
    return model


@command("tenonnx demo")
def demo() -> None:
    """Show the storage contract. A small model is declared, run in place, measured and refused; no download."""
    import numpy as np

    from tenonnx.cache import writable
    from tenonnx.runtime import Session, ledger

    session = Session(cache_model())
    cache = np.zeros((2, BATCH, HEADS, CAPACITY, HEAD_SIZE), np.float16)
    values = np.ones((2, BATCH, HEADS, 3, HEAD_SIZE), np.float16)
    allocated, before = ledger()["cache"]["total"], cache.copy()

    def run(storage: Any, position: int) -> np.ndarray:
        feeds = {"cache": storage, "values": values, "position": np.array(position, np.int64)}
        updated: np.ndarray = session.run(feeds)["updated_cache"]
        return updated

    updated = run(writable(cache), 5)
    changed = np.flatnonzero((before != cache).any(axis=(0, 1, 2, 4)))
    written = np.count_nonzero(before != cache) * cache.itemsize
    grown = ledger()["cache"]["total"] - allocated
    kept, plain, frozen = cache.copy(), cache.copy(), cache.copy()
    frozen.flags.writeable = False
    overflow = _refusal(lambda: run(writable(cache), CAPACITY - 1))
    not_writable = _refusal(lambda: run(plain, 5))
    read_only = _refusal(lambda: run(writable(frozen), 5))
    harmed = sum(np.count_nonzero(array != kept) for array in (cache, plain, frozen)) * cache.itemsize
    for title, line in (
        ("declared", f"cache: FLOAT16{list(cache.shape)}, READ_WRITE; {cache.nbytes:,} bytes"),
        ("", "CacheUpdate(cache, values, position) -> updated_cache; output 0 MUST_ALIAS input 0"),
        ("address", f"{_address(cache):#x} bound as cache"),
        ("", f"{_address(updated):#x} returned as updated_cache: {_same(cache, updated)}"),
        ("written", f"{written:,} of {cache.nbytes:,} bytes: positions {changed.min()} to {changed.max()}, all else unchanged"),
        ("ledger", f"{grown:,} cache bytes allocated by the run"),
        ("refused", f"overflow: {overflow}"),
        ("", f"plain array: {not_writable}"),
        ("", f"read-only array: {read_only}"),
        ("", f"{harmed} bytes changed by the three"),
    ):
        print(prose(f"{title:9} {line}", indent=10))


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _same(bound: np.ndarray, returned: np.ndarray) -> str:
    if _address(bound) != _address(returned):
        fail("the demonstration found a broken contract: the updated cache lies elsewhere")
    return "the same"


def _refusal(call: Callable[[], object]) -> str:
    """The error that ``call`` raises, by its type and message."""
    from tenonnx.errors import TenonnxError

    try:
        call()
    except TenonnxError as error:
        return f"{type(error).__name__}: {error}"
    fail("the demonstration found a broken contract: a run that has to be refused went through")
