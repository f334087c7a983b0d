"""Nodes without a native kernel: each becomes a step of its own, and neighbours become one onnxruntime region."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tenonnx.errors import UnsupportedError
from tenonnx.plan.builder import Builder
from tenonnx.plan.draft import DraftStep, Value
from tenonnx.plan.inplace import updated
from tenonnx.schema.domains import DOMAIN


def leave(builder: Builder, position: int, node: Any) -> None:
    """Leave a node to onnxruntime, its operands dense, its results in the plan's own storage."""
    label = builder.label(node)
    if node.domain == DOMAIN:
        raise UnsupportedError(f"{label}: this use of {node.op_type} has no kernel; its inputs are {list(node.input)}")
    aliased, checks = updated(builder, node, label)
    names = [name for name in node.input if name]
    for child in builder.scope.children.get(position, {}).values():
        names += [name for name in child.captured if name in builder.env]
    inputs: list[Value | None] = [builder.dense(builder.value(name)) for name in dict.fromkeys(names)]
    for value in inputs:
        if value is not None and value.owner.pages:
            raise UnsupportedError(
                f"{label}: reads {value.owner.name!r}, a table of pages, which only PagedCacheUpdate and PagedAttention do"
            )
    results = [aliased.get(index) or builder.output(node, index) for index, name in enumerate(node.output) if name]
    made = [name for name in node.output if name]
    ports = (tuple(dict.fromkeys(names)), tuple(made))
    builder.step(None, label, inputs, results, nodes=(position,), names=ports, parallel=False, after=checks)
    for name, result in zip(made, results, strict=True):
        builder.env[name] = result


class _Group:
    """Steps that become one region, and the storage that they touch."""

    def __init__(self, step: DraftStep) -> None:
        self.steps: list[DraftStep] = []
        self._made: set[str] = set()
        self._written: set[int] = set()
        self._read: set[int] = set()
        self.add(step)

    def add(self, step: DraftStep) -> None:
        self.steps.append(step)
        self._made.update(step.names[1])
        self._written.update(id(value.owner) for value in step.outputs)
        self._read.update(id(value.owner) for value in step.inputs if value is not None)

    def admits(self, step: DraftStep) -> bool:
        """Whether a step may run in one region with those before it.

        Not when it reads, under a name of its own, storage that the group makes: that must be in the plan's memory. And a
        cache is updated in a region that reads it nowhere else, as onnxruntime may order a reader of the old name either way.
        """
        last = self.steps[-1]
        if step.kernel is not None or last.kernel is not None or (step.guards, step.dry) != (last.guards, last.dry):
            return False
        own = [(name, value.owner) for name, value in zip(step.names[0], step.inputs, strict=True) if value is not None]
        if any(id(owner) in self._written and (owner.mutable or name not in self._made) for name, owner in own):
            return False
        updated = {id(value.owner) for value in step.outputs if value.owner.mutable}
        return updated.isdisjoint(self._written) and updated.isdisjoint(self._read)


def merged(steps: list[DraftStep], results: list[Value]) -> list[DraftStep]:
    """Neighbouring onnxruntime steps as one region each; what only the region itself reads stays inside it."""
    groups: list[_Group] = []
    for step in steps:
        if groups and groups[-1].admits(step):
            groups[-1].add(step)
        else:
            groups.append(_Group(step))
    readers = Counter(id(value.owner) for step in steps for value in step.reads)
    readers.update(id(value.owner) for value in results)
    return [group.steps[0] if len(group.steps) == 1 else _region(group.steps, readers) for group in groups]


def _region(group: list[DraftStep], readers: Counter[int]) -> DraftStep:
    inside = Counter(id(value.owner) for step in group for value in step.inputs if value is not None)
    read_outside = {owner for owner, count in readers.items() if count > inside[owner]}
    made = {name for step in group for name in step.names[1]}
    inputs = {name: value for step in group for name, value in zip(step.names[0], step.inputs, strict=True) if name not in made}
    outputs = {
        name: value
        for step in group
        for name, value in zip(step.names[1], step.outputs, strict=True)
        if id(value.owner) in read_outside or value.owner.mutable
    }
    region = DraftStep(None, " + ".join(step.label for step in group), list(inputs.values()), list(outputs.values()))
    region.after = [check for step in group for check in step.after]
    region.guards, region.loop, region.dry = group[0].guards, group[0].loop, group[0].dry
    region.nodes = tuple(node for step in group for node in step.nodes)
    region.names = (tuple(inputs), tuple(outputs))
    for value in outputs.values():
        others = (step for step in value.owner.writers[value.version] if step not in group)
        value.owner.writers[value.version] = [region, *others]
    return region
