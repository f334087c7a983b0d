"""What packs cost and save: python benchmarks/packs.py [--rounds N] [--json FILE]

Each start is a process of its own, timed from the path to a ready Session with the package imported before; the modes take
turns. Memory is the peak of the process above that of its imports. Prints medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tenonnx import convert, text

_START = """
import json, sys, time
import numpy as np
from tenonnx import Session
import tenonnx.compiled, tenonnx.runtime, onnx

def memory(key):
    with open("/proc/self/status") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith(key)) * 1024

path, options, tokens = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
imported = memory("VmRSS")
begin, cpu = time.perf_counter(), time.process_time()
session = Session(path, **options)
ready, cpu = time.perf_counter() - begin, time.process_time() - cpu
cache, steps = session.new_cache(context=tokens + 1), []
for position in range(tokens):
    begin = time.perf_counter()
    feed = {"input_ids": np.array([[position]]), "position_ids": np.array([[position]]), "logit_rows": np.array([0])}
    session.run(feed, cache=cache)
    steps.append(time.perf_counter() - begin)
median = float(np.median(steps[tokens // 4 :])) if steps else 0
hits = sum(verdict.kind == "hit" for verdict in session.packs)
print(json.dumps({"ready_ms": ready * 1e3, "ready_cpu_ms": cpu * 1e3, "peak_mb": (memory("VmHWM") - imported) / 1e6,
                  "anonymous_mb": memory("RssAnon") / 1e6, "step_ms": median * 1e3, "hits": hits}))
"""
_LLAMA = """
import json, sys, time
import llama_cpp
begin = time.perf_counter()
model = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_threads=2, verbose=False)
print(json.dumps({"ready_ms": (time.perf_counter() - begin) * 1e3}))
"""


def measured(code: str, *arguments: str) -> dict[str, Any]:
    process = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return json.loads(process.stdout.splitlines()[-1])


def medians(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {key: round(statistics.median(row[key] for row in rows), 2) for key in rows[0]}


def starts(folder: Path, gguf: Path, rounds: int, tokens: int) -> dict[str, dict[str, float]]:
    """Medians over rounds in which every mode has its turn."""
    model = str(folder / "smollm2.onnx")
    modes: dict[str, dict[str, Any]] = {
        "without packs": {"packs": "off"},
        "with packs": {"packs": "auto"},
        "with packs, strict": {"packs": "auto", "strict": True},
    }
    rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    peers: list[dict[str, Any]] = []
    for _ in range(rounds):
        for mode, options in modes.items():
            rows[mode].append(measured(_START, model, json.dumps({"threads": 2, **options}), str(tokens)))
        try:
            peers.append(measured(_LLAMA, str(gguf)))
        except subprocess.CalledProcessError:
            continue  # llama-cpp-python is not installed
    found = {mode: medians(row) for mode, row in rows.items()}
    return {**found, "llama.cpp": medians(peers)} if peers else found


def digests() -> dict[str, float]:
    """GB/s of one core over a mapped file's worth of bytes."""
    from tenonnx.compiled import digest

    data, rates = os.urandom(1 << 28), {}
    for algorithm in ("blake3", "sha256"):
        begin = time.perf_counter()
        digest([memoryview(data)], algorithm)
        rates[algorithm] = round(len(data) / 1e9 / (time.perf_counter() - begin), 2)
    return rates


def probe() -> float:
    """Milliseconds to describe the host once archspec is imported."""
    code = (
        "import time, json, archspec.cpu, tenonnx.compiled.device as device; begin = time.perf_counter(); device.host();"
        "print(json.dumps({'ms': (time.perf_counter() - begin) * 1e3}))"
    )
    return round(statistics.median(measured(code)["ms"] for _ in range(5)), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64, help="decoded after each start")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    from tenonnx.compiled import store

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gguf = folder / "smollm2.gguf"
        shutil.copy(text.known("smollm2-135m").path, gguf)
        os.environ["TENONNX_CACHE"] = str(folder / "user-cache")
        convert.convert(gguf, folder / "smollm2.onnx")
        begin = time.perf_counter()
        plan = store.build(folder / "smollm2.onnx", threads=2)
        figures: dict[str, Any] = {"build_ms": round((time.perf_counter() - begin) * 1e3), "pack_mb": plan.nbytes / 1e6}
        shutil.rmtree(folder / "user-cache")
        model = str(folder / "smollm2.onnx")
        time.sleep(0.1)
        figures["first start on a machine"] = medians([measured(_START, model, '{"threads": 2}', "0")])
        figures |= starts(folder, gguf, args.rounds, args.tokens)
        figures["digest_gb_per_s"] = digests()
        figures["probe_ms"] = probe()
    print(f"{'':26s} {'ready ms':>9s} {'CPU ms':>9s} {'peak MB':>9s} {'anon MB':>9s} {'step ms':>8s}")
    for mode, row in figures.items():
        if isinstance(row, dict) and "ready_ms" in row:
            cells = [row.get(key, float("nan")) for key in ("ready_ms", "ready_cpu_ms", "peak_mb", "anonymous_mb", "step_ms")]
            print(f"{mode:26s} {cells[0]:9.1f} {cells[1]:9.1f} {cells[2]:9.1f} {cells[3]:9.1f} {cells[4]:8.2f}")
    print(
        f"build {figures['build_ms']} ms for {figures['pack_mb']:.1f} MB; digests {figures['digest_gb_per_s']} GB/s a core;",
        end=" ",
    )
    print(f"probe of the host {figures['probe_ms']} ms")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
