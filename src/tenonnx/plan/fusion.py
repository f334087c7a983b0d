"""Steps joined where that saves a pass over memory, or a meeting of threads.

Each fusion is a rewrite of steps over the same values, under a condition that its function states, and gives the same bits
as the steps that it replaces. What joins a step moves it to where its only reader stands, so it must read nothing that a
step between the two could overwrite: no cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from tenonnx.errors import OptionError
from tenonnx.plan.draft import DraftStep, Value, identity
from tenonnx.plan.types import Storage

_MAX_HEAD = 512  # elements of a row that rotary_update holds, as in native/kernels/rotary.cpp
_FLOATS = (1, 10, 16)  # FLOAT, FLOAT16, BFLOAT16: the element types of caches that it writes


class _Steps:
    """Steps while they are being rewritten, and who reads what."""

    def __init__(self, steps: list[DraftStep], results: list[Value]) -> None:
        self._steps: list[DraftStep | None] = list(steps)
        self._places = {id(step): number for number, step in enumerate(steps)}
        self._readers: dict[int, set[int]] = {}
        for step in steps:
            for value in step.reads:
                self._readers.setdefault(id(value.owner), set()).add(id(step))
        kept = [*results, *(value for step in steps if step.loop is not None for pair in step.loop.carried for value in pair)]
        self._kept = {id(value.owner) for value in kept}

    def following(self, first: DraftStep | None = None) -> Iterator[DraftStep]:
        """The steps from ``first`` on, as they are when their turn comes."""
        begin = 0 if first is None else self._places[id(first)]
        for number in range(begin, len(self._steps)):
            step = self._steps[number]
            if step is not None:
                yield step

    def maker(self, value: Value | None, reader: DraftStep) -> DraftStep | None:
        """The step whose first output ``value`` is, whole and in order, if ``reader`` alone reads it and could do its work."""
        if value is None or value.owner.storage is not Storage.ARENA or id(value.owner) in self._kept:
            return None
        makers = [step for steps in value.owner.writers.values() for step in steps]
        if len(makers) != 1 or self._readers[id(value.owner)] != {id(reader)} or not _whole(value):
            return None
        (maker,) = makers
        moves = id(maker) in self._places and maker.outputs[0].owner is value.owner and _whole(maker.outputs[0])
        return maker if moves and _alike(maker, reader) and _reads_no_cache(maker) else None

    def join(self, parts: list[DraftStep], made: DraftStep, place: DraftStep) -> None:
        """Put ``made`` where ``place`` stands, instead of ``parts``."""
        number, gone = self._places[id(place)], {id(part) for part in parts}
        for part in gone:
            self._steps[self._places.pop(part)] = None
        self._steps[number] = made
        self._places[id(made)] = number
        for value in made.reads:
            readers = self._readers[id(value.owner)]
            self._readers[id(value.owner)] = (readers - gone) | {id(made)}
        for value in made.outputs:
            value.owner.writers[value.version] = [made]


def _whole(value: Value) -> bool:
    """Whether a value shows all bytes of its storage in order."""
    return value.offset == 0 and value.contiguous and value.size * value.itemsize == value.owner.nbytes


def _alike(one: DraftStep, other: DraftStep) -> bool:
    """Whether two steps run in the same runs and trips."""
    same = one.loop is other.loop and not one.dry and not other.dry
    return same and [(identity(v), e) for v, e in one.guards] == [(identity(v), e) for v, e in other.guards]


def _reads_no_cache(step: DraftStep) -> bool:
    return not any(value is not None and value.owner.mutable for value in step.inputs)


def _is_product(step: DraftStep | None) -> bool:
    """Whether a step multiplies activations by one weight, with nothing added."""
    return step is not None and (step.kernel or "").startswith("matmul_") and len(step.inputs) == 2 and not step.floats


def _labels(*steps: DraftStep) -> str:
    return " + ".join(step.label for step in steps)


def _gate(steps: _Steps, step: DraftStep) -> None:
    """swish(x · A) times (x · B): both products and their gate in one step, if neither product is read elsewhere."""
    if step.kernel != "swish_mul" or not _whole(step.outputs[0]):
        return
    gate, up = (steps.maker(value, step) for value in step.inputs)
    if gate is None or up is None or gate is up or not (_is_product(gate) and _is_product(up)):
        return
    if gate.kernel != up.kernel or gate.ints != up.ints or _key(gate) != _key(up):
        return
    rows = gate.outputs[0]
    out = step.outputs[0].view(rows.dims, rows.strides, step.outputs[0].name)
    made = replace(
        gate, label=_labels(gate, up, step), inputs=[*gate.inputs, up.inputs[1]], outputs=[out], floats=step.floats,
        ints=(*gate.ints, up.ints[0]),
    )  # fmt: skip
    steps.join([gate, up, step], made, step)


def _residual(steps: _Steps, step: DraftStep) -> None:
    """A product plus what it is added to, in one step, if the sum has the product's elements in their order."""
    total = step.outputs[0] if step.kernel == "add" else None
    if total is None or total.elem_type != 1 or not _whole(total):
        return
    for index in (1, 0):
        product, addend = steps.maker(step.inputs[index], step), step.inputs[1 - index]
        if product is None or addend is None or not _is_product(product) or addend.owner is product.outputs[0].owner:
            continue
        rows = product.outputs[0]
        addend = addend.reshaped(rows.dims, addend.name) if addend.dims == total.dims else None
        if addend is None or (addend.dims[1] > 1 and addend.strides[1] != 1):
            continue
        made = replace(
            product, label=_labels(product, step), inputs=[*product.inputs, addend],
            outputs=[total.view(rows.dims, rows.strides, total.name)], reuse=(2,) if 1 - index in step.reuse else (),
        )  # fmt: skip
        steps.join([product, step], made, step)
        return


