"""Random graphs for hypothesis: elementwise, views, movement, regions, and caches with old-name readers.

Numbers are small integers, so that every engine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.models import BOOL, FLOAT, INT64, Graph

Shape = tuple[int, ...]


@dataclass
class Case:
    """A model and what to run it on; ``mutable`` names the inputs to be bound as writable."""

    graph: Graph = field(default_factory=Graph)
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    mutable: list[str] = field(default_factory=list)
    updates: list[tuple[str, int, int]] = field(default_factory=list)  # cache, first and last row written


class Growing:
    """Adds one random node after another; ``pool`` holds the FLOAT values that nodes may read."""

    def __init__(self, draw: st.DrawFn, engines: bool) -> None:
        self.draw, self.case, self.engines = draw, Case(), engines
        self.pool: dict[str, Shape] = {}
        self.rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        self.count = 0
        self.inner: Graph | None = None  # the body that nodes now go to

    @property
    def g(self) -> Graph:
        return self.inner or self.case.graph

    @contextmanager
    def body(self) -> Iterator[Graph]:
        """Nodes added meanwhile go to a body, whose values nobody outside sees."""
        outer, pool = self.inner, dict(self.pool)
        self.inner = Graph()
        try:
            yield self.inner
        finally:
            self.inner, self.pool = outer, pool

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def numbers(self, shape: Shape) -> np.ndarray:
        return self.rng.integers(-3, 4, shape).astype(np.float32)

    def pick(self, least_rank: int = 0, most: int = 300) -> tuple[str, Shape] | None:
        fits = [name for name, shape in self.pool.items() if len(shape) >= least_rank and np.prod(shape) <= most]
        if not fits:
            return None
        # The last values are the likely ones, so that graphs grow deep as well as wide.
        name = self.draw(st.sampled_from(fits[-4:] if self.draw(st.booleans()) else fits))
        return name, self.pool[name]

    def add_input(self, shape: Shape, symbolic: bool = False) -> str:
        name = self.name("in")
        dims = [f"{name}_{axis}" for axis in range(len(shape))] if symbolic else list(shape)
        self.case.graph.input(name, FLOAT, dims)
        self.case.inputs[name] = self.numbers(shape)
        self.pool[name] = shape
        return name

    def made(self, op: str, inputs: list[str], shape: Shape, **attributes: object) -> str:
        name = self.g.node(op, inputs, self.name("v"), **attributes)
        self.pool[name] = shape
        return name

    def ints(self, *values: int) -> str:
        return self.g.constant(self.name("k"), np.array(values, np.int64))

    # ---- One random node each

    def unary(self) -> None:
        name, shape = self.pick() or ("", ())
        ops = ["Neg", "Abs", "Relu", "Identity"] + (["Sign", "Ceil", "Floor"] if self.engines else [])
        if name:
            self.made(self.draw(st.sampled_from(ops)), [name], shape)

    def binary(self) -> None:
        a = self.pick()
        if a is None:
            return
        fits = [name for name, shape in self.pool.items() if _broadcast(shape, a[1]) is not None]
        b = self.draw(st.sampled_from(fits))
        shape = _broadcast(self.pool[b], a[1])
        ops = ["Add", "Sub", "Mul"] + (["Max", "Min"] if self.engines else [])
        if shape is not None and np.prod(shape) <= 3000:
            pair = [a[0], b] if self.draw(st.booleans()) else [b, a[0]]
            self.made(self.draw(st.sampled_from(ops)), pair, shape)

    def where(self) -> None:
        name, shape = self.pick() or ("", ())
        if not name:
            return
        op = self.draw(st.sampled_from(["Less", "GreaterOrEqual", "Equal"]))
        mask = self.g.node(op, [name, self.zero(shape)], self.name("m"))
        if self.draw(st.booleans()):
            mask = self.g.node("Not", [mask], self.name("m"))
        self.made("Where", [mask, name, self.zero(shape)], shape)

    def zero(self, shape: Shape) -> str:
        dims = self.draw(st.sampled_from([(), (1,)])) if shape else ()
        return self.g.constant(self.name("k"), np.zeros(dims, np.float32))

    def transpose(self) -> None:
        name, shape = self.pick(1) or ("", ())
        if name:
            perm = self.draw(st.permutations(range(len(shape))))
            self.made("Transpose", [name], tuple(shape[axis] for axis in perm), perm=perm)

    def reshape(self) -> None:
        name, shape = self.pick() or ("", ())
        if not name:
            return
        how = self.draw(st.sampled_from(["flat", "column", "unsqueeze", "squeeze", "merge"]))
        size = int(np.prod(shape))
        if how == "flat":
            self.made("Reshape", [name, self.ints(size)], (size,), allowzero=1)
        elif how == "column":
            self.made("Reshape", [name, self.ints(size, 1)], (size, 1), allowzero=1)
        elif how == "unsqueeze" and len(shape) < 5:
            axis = self.draw(st.integers(0, len(shape)))
            self.made("Unsqueeze", [name, self.ints(axis)], (*shape[:axis], 1, *shape[axis:]))
        elif how == "squeeze" and 1 in shape:
            axis = shape.index(1)
            self.made("Squeeze", [name, self.ints(axis)], (*shape[:axis], *shape[axis + 1 :]))
        elif how == "merge" and len(shape) > 1 and size:
            axis = self.draw(st.integers(0, len(shape)))
            dims = int(np.prod(shape[:axis])), int(np.prod(shape[axis:]))
            self.made("Flatten", [name], dims, axis=axis)

    def expand(self) -> None:
        name, shape = self.pick(most=60) or ("", ())
        if name:
            dims = [3 if dim == 1 else dim for dim in shape]
            dims = [2, *dims] if self.draw(st.booleans()) and len(dims) < 5 else dims
            self.made("Expand", [name, self.ints(*dims)], tuple(dims))

    def slice(self) -> None:
        name, shape = self.pick(1) or ("", ())
        if not name:
            return
        axis = self.draw(st.integers(0, len(shape) - 1))
        step = self.draw(st.sampled_from([1, 1, 2, 3, -1, -2] if self.engines else [1, 2, 3]))
        beyond = step > 0  # the standard and NumPy clamp a start before the first element differently when going backwards
        start, end = (self.draw(st.integers(-shape[axis] - beyond, shape[axis] + beyond)) for _ in range(2))
        size = len(range(*slice(start, end, step).indices(shape[axis])))
        dims = (*shape[:axis], size, *shape[axis + 1 :])
        self.made("Slice", [name, *(self.ints(value) for value in (start, end, axis - len(shape), step))], dims)

    def split(self) -> None:
        name, shape = self.pick(1) or ("", ())
        if not name:
            return
        axis = self.draw(st.integers(0, len(shape) - 1))
        first = self.draw(st.integers(0, shape[axis]))
        parts = [first, shape[axis] - first]
        outputs = [self.name("v") for _ in parts]
        self.g.node("Split", [name, self.ints(*parts)], *outputs, axis=axis)
        for output, part in zip(outputs, parts, strict=True):
            self.pool[output] = (*shape[:axis], part, *shape[axis + 1 :])

    def concat(self) -> None:
        name, shape = self.pick(1) or ("", ())
        if not name:
            return
        axis = self.draw(st.integers(0, len(shape) - 1))
        others = [
            other
            for other, dims in self.pool.items()
            if len(dims) == len(shape) and all(i == axis or a == b for i, (a, b) in enumerate(zip(dims, shape, strict=True)))
        ]
        parts = [name, *self.draw(st.lists(st.sampled_from(others), min_size=1, max_size=3))]
        total = sum(self.pool[part][axis] for part in parts)
        self.made("Concat", parts, (*shape[:axis], total, *shape[axis + 1 :]), axis=axis)

    def gather(self) -> None:
        name, shape = self.pick(1) or ("", ())
        if not name:
            return
        axis = self.draw(st.integers(0, len(shape) - 1))
        dims = self.draw(st.sampled_from([(), (1,), (3,), (2, 2)])) if shape[axis] else (0,)
        index = self.rng.integers(-shape[axis], max(1, shape[axis]), dims)
        result = (*shape[:axis], *dims, *shape[axis + 1 :])
        if len(result) <= 6 and np.prod(result) <= 3000:
            self.made("Gather", [name, self.g.constant(self.name("k"), np.array(index, np.int64))], result, axis=axis)

    def cast(self) -> None:
        name, shape = self.pick() or ("", ())
        if name:
            half = self.g.node("Cast", [name], self.name("h"), to=self.draw(st.sampled_from([10, 11, 6, 7])))
            self.made("Cast", [half], shape, to=FLOAT)

    def grow(self, nodes: int) -> None:
        kinds = [self.unary, self.binary, self.where, self.transpose, self.reshape, self.expand]
        kinds += [self.slice, self.split, self.concat, self.gather, self.cast]
        for _ in range(nodes):
            self.draw(st.sampled_from(kinds))()

    def finish(self) -> Case:
        named = self.draw(st.lists(st.sampled_from(list(self.pool)), min_size=1, max_size=5, unique=True))
        for name in dict.fromkeys([*named, list(self.pool)[-1]]):
            self.g.output(name, FLOAT, None)
        return self.case


def _broadcast(a: Shape, b: Shape) -> Shape | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


SHAPES = st.lists(st.sampled_from([0, 1, 1, 2, 3, 5]), max_size=4).map(tuple)


@st.composite
def graphs(draw: st.DrawFn, engines: bool = True) -> Case:
    """Graphs without caches; ``engines`` mixes in operators that only onnxruntime has."""
    growing = Growing(draw, engines)
    for shape in draw(st.lists(SHAPES, min_size=1, max_size=3)):
        growing.add_input(shape, symbolic=draw(st.booleans()))
    growing.grow(draw(st.integers(1, 14)))
    return growing.finish()


Update = Callable[["Growing", str, dict[str, str]], None]


def _plain_update(growing: Growing, cache: str, tips: dict[str, str]) -> None:
    _update(growing, cache, tips)


@st.composite
def cached_graphs(draw: st.DrawFn, engines: bool = True, update: Update = _plain_update) -> Case:
    """Graphs with caches: chains of updates whose values may be made from the old content, and readers of every name."""
    growing = Growing(draw, engines)
    g, case = growing.g, growing.case
    growing.add_input(draw(SHAPES))
    tips: dict[str, str] = {}
    for number in range(draw(st.integers(1, 3))):
        cache = f"cache{number}"
        shape = (*draw(st.lists(st.integers(1, 3), max_size=2)), draw(st.integers(1, 9)), draw(st.integers(1, 4)))
        g.input(cache, FLOAT, list(shape), mutable=True)
        case.inputs[cache] = growing.numbers(shape)
        case.mutable.append(cache)
        growing.pool[cache] = shape
        tips[cache] = cache
    for _ in range(draw(st.integers(1, 4))):
        growing.grow(draw(st.integers(0, 4)))
        cache = draw(st.sampled_from(case.mutable))
        update(growing, cache, tips)
    growing.grow(draw(st.integers(0, 4)))
    for cache, tip in tips.items():
        if tip != cache:
            g.output(tip, FLOAT, list(case.inputs[cache].shape), alias_of=cache)
            growing.pool.pop(tip, None)
    return growing.finish()


def _update(growing: Growing, cache: str, tips: dict[str, str]) -> None:
    draw, g = growing.draw, growing.g
    shape = growing.case.inputs[cache].shape
    axis = draw(st.integers(0, len(shape) - 1))
    rows = draw(st.integers(0, shape[axis]))
    start = draw(st.integers(0, shape[axis] - rows))
    dims = (*shape[:axis], rows, *shape[axis + 1 :])
    fits = [name for name, have in growing.pool.items() if have == dims]
    if fits and draw(st.booleans()):
        values = draw(st.sampled_from(fits))
    elif draw(st.booleans()):  # rows of the cache itself, shifted
        values = growing.made("Slice", [tips[cache], growing.ints(0), growing.ints(rows), growing.ints(axis)], dims)
    else:
        values = growing.add_input(dims)
    position = growing.name("position")
    growing.case.graph.input(position, INT64, [])
    growing.case.inputs[position] = np.array(start, np.int64)
    updated = g.update(tips[cache], values, position, growing.name("updated"), axis=axis - draw(st.sampled_from([0, len(shape)])))
    growing.pool.pop(tips[cache])  # later readers need what was updated
    growing.pool[updated] = shape
    growing.case.updates.append((cache, axis, start, start + rows))
    tips[cache] = updated


def _update_by_function(growing: Growing, cache: str, tips: dict[str, str]) -> None:
    """Add(v, v), update and Neg(u) as a function of its own."""
    draw, model = growing.draw, growing.case.graph.model
    shape = growing.case.inputs[cache].shape
    axis = draw(st.integers(0, len(shape) - 1))
    rows = draw(st.integers(0, shape[axis]))
    values = growing.add_input((*shape[:axis], rows, *shape[axis + 1 :]))
    growing.case.graph.input(position := growing.name("position"), INT64, [])
    growing.case.inputs[position] = np.array(draw(st.integers(0, shape[axis] - rows)), np.int64)
    body = Graph()
    body.node("Add", ["v", "v"], "vv")
    body.update("c", "vv", "p", "u", axis=axis)
    body.node("Neg", ["u"], "n")
    name = f"Append{len(model.functions)}"
    function = model.functions.add(name=name, domain="local", input=["c", "v", "p"], output=["u", "n"])
    function.node.extend(body.body.node)
    function.opset_import.extend(body.model.opset_import)
    if not any(opset.domain == "local" for opset in model.opset_import):
        model.opset_import.add(domain="local", version=1)
    updated, negated = growing.name("updated"), growing.name("v")
    growing.g.node(name, [tips[cache], values, position], updated, negated, domain="local")
    growing.pool.pop(tips[cache])
    growing.pool |= {updated: shape, negated: shape}
    tips[cache] = updated


def _update_in_branches(growing: Growing, cache: str, tips: dict[str, str], depth: int = 0) -> None:
    """An If whose branches update the cache, or not, and give a value made from what they see."""
    draw = growing.draw
    old, flag = tips[cache], growing.name("flag")
    growing.case.graph.input(flag, BOOL, [])
    growing.case.inputs[flag] = np.array(draw(st.booleans()))
    bodies, ends = [], []
    for _ in range(2):
        with growing.body() as body:
            growing.grow(draw(st.integers(0, 2)))
            for _ in range(draw(st.integers(0, 2))):
                flow_update(growing, cache, tips, depth + 1)
            growing.grow(draw(st.integers(0, 3)))
            bodies.append(body)
            ends.append((tips[cache], dict(growing.pool)))
            tips[cache] = old
    shapes = sorted({*ends[0][1].values()} & {*ends[1][1].values()})
    shape = draw(st.sampled_from(shapes)) if shapes else None
    updated, value = growing.name("updated"), growing.name("v")
    for body, (tip, pool) in zip(bodies, ends, strict=True):
        body.output(tip, FLOAT, None)
        if shape is not None:
            caches = {*growing.case.mutable, *tips.values(), tip}
            fits = [name for name, have in pool.items() if have == shape and name not in caches and "updated" not in name]
            if not fits:
                fits = [body.constant(growing.name("k"), growing.numbers(shape))]
            body.output(draw(st.sampled_from(fits)), FLOAT, None)
    outputs = [updated] if shape is None else [updated, value]
    growing.g.holding("If", [flag], *outputs, then_branch=bodies[0], else_branch=bodies[1])
    growing.pool.pop(old)
    growing.pool[updated] = growing.case.inputs[cache].shape
    if shape is not None:
        growing.pool[value] = shape
    tips[cache] = updated


def _update_in_loop(growing: Growing, cache: str, tips: dict[str, str]) -> None:
    """A Loop that carries the cache and a sum, row position + i in trip i, ended by its count or by a condition.

    The count stands in the model, or comes at run time.
    """
    draw, main = growing.draw, growing.case.graph
    shape = growing.case.inputs[cache].shape
    axis = draw(st.integers(0, len(shape) - 1))
    trips = draw(st.integers(0, min(3, shape[axis])))
    rows = draw(st.integers(0, shape[axis] - max(0, trips - 1)))
    dims = (*shape[:axis], rows, *shape[axis + 1 :])
    values = growing.add_input(dims)
    position, last, begin = (growing.name(kind) for kind in ("position", "last", "begin"))
    for name, kind, value in (
        (position, INT64, draw(st.integers(0, shape[axis] - rows - max(0, trips - 1)))),
        (last, INT64, draw(st.integers(-1, 3))),
        (begin, BOOL, draw(st.booleans())),
    ):
        main.input(name, kind, [])
        growing.case.inputs[name] = np.array(value, bool if kind == BOOL else np.int64)
    known = draw(st.booleans())
    if known:
        count = growing.g.constant(growing.name("k"), np.array(trips, np.int64))
    else:
        count = main.input(growing.name("trips"), INT64, [])
        growing.case.inputs[count] = np.array(trips, np.int64)
    names = {kind: growing.name(kind) for kind in ("i", "go", "c", "s", "p", "next", "on")}
    with growing.body() as body:
        for kind, elem_type, size in (("i", INT64, ()), ("go", BOOL, ()), ("c", FLOAT, shape), ("s", FLOAT, dims)):
            body.input(names[kind], elem_type, list(size))
        growing.pool[names["s"]] = dims
        # The body reads what it carries or what was there before the loop: a value made of both would need both at once.
        if not known or draw(st.booleans()):  # the body stands there once: its trips find what they carry alone
            growing.pool[names["c"]] = growing.pool.pop(tips[cache])
        growing.grow(draw(st.integers(0, 3)))
        body.node("Add", [position, names["i"]], names["p"])
        fits = [name for name, have in growing.pool.items() if have == dims]
        body.node("Add", [names["s"], draw(st.sampled_from(fits))], names["next"])
        updated = body.update(names["c"], names["next"], names["p"], growing.name("updated"), axis=axis)
        ended = draw(st.booleans())
        body.node("Less" if ended else "Identity", [names["i"], last] if ended else [names["go"]], names["on"])
        for name, elem_type in ((names["on"], BOOL), (updated, FLOAT), (names["next"], FLOAT)):
            body.output(name, elem_type, None)
    outputs = growing.name("updated"), growing.name("v")
    growing.g.holding("Loop", [count, begin, tips[cache], values], *outputs, body=body)
    growing.pool.pop(tips[cache])
    growing.pool |= {outputs[0]: shape, outputs[1]: dims}
    tips[cache] = outputs[0]


def flow_update(growing: Growing, cache: str, tips: dict[str, str], depth: int = 0) -> None:
    """An update that stands in the graph itself, in a function, in branches or in a loop."""
    kinds: list[Update] = [_update, _update_by_function, _update_in_loop]
    if depth < 2:
        kinds.append(lambda *args: _update_in_branches(*args, depth))
    growing.draw(st.sampled_from(kinds))(growing, cache, tips)


__all__ = ["BOOL", "Case", "cached_graphs", "flow_update", "graphs"]
