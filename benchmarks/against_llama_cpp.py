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
from collections.abc import Callable
from pathlib import Path

from processes import Process

Measure = Callable[[str, int], float]  # ("prompt" or "decode", tokens) -> tokens per second


class InProcess:
    """An engine of `engines.py` as a measure."""

    def __init__(self, kind: str, args: argparse.Namespace, threads: int) -> None:
        self.process = Process(kind, args.model, threads, max(16, args.prompt, args.decode) + 8)

    def __call__(self, kind: str, count: int) -> float:
        speed: float = self.process(kind, *([count] if kind == "prompt" else [0, count]))
        return speed


def llama_bench(program: str, model: str, threads: int) -> Measure:
    def measure(kind: str, count: int) -> float:
        sizes = ["-p", str(count), "-n", "0"] if kind == "prompt" else ["-p", "0", "-n", str(count)]
        command = [program, "-m", model, "-t", str(threads), *sizes, "-r", "1", "-o", "json"]
        return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[0]["avg_ts"])

    return measure


def compare(args: argparse.Namespace, threads: int) -> dict[str, dict[str, float]]:
    """Medians of both engines and of the ratios, per kind."""
    ours = InProcess("tenonnx", args, threads)
    other: Measure = (
        llama_bench(args.llama_bench, args.model, threads) if args.llama_bench else InProcess("llama.cpp", args, threads)
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
        if isinstance(engine, InProcess):
            engine.process.close()
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
    args = parser.parse_args()
    if args.model is None:
        from tenonnx import text

        args.model = str(text.known("smollm2-135m").path)
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
