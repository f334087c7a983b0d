"""Times what structured types cost: decoding known formats, unpacking fields, and viewing a mapped file.

    python benchmarks/structs.py [--megabytes 64] [--threads 1] [--repeat 5] [--json]

Needs the gguf package. Medians of calls that take turns, in one run: decode of `--megabytes` of random blocks with
`--threads` threads into memory of its own each time, beside the gguf package's NumPy; unpack of a packing of that size,
in MB/s of payload; a view of a mapped file of 1 GB and the memory it takes.
"""

import argparse
import json
import mmap
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gguf
import numpy as np
from rich.console import Console
from rich.table import Table

from tenonnx import _native, structs
from tenonnx.codecs import native
from tenonnx.structs import bits, catalogue, f16, structure, u8

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
PACKINGS = {
    "4-bit packing": (bits(lo=4, hi=4), 1),
    "4-bit codes, one component": (bits(q=4), 2),
    "4-bit blocks of Q4_0": (structure("", d=f16, qs=bits(lo=4, hi=4)[16]), 1 / 18),
    "3-bit packing": (bits(**{f"q{place}": 3 for place in range(8)}), 1 / 3),
    "3-bit codes, one component": (bits(q=3), 8 / 3),
    "3-bit blocks of 32": (structure("", d=f16, qs=bits(q=3)[32]), 1 / 14),
    "12-bit codes": (bits(q=12), 8 / 12),
}


def medians(repeat: int, **calls: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each call, in turns so that all see the same machine."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeat):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def decoding(name: str, size: int, threads: int, repeat: int) -> dict[str, Any]:
    fmt = catalogue[name]
    blocks = np.random.default_rng(0).integers(0, 256, (size // fmt.nbytes, fmt.nbytes), np.uint8)
    kind, shape = gguf.GGMLQuantizationType[name], (len(blocks), fmt.elements)
    with np.errstate(all="ignore"):
        found = medians(
            repeat,
            native=lambda: native.decode(fmt, blocks.reshape(-1), shape, threads),
            gguf=lambda: gguf.quants.dequantize(blocks, kind),
        )
    rate = {who: round(blocks.nbytes / seconds / 1e6) for who, seconds in found.items()}
    times = round(found["gguf"] / found["native"], 1)
    return {"what": f"decode {name}", "MB/s": rate["native"], "gguf MB/s": rate["gguf"], "times": times}


def unpacking(what: str, element: Any, per_byte: float, size: int, repeat: int) -> dict[str, Any]:
    count = int(size * per_byte) // 8 * 8
    payload = np.random.default_rng(0).integers(0, 256, element[count].nbytes, np.uint8)
    seconds = medians(repeat, unpack=lambda: structs.view(payload, element[count]).leaves())["unpack"]
    return {"what": f"unpack {what}", "MB/s": round(payload.nbytes / seconds / 1e6)}


def viewing(repeat: int) -> dict[str, Any]:
    with tempfile.TemporaryFile() as file:
        file.truncate(2**30)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        node = structure("", d=f16, rest=u8[14])[2**26]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = medians(repeat, view=lambda: structs.view(mapped, node).d[-1])["view"]
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        mapped.close()
    return {"what": "view of a mapped 1 GB, one field", "ms": round(seconds * 1e3, 3), "kB grown": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    size = options.megabytes * 2**20
    rows = [decoding(name, size, options.threads, options.repeat) for name in FORMATS]
    rows += [unpacking(what, element, count, size, options.repeat) for what, (element, count) in PACKINGS.items()]
    rows.append(viewing(options.repeat))
    if options.json:
        print(json.dumps({"isa": _native.host_isa(), "threads": options.threads, "rows": rows}, indent=1))
        return
    columns = ("what", "MB/s", "gguf MB/s", "times", "ms", "kB grown")
    table = Table(*columns, title=f"{_native.host_isa()}, decode with {options.threads} threads, {options.megabytes} MB")
    for row in rows:
        table.add_row(*(str(row.get(column, "")) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
