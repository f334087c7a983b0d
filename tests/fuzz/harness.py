"""Runs a fuzz target: with atheris where it is installed, which steers by coverage, else by mutations of the seeds.

A target takes bytes and may raise nothing but ``TenonnxError``: any other exception, a crash, a hang or memory without end
is a defect, and what caused it is written to a file to run again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

try:
    import atheris
except ImportError:
    atheris = None

Target = Callable[[bytes], None]
LIMIT_MB, LIMIT_SECONDS = 2048, 10  # of one input


def instrumented() -> AbstractContextManager[None]:
    """Modules of this package that are imported within tell atheris which of their lines run."""
    return atheris.instrument_imports(include=["tenonnx"]) if atheris else contextlib.nullcontext()


with instrumented():
    from tenonnx.errors import TenonnxError


def answered(target: Target) -> Target:
    """The target, with what it refuses on purpose taken for an answer."""

    def run(data: bytes) -> None:
        with contextlib.suppress(TenonnxError):
            target(data)

    return run


def mutated(seeds: Sequence[bytes], source: random.Random) -> bytes:
    """A seed with some bytes changed, removed, repeated, or taken from another seed."""
    data = bytearray(source.choice(seeds))
    for _ in range(source.randint(1, 6)):
        at, size = source.randint(0, len(data)), min(source.choice((1, 1, 2, 4, 8, 64)), len(data))
        other = source.choice(seeds)
        cut = source.randint(0, len(other))
        kind = source.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            data[at : at + size] = source.choice((b"\xff", b"\x00", b"\x7f", b"\x80")) * size
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = other[cut : cut + size]
        else:
            data[at:at] = data[at : at + size]
    return bytes(data)


def mutate(target: Target, seeds: Sequence[bytes], seconds: float, count: float = float("inf"), seed: int = 0) -> int:
    """Runs the seeds and then mutations of them until time or count is up; gives the number of inputs."""
    source, end, runs = random.Random(seed), time.monotonic() + seconds, 0
    for data in seeds:
        target(data)
    while runs < count and time.monotonic() < end:
        data = mutated(seeds, source)
        runs += 1
        try:
            target(data)
        except Exception:
            Path(f"crash-{runs}").write_bytes(data)
            print(f"input written to crash-{runs}", file=sys.stderr)
            raise
    return runs


def main(target: Target, seeds: Sequence[bytes]) -> None:
    """The command of one fuzz target: ``--seconds N``, or the names of files to run again."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--unsteered", action="store_true", help="mutate seeds, where an allocator of another kind stands")
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args()
    run = answered(target)
    for file in options.files:
        run(file.read_bytes())
    if options.files:
        return
    if atheris is None or options.unsteered:
        print(f"{mutate(run, seeds, options.seconds)} mutations ran clean")
        return
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(seeds):
            Path(corpus, f"seed-{number}").write_bytes(seed)
        limits = [
            f"-max_total_time={options.seconds}",
            f"-rss_limit_mb={LIMIT_MB}",
            f"-timeout={LIMIT_SECONDS}",
            "-max_len=65536",
        ]
        atheris.Setup([sys.argv[0], *limits, corpus], run)
        atheris.Fuzz()
