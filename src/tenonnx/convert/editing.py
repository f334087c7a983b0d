"""A main graph under rewriting: who makes and reads a value, new nodes and constants, and everything put in order again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tenonnx.dtypes import of_numpy
from tenonnx.errors import CheckError
from tenonnx.schema.graph import Scope
from tenonnx.schema.messages import AttributeProto, NodeProto, ValueAliasProto, ValueInfoProto
from tenonnx.shapes import SymTensor

NESTED = -1  # the slot of a reader whose body, not itself, reads the value


class Editor:
    """The nodes of a model's main graph as a set that may change; ``finish`` writes them back.

    Nodes are messages of the model and may be edited where they are, but for the names that they read and define: those go
    through ``redirect`` and ``rename_output``, which keep the index right.
    """

    def __init__(self, model: Any) -> None:
        scope = Scope(model.graph)  # refuses a graph that is not in order
        self.model = model
        self.graph = model.graph
        self.inputs: dict[str, Any] = {value.name: value for value in model.graph.input}
        self.outputs: dict[str, Any] = {value.name: value for value in model.graph.output}
        self.initializers: dict[str, Any] = dict(scope.initializers)
        self.nodes: list[Any] = list(scope.nodes)
        self._captured = {
            id(node): {name for child in scope.children.get(position, {}).values() for name in child.captured}
            for position, node in enumerate(self.nodes)
        }
        self._makers: dict[str, Any] = {}
        self._readers: dict[str, list[tuple[Any, int]]] = {}
        for node in self.nodes:
            self._index(node)
        self._read_before = set(self._readers)
        self._names = {*self._makers, *self.inputs, *self.initializers, *scope.structs}

    def _index(self, node: Any) -> None:
        for slot, name in enumerate(node.input):
            if name:
                self._readers.setdefault(name, []).append((node, slot))
        for name in self._captured.get(id(node), ()):
            self._readers.setdefault(name, []).append((node, NESTED))
        for name in node.output:
            if name:
                self._makers[name] = node

    # ---- Reading

    def maker(self, name: str, op: str = "") -> Any | None:
        """The node that defines a value (and is of operator ``op``), or None."""
        node = self._makers.get(name)
        return node if node is not None and op in ("", node.op_type) else None

    def readers(self, name: str) -> list[tuple[Any, int]]:
        """Every (node, slot) that reads a value; slot ``NESTED`` for one in a node's body."""
        return list(self._readers.get(name, ()))

    def sole_reader(self, name: str) -> tuple[Any, int] | None:
        """The one reader of a value that is read once and is no output, else None."""
        found = self._readers.get(name, ())
        return found[0] if len(found) == 1 and name not in self.outputs else None

    def array(self, name: str) -> np.ndarray | None:
        """The content of an initializer or Constant that lies in the model itself, or None."""
        from onnx import numpy_helper

        from tenonnx.schema.messages import to_onnx

        tensor = self.initializers.get(name)
        maker = self.maker(name, "Constant")
        if maker is not None:
            value = maker.attribute[0]
            if value.name in ("value_int", "value_ints", "value_float", "value_floats"):
                kind = np.int64 if value.name.startswith("value_int") else np.float32
                content: Any = {
                    "value_int": value.i,
                    "value_ints": value.ints,
                    "value_float": value.f,
                    "value_floats": value.floats,
                }
                return np.array(content[value.name], kind)
            tensor = value.t if value.name == "value" else None
        if tensor is None or tensor.external_data:
            return None
        return numpy_helper.to_array(to_onnx(tensor))

    # ---- Changing

    def fresh(self, name: str) -> str:
        """``name``, or it with a number where the graph has it already."""
        found, number = name, 1
        while found in self._names:
            number += 1
            found = f"{name}.{number}"
        self._names.add(found)
        return found

    def add(self, op: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> str:
        """A node of one output; returns the output's name, made fresh."""
        output = self.fresh(output)
        self.insert(make_node(op, inputs, [output], domain, **attributes))
        return output

    def insert(self, node: Any) -> None:
        """A node whose outputs nobody else defines."""
        for name in node.output:
            if name in self._makers:
                raise CheckError(f"value {name!r}: is defined twice by a rewriting; this is a fault of tenonnx, report it")
            self._names.add(name)
        self.nodes.append(node)
        self._index(node)

    def constant(self, name: str, array: np.ndarray) -> str:
        """A small initializer; equal ones of the same name are one."""
        kept = self.array(name) if name in self.initializers else None
        if kept is not None and kept.dtype == array.dtype and np.array_equal(kept, array):
            return name
        name = self.fresh(name)
        kind = of_numpy(array.dtype, name).number
        self.initializers[name] = self.graph.initializer.add(
            name=name, data_type=kind, dims=array.shape, raw_data=array.tobytes()
        )
        return name

    def ints(self, *values: int) -> str:
        """INT64[n]."""
        return self.constant("ints." + "_".join(str(value) for value in values), np.array(values, np.int64))

    def shorten(self, types: Mapping[str, SymTensor]) -> None:
        """Let who reads what a node only passes on (Identity, a Cast to the same type, a Concat of one) read its source."""
        for node in list(self.nodes):
            if node.domain not in ("", "ai.onnx") or not self._passes_on(node, types):
                continue
            self.redirect(node.output[0], node.input[0])
            if node.output[0] not in self.outputs and not self.readers(node.output[0]):
                self.remove(node)

    def _passes_on(self, node: Any, types: Mapping[str, SymTensor]) -> bool:
        if node.op_type == "Cast":
            source = types.get(node.input[0])
            return source is not None and any(entry.name == "to" and entry.i == source.elem_type for entry in node.attribute)
        return node.op_type == "Identity" or (node.op_type == "Concat" and len(node.input) == 1)

    def redirect(self, old: str, new: str, readers: Iterable[tuple[Any, int]] | None = None) -> None:
        """Let the readers of ``old`` (all of them, or those given) read ``new``; bodies keep what they capture."""
        for node, slot in self.readers(old) if readers is None else list(readers):
            if slot == NESTED:
                continue
            node.input[slot] = new
            self._readers[old] = [entry for entry in self._readers[old] if entry[0] is not node or entry[1] != slot]
            self._readers.setdefault(new, []).append((node, slot))

    def remove(self, node: Any) -> None:
        """Drop a node; what it defined may be defined anew."""
        self.nodes = [kept for kept in self.nodes if kept is not node]
        for name in node.output:
            if self._makers.get(name) is node:
                del self._makers[name]
        for name in {*node.input, *self._captured.get(id(node), ())}:
            if name:
                self._readers[name] = [entry for entry in self._readers[name] if entry[0] is not node]

    def add_input(self, name: str, elem_type: int, dims: Sequence[int | str]) -> str:
        """A graph input, its name made fresh."""
        name = self.fresh(name)
        value = self.graph.input.add(name=name)
        set_dims(value, elem_type, dims)
        self.inputs[name] = value
        return name

    def finish(self) -> list[str]:
        """Write the nodes back in order, without what no output needs: other nodes, initializers, inputs that are read no more.

        Returns the names of those inputs.
        """
        ordered = self._ordered()
        read = {name for node in ordered for name in (*node.input, *self._captured.get(id(node), ()))}
        read.update(self.outputs)
        gone = [name for name in self.inputs if name in self._read_before and name not in read]
        kept = [value for value in self.graph.input if value.name not in gone]
        del self.graph.input[:]
        self.graph.input.extend(kept)
        del self.graph.node[:]
        self.graph.node.extend(ordered)
        for values in (self.graph.initializer, self.graph.struct_initializer):
            for position in reversed(range(len(values))):
                if values[position].name not in read:
                    del values[position]
        made = {name for node in ordered for name in node.output}
        for position in reversed(range(len(self.graph.value_info))):
            if self.graph.value_info[position].name not in made:
                del self.graph.value_info[position]
        return gone

    def _ordered(self) -> list[Any]:
        """Needed nodes, each after what it reads, otherwise in the order in which they were."""
        done: dict[int, Any] = {}
        entered: set[int] = set()
        needed = self.needed()
        pending = [node for node in reversed(self.nodes) if id(node) in needed]
        while pending:
            node = pending[-1]
            makers = (self._makers.get(name) for name in (*node.input, *self._captured.get(id(node), ())))
            before = [maker for maker in makers if maker is not None and id(maker) not in done]
            if id(node) in done or not before:
                done.setdefault(id(pending.pop()), node)
                continue
            entered.add(id(node))
            if any(id(maker) in entered for maker in before):
                raise CheckError(f"node {node.name or node.op_type}: needs its own result; such a graph computes nothing")
            pending += before
        return list(done.values())

    def needed(self) -> set[int]:
        """Ids of the nodes that some output needs."""
        pending = [self._makers[name] for name in self.outputs if name in self._makers]
        needed: set[int] = set()
        while pending:
            node = pending.pop()
            if id(node) in needed:
                continue
            needed.add(id(node))
            names = (*node.input, *self._captured.get(id(node), ()))
            pending += [self._makers[name] for name in names if name in self._makers]
        return needed


def make_node(op: str, inputs: Sequence[str], outputs: Sequence[str], domain: str = "", **attributes: Any) -> Any:
    """A NodeProto named after its first output; attributes are ints, floats, texts or lists of ints."""
    node = NodeProto(op_type=op, name=outputs[0], domain=domain, input=inputs, output=outputs)
    for name, value in attributes.items():
        if isinstance(value, int):
            node.attribute.add(name=name, type=AttributeProto.INT, i=value)
        elif isinstance(value, float):
            node.attribute.add(name=name, type=AttributeProto.FLOAT, f=value)
        elif isinstance(value, str):
            node.attribute.add(name=name, type=AttributeProto.STRING, s=value.encode())
        else:
            node.attribute.add(name=name, type=AttributeProto.INTS, ints=value)
    return node


def declare_alias(node: Any, output: int, source: int) -> None:
    """Let output ``output`` of a node share the storage of its input ``source``, once."""
    if not any(entry.output_index == output and entry.input_index == source for entry in node.output_alias):
        node.output_alias.add(output_index=output, input_index=source, kind=ValueAliasProto.MUST_ALIAS)


def make_writable(value: Any) -> None:
    """Declare a graph input READ_WRITE."""
    value.access = ValueInfoProto.READ_WRITE


def set_dims(value: Any, elem_type: int, dims: Sequence[int | str | None]) -> None:
    """Declare a value as a tensor."""
    value.type.tensor_type.elem_type = elem_type
    shape = value.type.tensor_type.shape
    shape.ClearField("dim")
    shape.SetInParent()
    for dim in dims:
        entry = shape.dim.add()
        if isinstance(dim, int):
            entry.dim_value = dim
        elif dim:
            entry.dim_param = dim


def set_metadata(model: Any, key: str, value: str) -> None:
    """Set one of a model's metadata_props."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)
