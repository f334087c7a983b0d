"""The bytes behind a plan's fixed values: mapped from their file or packs, packed at load, or decoded where nothing packs."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tenonnx.cache import Extent, extent
from tenonnx.codecs import Decoder
from tenonnx.compiled import Packs, apart, as_packed, pack, tensor_content, wanted
from tenonnx.errors import PayloadError, UnsupportedError
from tenonnx.plan import Planner, WeightKey
from tenonnx.plan.nbits import payload
from tenonnx.runtime.progress import late_bar
from tenonnx.schema.external import DataRoot
from tenonnx.schema.payload import is_external, struct_payload, tensor_array
from tenonnx.structs import nbytes

_COPIED = 64 << 10  # bytes of a small initializer: the kernel maps as much around one page that is touched
_KEPT_PAGES = 8 << 20  # bytes packed, after which the pages of their sources are given back


class Weights:
    """Fixed values of one session by (name, layout); each exists once, for all plans and runs."""

    def __init__(self, planner: Planner, root: DataRoot, threads: int, formats: str, packs: Packs) -> None:
        self._planner = planner
        self._root = root
        self._packs = packs
        self._threads = threads
        self._formats = formats
        self._decode = Decoder(planner.model, root, threads)
        self._arrays: dict[WeightKey, np.ndarray] = {}
        self._made: WeakValueDictionary[WeightKey, np.ndarray] = WeakValueDictionary()  # alive while a plan has them
        self._in_order: list[Extent] = []  # of the arrays, by address; empty where they are to be sorted
        self._furthest: list[int] = []  # the largest end among the extents up to each
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}
        self.decoded_bytes = 0  # of weights that map to no compute layout
        self._wanted = wanted(planner) | apart(planner)
        if formats == "strict":
            for name, weight in planner.weights.items():
                if weight.layout is None and name in planner.index.main.structs:
                    raise _undecoded(name)
        missing = {name: want for name, want in self._wanted.items() if name not in packs.arrays}
        with late_bar("packing weights", sum(want.nbytes for want in missing.values())) as done:
            touched = 0
            for name, want in self._wanted.items():
                self.array(WeightKey(name, want.layout.name))
                if name in missing:
                    done(want.nbytes)
                    touched += want.nbytes
                if touched > _KEPT_PAGES:
                    root.release()
                    touched = 0
        root.release()

    def array(self, key: WeightKey) -> np.ndarray:
        """The value's bytes, made on first use."""
        with self._lock:
            if key not in self._arrays:
                made = self._make(key)
                made.flags.writeable = False
                self._arrays[key] = made
                self._in_order = []
            return self._arrays[key]

    def made(self, keys: Iterable[WeightKey]) -> dict[WeightKey, np.ndarray]:
        """Those of the values that plans make once that are there."""
        with self._lock:
            found = {key: self._made.get(key) for key in keys}
        return {key: array for key, array in found.items() if array is not None}

    def keep(self, arrays: Mapping[WeightKey, np.ndarray]) -> dict[WeightKey, np.ndarray]:
        """Share what a plan has made, for as long as one plan has it; the arrays to use, these or others' of before."""
        with self._lock:
            return {key: self._made.setdefault(key, array) for key, array in arrays.items()}

    def release(self) -> None:
        """Give back the pages of sources that were read; what runs read of them comes back as it is touched."""
        self._root.release()

    def forget(self, keys: Iterable[WeightKey]) -> None:
        """Let go of values that were read to make others, but for packed ones, which are there for all plans."""
        with self._lock:
            packed = {WeightKey(name, want.layout.name) for name, want in self._wanted.items()}
            for key in set(keys) - packed:
                self._arrays.pop(key, None)
            self._in_order = []

    def _placed(self) -> list[Extent]:
        """The arrays' extents by address, sorted again after one has come or gone."""
        if len(self._in_order) != len(self._arrays):
            self._in_order = sorted((extent(key.name, array) for key, array in self._arrays.items()), key=_begin)
            self._furthest = list(accumulate((part.end for part in self._in_order), max))
        return self._in_order

    @property
    def nbytes(self) -> int:
        """Bytes that they take as kernels read them."""
        with self._lock:
            made = sum(array.nbytes for array in self._made.values())
        return made + sum(part.end - part.begin for part in self._placed())

    def overlapping(self, other: Extent) -> Extent | None:
        """A fixed value, which no run may write, that shares bytes with ``other``; None where there is none."""
        with self._lock:
            in_order = self._placed()
            count = bisect_left(in_order, other.end, key=_begin)
            if count == 0 or self._furthest[count - 1] <= other.begin:
                return None
            return next((part for part in in_order[:count] if part.overlaps(other)), None)

    def _make(self, key: WeightKey) -> np.ndarray:
        scope = self._planner.index.main
        want = self._wanted.get(key.name)
        if want is not None and want.layout.name == key.layout and key.name in self._packs.arrays:
            return self._packs.arrays[key.name]
        if key.layout == "tensor":
            return self._tensor(scope.initializers[key.name])
        blocks = self._planner.blocks.get(key.name)
        if blocks is not None:
            return self._packed(key, payload(blocks, lambda name: tensor_array(scope.initializers[name], self._root)))
        if key.name in scope.initializers:
            return self._packed(key, tensor_content(scope.initializers[key.name], self._root))
        value = scope.structs[key.name]
        stored = self._payload(value)
        return self._dense(value, stored) if key.layout == "dense" else self._packed(key, stored)

    def _tensor(self, tensor: Any) -> np.ndarray:
        """An initializer as it stands: mapped, or copied where a page or more would be mapped for its few bytes."""
        array = tensor_array(tensor, self._root)
        if is_external(tensor) and array.nbytes <= _COPIED:
            array = array.copy()
            self._root.release()
        return array

    def _payload(self, value: Any) -> np.ndarray:
        """The payload, of exactly the length that its type says."""
        if value.type not in self._sizes:
            self._sizes[value.type] = nbytes(self._planner.model.struct_types[value.type], self._planner.model.struct_types)
        payload, expected = struct_payload(value, self._root), self._sizes[value.type]
        if payload.size != expected:
            kind = self._planner.model.struct_types[value.type].name or f"struct_types[{value.type}]"
            raise PayloadError(
                f"struct value {value.name!r}: {kind} takes {expected} bytes, found {payload.size}; convert the model again"
            )
        return payload

    def _packed(self, key: WeightKey, stored: np.ndarray) -> np.ndarray:
        want = as_packed(self._planner.weights[key.name])
        if want is None or want.layout.name != key.layout:
            raise UnsupportedError(f"initializer {key.name!r} does not repack to layout {key.layout!r}")
        return pack(stored, self._planner.formats[key.name], want, self._threads, self._root.release)

    def _dense(self, value: Any, payload: np.ndarray) -> np.ndarray:
        if self._formats == "strict":
            raise _undecoded(value.name)
        decoded = np.ascontiguousarray(self._decode(value), np.float32)
        self.decoded_bytes += decoded.nbytes
        return decoded


def _undecoded(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"struct value {name!r} maps to no compute layout and would be decoded to FLOAT at load; "
        'open the session with formats="any" to allow it'
    )


def _begin(part: Extent) -> int:
    return part.begin
