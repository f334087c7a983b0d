"""Decode at depth over paged caches, beside the dense cache and llama.cpp's, interleaved in one run.

    pip install '.[bench]' && python benchmarks/paged_depth.py [--depth 3000] [--threads 2] [--rounds 20]

Each round gives every cache a few single-token steps at the same depth, in turn; ratios are taken round by round, so that a
machine that drifts moves both sides. llama.cpp (flash attention on) lives in a process of its own and waits while others work.
The last line is what appending one token to all layers costs: a model of the updates alone, its Session's work included.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from tenonnx import Session, text
from tenonnx.cache import Uniform
from tenonnx.schema.messages import ModelProto, ValueAliasProto, ValueInfoProto

STEPS = 4  # of a round, the first unmeasured
RATIOS = (("F16", "dense F16"), ("INT8_PAGE", "F16"), ("INT8_PAGE", "llama.cpp Q8_0"), ("F16", "llama.cpp F16"))
LLAMA_TYPES = {"llama.cpp F16": 1, "llama.cpp Q8_0": 8}  # ggml_type

Steps = Callable[[], float]  # milliseconds of a step, the median of a round's


def timed(step: Callable[[], None]) -> float:
    taken = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken[1:])


def tenonnx_steps(session, policy, depth) -> Steps:
    cache = session.new_cache(context=depth + 200, **({} if policy is None else {"policy": Uniform(policy)}))

    def feed(count: int) -> None:
        places = np.arange(cache.length, cache.length + count)
        session.run(
            {"input_ids": np.ones((1, count), np.int64), "position_ids": places[None], "logit_rows": np.array([count - 1])},
            cache=cache,
        )

    for start in range(0, depth, 512):
        feed(min(512, depth - start))

    def measure() -> float:
        found = timed(lambda: feed(1))
        cache.truncate(depth)
        return found

    return measure


def llama_steps(path, threads, depth, kind) -> Steps:
    import llama_cpp

    model = llama_cpp.Llama(
        path, n_ctx=depth + 200, n_batch=512, n_threads=threads, n_threads_batch=threads, flash_attn=True,
        type_k=kind, type_v=kind, verbose=False,
    )  # fmt: skip
    context = model._ctx.ctx

    def feed(count: int) -> None:
        ids = (llama_cpp.llama_token * count)(*[1] * count)  # the batch only points there
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, count)) != 0:
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(context)

    for start in range(0, depth, 512):
        feed(min(512, depth - start))

    def measure() -> float:
        found = timed(lambda: feed(1))
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), 0, depth, -1)
        return found

    measure.model = model  # keeps the context alive
    return measure


def serve_llama(path, threads, depth) -> None:
    """Names on standard input, milliseconds on standard output."""
    engines = {name: llama_steps(path, threads, depth, kind) for name, kind in LLAMA_TYPES.items()}
    for line in sys.stdin:
        print(engines[line.strip()](), flush=True)


def llama_process(given, path) -> dict[str, Steps]:
    options = ["--depth", str(given.depth), "--threads", str(given.threads), "--serve-llama", str(path)]
    process = subprocess.Popen([sys.executable, __file__, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def steps(name: str) -> float:
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    return {name: lambda name=name: steps(name) for name in LLAMA_TYPES}


def append_steps(tables: dict[str, list[int]], threads: int, policy: str) -> Steps:
    """Appending a token to every table, by a model that does nothing else."""
    model = ModelProto(ir_version=12)
    for domain, version in (("", 24), ("tenonnx", 1)):
        model.opset_import.add(domain=domain, version=version)
    graph = model.graph
    graph.name = "append"
    some = next(iter(tables.values()))
    for name, kind, dims in (("page_id", 7, ["pages"]), ("position", 7, []), ("rows", 1, [*some[:-2], "n", some[-1]])):
        tensor = graph.input.add(name=name).type.tensor_type
        tensor.elem_type = kind
        tensor.shape.SetInParent()
        for dim in dims:
            tensor.shape.dim.add(**{"dim_value" if isinstance(dim, int) else "dim_param": dim})
    for name, dims in tables.items():
        for values, label in ((graph.input, name), (graph.output, f"{name}.updated")):
            pages = values.add(name=label)
            kind = pages.type.sequence_type.elem_type.quantized_tensor_type
            kind.elem_type = 1
            for dim in dims:
                kind.shape.dim.add(dim_value=dim)
            if label == name:
                pages.access = ValueInfoProto.READ_WRITE
            else:
                pages.alias_of = name
        node = graph.node.add(op_type="PagedCacheUpdate", domain="tenonnx", output=[f"{name}.updated"])
        node.input.extend([name, "page_id", "rows", "position"])
        node.output_alias.add(output_index=0, input_index=0, kind=ValueAliasProto.MUST_ALIAS)
    session = Session(model, threads=threads)
    cache = session.new_cache(context=100_000, policy=Uniform(policy))
    rows = np.random.default_rng(0).normal(size=(*some[:-2], 1, some[-1])).astype(np.float32)
    return lambda: timed(lambda: session.run({"rows": rows}, cache=cache))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--depth", type=int, default=3000)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--no-llama", action="store_true")
    options.add_argument("--serve-llama", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.serve_llama:
        serve_llama(given.serve_llama, given.threads, given.depth)
        return
    path = text.known("smollm2-135m").path
    paged = text.load_model(path, threads=given.threads, paged=True).session
    dense = text.load_model(path, threads=given.threads).session
    engines = {"dense F16": tenonnx_steps(dense, None, given.depth)}
    engines |= {name: tenonnx_steps(paged, name, given.depth) for name in ("F16", "INT8_PAGE")}
    engines |= {} if given.no_llama else llama_process(given, path)
    tables = {name: list(table.spec.dims) for name, table in paged.new_cache(context=1).pool.tables.items()}
    engines["append"] = append_steps(tables, given.threads, "INT8_PAGE")
    rounds = [{name: measure() for name, measure in engines.items()} for _ in range(given.rounds)]
    print(f"| Cache at depth {given.depth} | ms a step |\n|---|---|")
    for name in engines:
        print(f"| {name} | {statistics.median(taken[name] for taken in rounds):.3f} |")
    for ours, theirs in RATIOS:
        if ours in engines and theirs in engines:
            print(f"{ours} / {theirs}: {statistics.median(taken[theirs] / taken[ours] for taken in rounds):.2f}x")
    share = statistics.median(taken["append"] / taken["INT8_PAGE"] for taken in rounds)
    print(f"append / INT8_PAGE step: {100 * share:.1f} %")


if __name__ == "__main__":
    main()
