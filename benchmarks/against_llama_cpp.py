"""Prompt and decode speed beside llama.cpp on the same GGUF file, interleaved in one run.

    pip install '.[bench]' && python benchmarks/against_llama_cpp.py            # against llama-cpp-python
    python benchmarks/against_llama_cpp.py --llama-bench PATH                   # against a llama-bench that you built

Each engine lives in a process of its own and waits while the other works; rounds alternate, and the ratio is taken round by
round, so that a machine that drifts moves both. Prompt: ``--prompt`` tokens in one batch into an empty cache. Decode:
``--decode`` single tokens from an empty cache. No sampling on either side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TOKENS = [504, 3575, 282, 4649, 314]  # any valid ids do: speed does not depend on them

Measure = Callable[[str, int], float]  # ("prompt" or "decode", tokens) -> tokens per second


def tenonnx_engine(path: str, threads: int, context: int) -> Measure:
    import numpy as np

    from tenonnx import Session, convert

    model, folder = convert.from_gguf(path)
    session = Session(model, threads=threads, data_root=folder)
    cache = session.new_cache(context=context)

    def feed(ids: np.ndarray) -> None:
        places = np.arange(cache.length, cache.length + ids.size)
        inputs = {"input_ids": ids[None], "position_ids": places[None], "logit_rows": np.array([ids.size - 1])}
        session.run(inputs, cache=cache)

    def measure(kind: str, count: int) -> float:
        ids = np.resize(np.array(TOKENS), count)
        cache.reset()
        begin = time.perf_counter()
        for part in [ids] if kind == "prompt" else np.split(ids, count):
            feed(part)
        return count / (time.perf_counter() - begin)

    return measure


def llama_cpp_engine(path: str, threads: int, context: int) -> Measure:
    import llama_cpp

    model = llama_cpp.Llama(
        path, n_ctx=context, n_batch=2048, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
    )

    def measure(kind: str, count: int) -> float:
        ids = (TOKENS * (count // len(TOKENS) + 1))[:count]
        context_ptr = model._ctx.ctx
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context_ptr), True)
        begin = time.perf_counter()
        for part in [ids] if kind == "prompt" else [[token] for token in ids]:
            array = (llama_cpp.llama_token * len(part))(*part)
            if llama_cpp.llama_decode(context_ptr, llama_cpp.llama_batch_get_one(array, len(part))) != 0:
                raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(context_ptr)
        return count / (time.perf_counter() - begin)

    return measure


ENGINES = {"tenonnx": tenonnx_engine, "llama.cpp": llama_cpp_engine}


def serve(engine: str, path: str, threads: int, context: int) -> None:
    """A measuring process: one request a line on standard input, one figure a line on standard output."""
    measure = ENGINES[engine](path, threads, context)
    for line in sys.stdin:
        kind, count = line.split()
        print(measure(kind, int(count)), flush=True)


class Process:
    """An engine in a process of its own."""

    def __init__(self, engine: str, args: argparse.Namespace, threads: int) -> None:
        command = [sys.executable, __file__, "--serve", engine, "--model", args.model, "--threads", str(threads)]
        self._process = subprocess.Popen(
            [*command, "--prompt", str(args.prompt), "--decode", str(args.decode)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, kind: str, count: int) -> float:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise SystemExit("no pipe to the engine")
        stdin.write(f"{kind} {count}\n")
        stdin.flush()
        return float(stdout.readline())

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


def llama_bench(program: str, model: str, threads: int) -> Measure:
    def measure(kind: str, count: int) -> float:
        sizes = ["-p", str(count), "-n", "0"] if kind == "prompt" else ["-p", "0", "-n", str(count)]
        command = [program, "-m", model, "-t", str(threads), *sizes, "-r", "1", "-o", "json"]
        return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[0]["avg_ts"])

    return measure


def compare(args: argparse.Namespace, threads: int) -> dict[str, dict[str, float]]:
    """Medians of both engines and of the ratios, per kind."""
    ours = Process("tenonnx", args, threads)
    other: Measure = (
        llama_bench(args.llama_bench, args.model, threads) if args.llama_bench else Process("llama.cpp", args, threads)
    )
    results: dict[str, dict[str, float]] = {}
    for kind, count in (("prompt", args.prompt), ("decode", args.decode)):
        for engine in (ours, other):
            engine(kind, count)  # warm
        pairs = [(ours(kind, count), other(kind, count)) for _ in range(args.rounds)]
        ratios = sorted(a / b for a, b in pairs)
        results[f"{kind}_{count}"] = {
            "tenonnx": statistics.median(a for a, _ in pairs),
            "llama.cpp": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(ratios),
            "ratio_min": ratios[0],
            "ratio_max": ratios[-1],
        }
    for engine in (ours, other):
        if isinstance(engine, Process):
            engine.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file (default: smollm2-135m, pulled if absent)")
    parser.add_argument("--threads", default="2", help="comma-separated thread counts")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--llama-bench", help="measure this llama-bench program instead of llama-cpp-python")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.model is None:
        from tenonnx import text

        args.model = str(text.known("smollm2-135m").path)
    if args.serve:
        serve(args.serve, args.model, int(args.threads), max(args.prompt, args.decode) + 8)
        return
    figures: dict[str, dict[str, dict[str, float]]] = {}
    print(
        f"{'threads':>7} {'what':>12} {'tenonnx':>9} {'llama.cpp':>9}  ratio (min-max)   tokens/s, median of {args.rounds} rounds"
    )
    for threads in map(int, args.threads.split(",")):
        figures[str(threads)] = compare(args, threads)
        for what, row in figures[str(threads)].items():
            spread = f"{row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
            print(f"{threads:7d} {what:>12} {row['tenonnx']:9.1f} {row['llama.cpp']:9.1f}  {spread}")
    if args.json:
        args.json.write_text(json.dumps({"model": Path(args.model).name, "threads": figures}, indent=2))


if __name__ == "__main__":
    main()
