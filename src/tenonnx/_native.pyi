from typing import TypedDict

import numpy as np

TensorRow = tuple[int, int, list[int], list[int]]  # address, element type, dims, strides in elements
Fault = tuple[int, int, int, int, int]  # code, found, low, high, where

class Account(TypedDict):
    bytes: int
    peak: int
    allocations: int
    total: int

def run_kernel(
    name: str,
    inputs: list[TensorRow | None],
    outputs: list[TensorRow],
    ints: list[int] = ...,
    floats: list[float] = ...,
    threads: int = 0,
    isa: str = "",
) -> Fault | None: ...
def host_isa() -> str: ...
def has_kernel(name: str, isa: str = "") -> bool: ...
def default_threads() -> int: ...
def ledger() -> dict[str, Account]: ...
def reset_peaks() -> None: ...

class Buffer:
    def __init__(self, bytes: int, purpose: str) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def array(self) -> np.ndarray: ...

class Lease:
    def bind(self, slots: np.ndarray) -> None: ...  # UINT64[slots]
    def addresses(self, values: np.ndarray) -> bytes: ...  # INT32[n] -> UINT64[n]
    def taken(self, step: int) -> bool: ...
    def count(self, step: int) -> int: ...
    def execute(self, first: int, last: int, threads: int) -> tuple[int, int, int, int, int, int] | None: ...
    def close(self) -> None: ...

class Arenas:
    def __init__(self) -> None: ...

class Program:
    def __init__(
        self,
        values: list[tuple],
        steps: list[tuple],
        arena_bytes: int,
        slot_bytes: list[int],
        isa: str = "",
        arenas: Arenas | None = None,
    ) -> None: ...
    def lease(self) -> Lease: ...
