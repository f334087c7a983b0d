"""How fast a model reads and writes on this machine, and how near that is to what its memory allows."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenonnx.cache import Policy
from tenonnx.errors import OptionError
from tenonnx.text.generation import Context
from tenonnx.text.loading import TextModel
from tenonnx.text.registry import Progress, silent


@dataclass(frozen=True)
class Speed:
    """Medians; speeds in tokens per second by tokens of the prompt, or by tokens in the caches before the one decoded."""

    load_s: float
    first_token_s: float  # of a prompt of 16 tokens, right after the load
    prompt: dict[int, float]
    decode: dict[int, float]
    read_bytes_per_s: float  # of memory, by as many threads
    decode_share: dict[int, float]  # of that, by the weights and the valid K and V that a decoded token reads
    threads: int
    weight_bytes: int
    cache_bytes: int
    peak_rss_bytes: int

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def speed(
    model: TextModel,
    *,
    prompts: Sequence[int] = (128, 512),
    depths: Sequence[int] = (0, 1024),
    decoded: int = 32,
    repeat: int = 3,
    kv: Policy | None = None,
    progress: Progress = silent,
) -> Speed:
    """Measure prompts of some lengths into empty caches, and ``decoded`` single tokens behind others.

    Nothing is sampled; ``progress`` is told the lengths and depths that are done. Raises ``OptionError`` for lengths below 1
    and depths below 0, and ``CapacityError`` where the model does not admit as many tokens.
    """
    if min((*prompts, decoded, repeat)) < 1 or min(depths, default=0) < 0:
        raise OptionError(
            f"prompts {list(prompts)}, depths {list(depths)}: expected prompts of 1 token or more, depths of 0 or more"
        )
    from tenonnx.runtime.limits import read_bandwidth

    session = model.session
    context = Context(model, max(16, *prompts, *(depth + decoded for depth in depths)), kv)
    first = _seconds(context, 0, 16, 16)
    prompt_speeds: dict[int, float] = {}
    decode_speeds: dict[int, float] = {}
    for count in prompts:
        prompt_speeds[count] = _speed(context, 0, count, count, repeat)
        progress("measure", len(prompt_speeds), len(prompts) + len(depths))
    per_token = {}
    for depth in depths:
        decode_speeds[depth] = _speed(context, depth, decoded, 1, repeat)
        progress("measure", len(prompt_speeds) + len(decode_speeds), len(prompts) + len(depths))
        per_token[depth] = session.weight_bytes + context.cache.nbytes * depth // context.cache.capacity
    peak = _peak_rss()  # before the probe of memory, which takes some of its own
    reading = read_bandwidth(session.threads)
    return Speed(
        load_s=model.load_s,
        first_token_s=first,
        prompt=prompt_speeds,
        decode=decode_speeds,
        read_bytes_per_s=reading,
        decode_share={depth: rate * per_token[depth] / reading for depth, rate in decode_speeds.items()},
        threads=session.threads,
        weight_bytes=session.weight_bytes,
        cache_bytes=int(context.cache.nbytes),
        peak_rss_bytes=peak,
    )


def _speed(context: Context, depth: int, count: int, at_once: int, repeat: int) -> float:
    _seconds(context, depth, at_once, at_once)  # plans, and touches what the measured runs will
    return count / statistics.median(_seconds(context, depth, count, at_once) for _ in range(repeat))


def _seconds(context: Context, depth: int, count: int, at_once: int) -> float:
    """Seconds to append ``count`` tokens behind ``depth`` others, ``at_once`` of them in a run."""
    tokens = np.random.default_rng(0).integers(0, 256, max(depth, count)).tolist()  # ids that every vocabulary has
    context.cache.truncate(min(depth, context.cache.length))
    if context.cache.length < depth:
        context.run(tokens[context.cache.length : depth])
    begin = time.perf_counter()
    for start in range(0, count, at_once):
        context.run(tokens[start : min(start + at_once, count)])
    return time.perf_counter() - begin


def _peak_rss() -> int:
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
