"""Nodes without a native kernel: each becomes a step of its own, and neighbours become one onnxruntime region."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tenonnx.errors import UnsupportedError
from tenonnx.plan.builder import Builder
from tenonnx.plan.draft import DraftStep, Value
from tenonnx.shapes.skeleton import DOMAIN


def foreign(builder: Builder, position: int, node: Any) -> None:
    """Leave a node to onnxruntime, its operands dense, its results in the plan's own storage."""
    label = builder.label(node)
    if node.domain == DOMAIN:
        raise UnsupportedError(f"{label}: this use of {node.op_type} has no kernel; its inputs are {list(node.input)}")
    aliased = [name for name in node.output if builder.aliases.source(name) is not None]
    if aliased:
        raise UnsupportedError(
            f"{label}: output {aliased[0]!r} must alias an input, but the node has no native kernel that writes in place"
        )
    names = [name for name in node.input if name]
    for child in builder.scope.children.get(position, {}).values():
        names += [name for name in child.captured if name in builder.env]
    inputs: list[Value | None] = [builder.dense(builder.value(name)) for name in dict.fromkeys(names)]
    results = [builder.output(node, index) for index, name in enumerate(node.output) if name]
    made = [name for name in node.output if name]
    builder.step(
        None, label, inputs, results, nodes=(position,), names=(tuple(dict.fromkeys(names)), tuple(made)), parallel=False
    )
    for name, result in zip(made, results, strict=True):
        builder.env[name] = result


def merged(steps: list[DraftStep], results: list[Value]) -> list[DraftStep]:
    """Neighbouring onnxruntime steps as one region each; what only the region itself reads stays inside it."""
    regions: list[list[DraftStep]] = []
    for step in steps:
        if step.kernel is None and regions and regions[-1][-1].kernel is None and not _reads_view_of(step, regions[-1]):
            regions[-1].append(step)
        else:
            regions.append([step])
    readers = Counter(id(value.owner) for step in steps for value in step.inputs if value is not None)
    readers.update(id(value.owner) for value in results)
    return [group[0] if len(group) == 1 else _region(group, readers) for group in regions]


def _reads_view_of(step: DraftStep, group: list[DraftStep]) -> bool:
    """Whether a step reads, under a name of its own, storage that the group makes: then it must be in the plan's memory."""
    made = {name for other in group for name in other.names[1]}
    written = {id(value.owner) for other in group for value in other.outputs}
    return any(
        value is not None and id(value.owner) in written and name not in made
        for name, value in zip(step.names[0], step.inputs, strict=True)
    )


def _region(group: list[DraftStep], readers: Counter[int]) -> DraftStep:
    inside = Counter(id(value.owner) for step in group for value in step.inputs if value is not None)
    read_outside = {owner for owner, count in readers.items() if count > inside[owner]}
    made = {name for step in group for name in step.names[1]}
    inputs = {name: value for step in group for name, value in zip(step.names[0], step.inputs, strict=True) if name not in made}
    outputs = {
        name: value
        for step in group
        for name, value in zip(step.names[1], step.outputs, strict=True)
        if id(value.owner) in read_outside
    }
    region = DraftStep(None, " + ".join(step.label for step in group), list(inputs.values()), list(outputs.values()))
    region.nodes = tuple(node for step in group for node in step.nodes)
    region.names = (tuple(inputs), tuple(outputs))
    for value in outputs.values():
        value.owner.writers[value.version] = region
    return region
