"""Strategies for shapes, and for views of awkward strides over ordinary arrays."""

import numpy as np
from hypothesis import strategies as st

SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33])


@st.composite
def shapes(draw, min_rank=0, max_rank=4):
    return tuple(draw(st.lists(SIZES, min_size=min_rank, max_size=max_rank)))


@st.composite
def views(draw, shape, dtype, unit_last=False):
    """An uninitialized array of the shape: dims in any order of strides, with gaps between elements."""
    order = draw(st.permutations(range(len(shape))))
    if unit_last and shape:
        order = [axis for axis in order if axis != len(shape) - 1] + [len(shape) - 1]
    gaps = [draw(st.sampled_from([0, 0, 1, 3])) for _ in shape]
    if unit_last and shape:
        gaps[-1] = 0
    base = np.zeros([shape[axis] + gaps[axis] for axis in order], dtype)
    step = 1 if unit_last or not shape else draw(st.sampled_from([1, 1, 2]))
    if step == 2:
        base = np.zeros([*base.shape, 2], dtype)[..., 0]
    view = base.transpose(np.argsort(order)) if shape else base
    return view[(*(slice(0, size) for size in shape), ...)]


def surroundings(view: np.ndarray) -> np.ndarray:
    """The whole buffer under a view."""
    base = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base
