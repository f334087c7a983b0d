"""A small model with random weights for every architecture that GGUF files are converted from.

``tests/data/make_logits.py`` asks transformers for their logits, which lie in ``tests/data/logits.npz``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.gguf_files import write_llama

VOCAB = 32
IDS = np.random.default_rng(7).integers(0, VOCAB, 40)
ROWS = np.arange(0, len(IDS), 3)  # of the logits that are kept
GOLDEN = Path(__file__).with_name("data") / "logits.npz"

# Metadata and sizes by family. Windows are shorter than the text, and caps low enough to be felt.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"biases": ("attn_q", "attn_k", "attn_v"), "metadata": {"rope.freq_base": 1e6, "attention.sliding_window": 5}},
    "qwen3": {"head": 32, "tied": False, "metadata": {"rope.freq_base": 1e6}},
    "gemma": {"head": 24, "kv_heads": 1},
    "gemma2": {
        "layers": 4,
        "head": 24,
        "metadata": {"attention.sliding_window": 7, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0},
    },
    "gemma2 of 46 layers": {
        "layers": 46,
        "hidden": 32,
        "ffn": 32,
        "heads": 2,
        "kv_heads": 1,
        "head": 8,
        "metadata": {"attention.sliding_window": 9, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0},
    },
    "gemma3": {
        "layers": 7,
        "head": 24,
        "metadata": {
            "attention.sliding_window": 7,
            "rope.freq_base": 500.0,
            "rope.freq_base_swa": 50.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    },
    "gemma3 of 62 layers": {
        "layers": 62,
        "hidden": 32,
        "ffn": 32,
        "heads": 2,
        "kv_heads": 1,
        "head": 8,
        "metadata": {"attention.sliding_window": 9, "attention.sliding_window_pattern": 4, "rope.freq_base": 1e6},
    },
}


def write(path: Path, family: str, **more: Any) -> Path:
    """The model of a family, as its converter to GGUF would write it; ``more`` goes to ``write_llama``."""
    options = FAMILIES[family]
    name, seed = family.split()[0], list(FAMILIES).index(family)
    head = options.get("head")
    given = {**options, "architecture": name, "vocab": VOCAB, "seed": seed, "value_head": head, **more}
    given["metadata"] = {"rope.dimension_count": None} | given.get("metadata", {})
    extra = _tensors(np.random.default_rng(100 + seed), name, given)
    return write_llama(path, **given, extra=extra)


def _tensors(rng: np.random.Generator, name: str, options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What the family has beside the tensors of a llama, and an embedding that is small before it is scaled."""
    hidden, layers = options.get("hidden", 64), options.get("layers", 2)
    sizes: dict[str, int] = {}
    if name in ("qwen3", "gemma3"):
        sizes |= {"attn_q_norm": options["head"], "attn_k_norm": options["head"]}
    if name in ("gemma2", "gemma3"):
        sizes |= {"post_attention_norm": hidden, "post_ffw_norm": hidden}
    norms = {
        f"blk.{layer}.{norm}.weight": rng.normal(1, 0.2, size).astype(np.float32)
        for layer in range(layers)
        for norm, size in sizes.items()
    }
    if not name.startswith("gemma") or options.get("vocabulary") is not None:
        return norms
    return norms | {"token_embd.weight": rng.normal(0, 0.1, (VOCAB, hidden)).astype(np.float32)}