def _key(step: DraftStep) -> tuple[object, ...]:
    """What products have in common that one step can make: kernel, activations, and the arguments but for the rows."""
    x = step.inputs[0]
    return step.kernel, None if x is None else identity(x), step.ints[1:]


def _projections(steps: _Steps, step: DraftStep) -> None:
    """Products of the same activations by several weights, if all else that they read is constant, in one step.

    Only those between which no other activations are multiplied: their results would all be held at once.
    """
    if not _joins(step):
        return
    parts: list[DraftStep] = []
    for other in steps.following(step):
        if _joins(other) and _key(other) == _key(step) and _alike(other, step):
            parts.append(other)
        elif (other.kernel or "").startswith("matmul_") and parts:
            break
    if len(parts) < 2:
        return
    addends = [part.inputs[2] if len(part.inputs) > 2 else None for part in parts]
    made = replace(
        step, label=_labels(*parts), outputs=[part.outputs[0] for part in parts],
        inputs=[step.inputs[0], *(part.inputs[1] for part in parts), *(addends if any(addends) else [])],
        ints=(*step.ints, *(part.ints[0] for part in parts[1:])), reuse=(),
    )  # fmt: skip
    steps.join(parts, made, step)


def _joins(step: DraftStep) -> bool:
    """Whether a step is one product by one weight, perhaps with a constant added, that may stand where the others do."""
    if not (step.kernel or "").startswith("matmul_") or step.floats or len(step.outputs) != 1 or not _reads_no_cache(step):
        return False
    return all(value is None or value.owner.storage is Storage.INITIALIZER for value in step.inputs[1:])


def _norm(steps: _Steps, step: DraftStep) -> None:
    """RMSNormalization to 8-bit rows at once, if all its readers take those, of the width that was normalized."""
    rows = step.inputs[0]
    maker = steps.maker(rows, step) if step.kernel == "quantize_rows" else None
    if maker is not None and maker.kernel == "rms_norm" and rows is not None and rows.dims[-1] == maker.outputs[0].dims[-1]:
        made = replace(
            maker, kernel="rms_norm_rows", label=_labels(maker, step), outputs=[step.outputs[0], *maker.outputs[1:]],
            parallel=maker.parallel or step.parallel,
        )  # fmt: skip
        steps.join([maker, step], made, step)


def _rotary(steps: _Steps, step: DraftStep) -> None:
    """Keys rotated as they are written into a cache [batch, heads, positions, head], if nothing else reads them, and their heads
    and tokens stand in the cache as they were rotated.
    """
    if step.kernel != "cache_update" or step.ints != (2, 0) or len(step.outputs[0].dims) != 4:
        return
    cache, values, position = step.inputs
    if values is None or cache is None or cache.elem_type not in _FLOATS or cache.strides[3] != 1:
        return
    maker = steps.maker(values.first(), step)
    if maker is None or maker.kernel != "rotary" or values.dims[3] > _MAX_HEAD:
        return
    x, cos, sin = maker.inputs
    interleaved, heads, rotated = maker.ints
    x = None if x is None else _by_heads(values, maker.outputs[0], x, heads)
    if x is None:
        return
    made = replace(
        step, kernel="rotary_update", inputs=[cache, x, position, cos, sin], ints=(2, 0, interleaved, rotated),
        parallel=maker.parallel or step.parallel,
    )  # fmt: skip
    steps.join([maker, step], made, step)


def _by_heads(rows: Value, rotated: Value, x: Value, heads: int) -> Value | None:
    """What was rotated, as [batch, heads, n, head], if ``rows`` shows the result in this order; None for any other view of it."""
    if len(rotated.dims) == 4:
        return x if _shows(rows, rotated.dims, rotated.strides) else None
    batch, count, hidden = rotated.dims
    size = hidden // heads if heads else 0
    dims, strides = (batch, heads, count, size), (count * hidden, size, hidden, 1)
    if x.strides[2] != 1 or not _shows(rows, dims, strides):
        return None
    return x.view(dims, (x.strides[0], size, x.strides[1], 1), x.name)


def _shows(value: Value, dims: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether a view has these dimensions, and these strides along all that have more than one element."""
    same = all(dim == 1 or have == want for dim, have, want in zip(dims, value.strides, strides, strict=True))
    return value.dims == dims and value.offset == 0 and same


FUSIONS: dict[str, Callable[[_Steps, DraftStep], None]] = {
    "gate": _gate,
    "residual": _residual,
    "projections": _projections,
    "norm": _norm,
    "rotary": _rotary,
}


def chosen(fusions: str | Collection[str]) -> tuple[str, ...]:
    """The names of fusions that "all", "none", or some of their names stand for; ``OptionError`` for another."""
    if isinstance(fusions, str):
        names: Collection[str] = {"all": tuple(FUSIONS), "none": ()}.get(fusions, (fusions,))
    else:
        names = fusions if isinstance(fusions, Collection) else (fusions,)
    for name in names:
        if name not in FUSIONS:
            raise OptionError(f"fusions: {name!r} is no fusion; expected all, none, or some of {', '.join(FUSIONS)}")
    return tuple(name for name in FUSIONS if name in names)


def fused(steps: list[DraftStep], results: list[Value], fusions: Collection[str]) -> list[DraftStep]:
    """The steps with those fusions made that their conditions allow."""
    rewriting = _Steps(steps, results)
    for name in fusions:
        for step in rewriting.following():
            FUSIONS[name](rewriting, step)
    return list(rewriting.following())
