"""What no input changes: steps over constants alone, which run once and for all rather than in every run."""

from __future__ import annotations

import hashlib
from typing import Any

from tenonnx.plan.draft import DraftStep, Owner, Value
from tenonnx.plan.types import Storage, WeightKey

ONCE = "once"  # the name of every such value; what tells it apart stands for the layout
SMALL = 64 << 10  # bytes that a result may take, whatever it is made from; a larger one must be no larger than its sources

_RANDOM = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)


class Constants:
    """The steps among ``steps`` that can run once, and the owners of what they make."""

    def __init__(self, steps: list[DraftStep], nodes: list[Any]) -> None:
        self._nodes = nodes
        self._keys: dict[int, str] = {}  # of what is made, by id(owner)
        self._sources: dict[int, dict[int, int]] = {}  # id(owner) -> bytes of each initializer that it is made from
        self._shaped: set[int] = set()  # owners of what depends on the shapes of the inputs
        self.steps: list[DraftStep] = []
        for step in steps:
            if self._is_constant(step):
                self.steps.append(step)
                self._note(step)

    def kept(self, steps: list[DraftStep], results: list[Value]) -> dict[int, Value]:
        """The made values, whole, that the other steps or the results read, by id(owner)."""
        once = {id(step) for step in self.steps}
        read = [value for step in steps if id(step) not in once for value in step.reads]
        return {id(value.owner): value.first() for value in (*read, *results) if id(value.owner) in self._keys}

    def key(self, value: Value) -> WeightKey:
        """The name under which a session keeps a made value: equal in all plans that make it in the same way."""
        return WeightKey(ONCE, self._keys[id(value.owner)])

    def _is_constant(self, step: DraftStep) -> bool:
        owners = [value.owner for value in step.outputs]
        if not owners or any(owner.storage is not Storage.ARENA or len(owner.writers) != 1 for owner in owners):
            return False
        if any(len(owner.writers.get(1, ())) != 1 for owner in owners):  # one in each branch of an If
            return False
        if step.guards and (step.kernel is None or step.after):  # it may fail where it should not have run
            return False
        if not all(self._is_fixed(value) for check in (step, *step.after) for value in check.inputs if value is not None):
            return False
        if step.kernel is None and not self._repeats(step):
            return False
        return sum(owner.nbytes for owner in owners) <= max(SMALL, sum(self._origins(step).values()))

    def _is_fixed(self, value: Value) -> bool:
        return value.owner.storage is Storage.INITIALIZER or id(value.owner) in self._keys

    def _repeats(self, step: DraftStep) -> bool:
        """Whether a node left to onnxruntime gives the same each time, as far as is known, and in plans for other shapes too.

        What is made of shapes stays in every run: a session of onnxruntime for each shape would cost more than it saves.
        """
        (node,) = (self._nodes[position] for position in step.nodes)
        standard = node.domain in ("", "ai.onnx") and node.op_type not in _RANDOM
        bodies = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        return standard and not bodies and not self._is_shaped(step)

    def _is_shaped(self, step: DraftStep) -> bool:
        return any(value.owner.of_shape or id(value.owner) in self._shaped for value in step.inputs if value is not None)

    def _origins(self, step: DraftStep) -> dict[int, int]:
        found: dict[int, int] = {}
        for value in step.inputs:
            if value is not None:
                found |= self._sources.get(id(value.owner), {id(value.owner): value.owner.nbytes})
        return found

    def _note(self, step: DraftStep) -> None:
        origins = self._origins(step)
        what = (step.kernel, step.ints, step.floats, step.nodes, *(self._content(value) for value in step.inputs))
        if self._is_shaped(step):
            self._shaped.update(id(value.owner) for value in step.outputs)
        for index, value in enumerate(step.outputs):
            shown = (index, value.elem_type, value.dims, value.strides, value.offset)
            self._sources[id(value.owner)] = origins
            self._keys[id(value.owner)] = hashlib.blake2b(repr((what, shown)).encode(), digest_size=16).hexdigest()

    def _content(self, value: Value | None) -> tuple[Any, ...]:
        if value is None:
            return ()
        return self._identity(value.owner), value.elem_type, value.dims, value.strides, value.offset

    def _identity(self, owner: Owner) -> Any:
        if owner.constant is not None:
            return str(owner.constant.dtype), hashlib.blake2b(owner.constant.tobytes()).hexdigest()
        return self._keys.get(id(owner), owner.weight)


def settle(value: Value, key: WeightKey) -> None:
    """Let what a constant step has made be to its readers what an initializer is."""
    value.owner.storage = Storage.INITIALIZER
    value.owner.weight = key
    value.owner.writers = {}


def unversioned(values: list[Value]) -> None:
    """Settled values show version 0 of their storage, as nothing writes it in a run."""
    for value in values:
        shown: Value | None = value
        while shown is not None and shown.owner.storage is Storage.INITIALIZER:
            shown.version = 0
            shown = shown.of
