"""Small decoders in the node patterns that exporters write, and the same steps through whoever runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tenonnx import Session, convert
from tenonnx.convert.portable import portable
from tenonnx.convert.report import Findings

VOCABULARY = 11


@dataclass
class Export:
    """A decoder of attention layers alone, its caches grown by Concat."""

    batch: int | str = "batch"
    q_heads: int = 6
    kv_heads: int = 2
    head: int = 8
    layers: int = 2
    opset: int = 23
    spelled_out: bool = False  # MatMul → Softmax → MatMul for the Attention operator
    mask: str = "causal"  # or padding, window, none
    scores: bool = False  # the mask as FLOAT 0 and lowest
    scale_keys: bool = False
    past_symbol: str = "past_length"
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(7)

    # ---- Pieces

    def node(self, op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, array: Any) -> str:
        if all(tensor.name != name for tensor in self.weights):
            self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant("i" + "_".join(map(str, values)), np.array(values, np.int64))

    def weight(self, name: str, *dims: int) -> str:
        return self.constant(name, (self._random.standard_normal(dims) / np.sqrt(dims[0])).astype(np.float32))

    # ---- The graph

    def build(self) -> onnx.ModelProto:
        width = self.q_heads * self.head
        past = [
            helper.make_tensor_value_info(
                f"past.{layer}.{part}", TensorProto.FLOAT, [self.batch, self.kv_heads, self.past_symbol, self.head]
            )
            for layer in range(self.layers)
            for part in ("key", "value")
        ]
        total = f"{self.past_symbol} + n"
        present = [
            helper.make_tensor_value_info(
                value.name.replace("past", "present"), TensorProto.FLOAT, [self.batch, self.kv_heads, total, self.head]
            )
            for value in past
        ]
        inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [self.batch, "n"])]
        if self.mask == "padding":
            inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [self.batch, "s53"]))
        mask = self._mask()
        x = self.node("Gather", [self.weight("embedding", VOCABULARY, width), "input_ids"], "x")
        for layer in range(self.layers):
            x = self._layer(x, layer, mask)
        self.node("Identity", [x], "y")
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [self.batch, "n", width]), *present]
        graph = helper.make_graph(self.nodes, "export", [*inputs, *past], outputs, self.weights)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", self.opset)])

    def _layer(self, x: str, layer: int, mask: str) -> str:
        width, to = self.q_heads * self.head, f"layer.{layer}"
        parts = []
        for part, heads in (("query", self.q_heads), ("key", self.kv_heads), ("value", self.kv_heads)):
            rows = self.node("MatMul", [x, self.weight(f"{to}.{part}.w", width, heads * self.head)], f"{to}.{part}.rows")
            split = self.node("Reshape", [rows, self.ints(0, -1, heads, self.head)], f"{to}.{part}.split")
            parts.append(self.node("Transpose", [split], f"{to}.{part}", perm=[0, 2, 1, 3]))
        query, key, value = parts
        key = self.node("Concat", [f"past.{layer}.key", key], f"present.{layer}.key", axis=-2)
        value = self.node("Concat", [f"past.{layer}.value", value], f"present.{layer}.value", axis=2)
        y = self.attend(query, self.repeated(key), self.repeated(value), mask, to)
        turned = self.node("Transpose", [y], f"{to}.turned", perm=[0, 2, 1, 3])
        flat = self.node("Reshape", [turned, self.ints(0, -1, width)], f"{to}.flat")
        mixed = self.node("MatMul", [flat, self.weight(f"{to}.out.w", width, width)], f"{to}.out")
        return self.node("Tanh", [mixed], f"{to}.y")

    def repeated(self, value: str) -> str:
        group = self.q_heads // self.kv_heads
        if group == 1:
            return value
        opened = self.node("Unsqueeze", [value, self.ints(2)], f"{value}.opened")
        ones = [self.ints(1), self.ints(self.kv_heads), self.ints(group), self.ints(1), self.ints(self.head)]
        shape = self.node("Concat", ones, f"{value}.wide", axis=0)
        wide = self.node("Expand", [opened, shape], f"{value}.expanded")
        return self.node("Reshape", [wide, self.ints(0, self.q_heads, -1, self.head)], f"{value}.repeated")

    def attend(self, query: str, key: str, value: str, mask: str, to: str) -> str:
        scale = 1 / np.sqrt(self.head)
        if not self.spelled_out:
            inputs = [query, key, value, *([mask] if mask else [])]
            return self.node("Attention", inputs, f"{to}.attended", scale=float(scale))
        turned = self.node("Transpose", [key], f"{to}.key.turned", perm=[0, 1, 3, 2])
        if self.scale_keys:
            turned = self.node("Mul", [turned, self.constant("half", np.float32(0.5))], f"{to}.key.halved")
            scale *= 2
        scores = self.node("MatMul", [query, turned], f"{to}.scores")
        scores = self.node("Div", [scores, self.constant("root", np.float32(1 / scale))], f"{to}.scaled")
        if mask:
            scores = self.node("Add", [scores, mask], f"{to}.masked")
        weights = self.node("Softmax", [scores], f"{to}.weights", axis=-1)
        return self.node("MatMul", [weights, value], f"{to}.attended")

    def _mask(self) -> str:
        """BOOL or FLOAT [1 or batch, 1, n, past + n], as transformers spells it."""
        if self.mask == "none":
            return ""
        zero, one = self.constant("zero", np.int64(0)), self.constant("one", np.int64(1))
        new = self.node("Squeeze", [self.node("Shape", ["input_ids"], "new.dim", start=1, end=2)], "new")
        past = self.node("Squeeze", [self.node("Shape", [f"past.{self.layers - 1}.key"], "p.dim", start=2, end=3)], "p")
        total = self.node("Add", [past, new], "total")
        queries = self.node("Add", [self.node("Range", [zero, new, one], "arange.n"), past], "queries")
        positions = self.node("Range", [zero, total, one], "arange.total")
        column = self.node("Unsqueeze", [queries, self.ints(0, 1, 3)], "column")
        row = self.node("Unsqueeze", [positions, self.ints(0, 1, 2)], "row")
        mask = self.node("LessOrEqual", [row, column], "mask.causal")
        if self.mask == "window":
            near = self.node("Greater", [row, self.node("Sub", [column, self.constant("three", np.int64(3))], "edge")], "near")
            mask = self.node("And", [mask, near], "mask.window")
        if self.mask == "padding":
            flags = self.node("Cast", ["attention_mask"], "flags", to=TensorProto.BOOL)
            spread = self.node("Unsqueeze", [flags, self.ints(1, 2)], "flags.spread")
            mask = self.node("And", [mask, spread], "mask.padding")
        if not self.scores and not self.spelled_out:
            return mask
        lowest = self.constant("lowest", np.float32(np.finfo(np.float32).min))
        return self.node("Where", [mask, self.constant("nothing", np.float32(0)), lowest], "mask.scores")


def converted(model: onnx.ModelProto, folder: Path, **aliases: str) -> tuple[Any, Findings]:
    """The model as ``tenonnx convert`` makes it, and what it found."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    made, _, findings = convert.from_onnx(path, aliases)
    return made, findings


Step = Callable[[dict[str, np.ndarray]], np.ndarray]


def original(model: onnx.ModelProto, batch: int) -> Step:
    """Steps of the export itself in onnxruntime, each feeding the presents of the one before."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    outputs = [value.name for value in session.get_outputs()]
    past = {}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            past[value.name] = np.zeros((batch, value.shape[1], 0, value.shape[3]), np.float32)

    def step(feeds: dict[str, np.ndarray]) -> np.ndarray:
        results = dict(zip(outputs, session.run(None, {**feeds, **past}), strict=True))
        past.update({name: results[name.replace("past", "present")] for name in past})
        return results["y"]

    return step


def in_tenonnx(model: Any, batch: int, capacity: int) -> Step:
    session = Session(model, threads=2)
    cache = session.new_cache(context=capacity, dims={"batch": batch})

    def step(feeds: dict[str, np.ndarray]) -> np.ndarray:
        return np.array(session.run(feeds, cache=cache)["y"])

    return step


def in_onnxruntime(model: Any, batch: int, capacity: int) -> Step:
    """Steps of the converted model's portable form: nothing in place, everything copied."""
    stock = onnx.ModelProto.FromString(portable(model, Path()).SerializeToString())
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(stock.SerializeToString(), options)
    outputs = [value.name for value in session.get_outputs()]
    caches = {
        value.name: np.full((batch, value.shape[1], capacity, value.shape[3]), 1e3, np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    length = 0

    def step(feeds: dict[str, np.ndarray]) -> np.ndarray:
        nonlocal length
        given = {**feeds, "position": np.array(length, np.int64)}
        results = dict(zip(outputs, session.run(None, {**given, **caches}), strict=True))
        caches.update({name: results[name.replace("past", "present")] for name in caches})
        length += feeds["input_ids"].shape[1]
        return results["y"]

    return step
