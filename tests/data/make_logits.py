"""Makes logits.npz beside it: what transformers computes for the small random models of ``tests/families.py``.

    python -m tests.data.make_logits           # writes the file
    python -m tests.data.make_logits --check   # compares with it instead, up to rounding

Needs torch and transformers, which the tests do not: they read the file. Keys and values are rounded to FLOAT16, as caches
hold them; all else is FLOAT.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from tests.families import FAMILIES, GOLDEN, IDS, ROWS, VOCAB, write

CLASSES = {
    "llama": ("Llama", transformers.LlamaConfig),
    "qwen2": ("Qwen2", transformers.Qwen2Config),
    "qwen3": ("Qwen3", transformers.Qwen3Config),
    "gemma": ("Gemma", transformers.GemmaConfig),
    "gemma2": ("Gemma2", transformers.Gemma2Config),
    "gemma3": ("Gemma3", transformers.Gemma3TextConfig),
}
MODULES = {  # of a layer, by the names of GGUF; where a model has norms behind its blocks, ffn_norm is another one
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}
MODEL_MODULES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def config(family: str, name: str, tied: bool) -> Any:
    options = FAMILIES[family]
    metadata = options.get("metadata", {})
    hidden, heads, layers = options.get("hidden", 64), options.get("heads", 4), options.get("layers", 2)
    head = options.get("head", hidden // heads)
    base = metadata.get("rope.freq_base", 10_000.0)
    given: dict[str, Any] = {
        "hidden_size": hidden,
        "intermediate_size": options.get("ffn", 96),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": options.get("kv_heads", 2),
        "head_dim": head,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 128,
        "tie_word_embeddings": tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "attn_implementation": "eager",
    }
    if name in ("gemma2", "gemma3"):
        given["sliding_window"] = metadata["attention.sliding_window"]
        given["query_pre_attn_scalar"] = hidden // heads if layers > 40 else head
    if name == "gemma2":
        given["attn_logit_softcapping"] = metadata["attn_logit_softcapping"]
        given["final_logit_softcapping"] = metadata["final_logit_softcapping"]
    if name == "gemma3":
        period = metadata.get("attention.sliding_window_pattern", 6)
        given["layer_types"] = ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)]
        factor = metadata.get("rope.scaling.factor", 1.0)
        given["rope_parameters"] = {
            "full_attention": {"rope_type": "linear", "factor": factor, "rope_theta": base},
            "sliding_attention": {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", 10_000.0)},
        }
    return CLASSES[name][1](**given)


def state(path: Path, name: str, heads: dict[str, int]) -> dict[str, torch.Tensor]:
    """The weights of a GGUF file under the names that transformers gives them, and in its conventions."""
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    found = {}
    for key, array in tensors.items():
        module, kind = key.rsplit(".", 1)
        if name.startswith("gemma") and module.endswith("norm"):
            array = array - 1  # transformers multiplies by 1 + weight
        if module.startswith("blk."):
            _, layer, module = module.split(".")
            if name == "llama" and module in heads:  # pairs are neighbours in GGUF, and half a head apart here
                array = array.reshape(heads[module], -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
            target = MODULES[module]
            if module == "ffn_norm" and f"blk.{layer}.post_ffw_norm.weight" in tensors:
                target = "pre_feedforward_layernorm"
            found[f"model.layers.{layer}.{target}.{kind}"] = torch.from_numpy(array)
        else:
            found[f"{MODEL_MODULES[module]}.{kind}"] = torch.from_numpy(array)
    return found


@contextmanager
def rounded_caches(model: Any) -> Iterator[None]:
    """Attention reads keys and values that went through FLOAT16."""
    module = sys.modules[type(model).__module__]
    attend = module.eager_attention_forward

    def rounded(block: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> Any:
        return attend(block, query, key.half().float(), value.half().float(), *rest, **more)

    module.eager_attention_forward = rounded
    yield
    module.eager_attention_forward = attend


def logits(family: str, folder: Path) -> np.ndarray:
    """FLOAT[rows, vocab] after the tokens ``IDS``."""
    name, options = family.split()[0], FAMILIES[family]
    path = write(folder / f"{name}.gguf", family)
    model = getattr(transformers, f"{CLASSES[name][0]}ForCausalLM")(config(family, name, options.get("tied", True))).eval()
    weights = state(path, name, {"attn_q": options.get("heads", 4), "attn_k": options.get("kv_heads", 2)})
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # which is the embedding's where both are tied
        raise SystemExit(f"{family}: weights {missing} are missing and {unexpected} were not expected")
    with torch.no_grad(), rounded_caches(model):
        return model(torch.from_numpy(IDS[None])).logits[0, torch.from_numpy(ROWS)].numpy()


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = {family: logits(family, Path(folder)) for family in FAMILIES}
    if "--check" not in sys.argv[1:]:
        np.savez(GOLDEN, **found)
        return 0
    with np.load(GOLDEN) as kept:
        far = {family: float(np.abs(kept[family] - found[family]).max()) for family in FAMILIES}
    for family, distance in far.items():
        print(f"{family}: {distance:.1e}")
    return int(any(not math.isfinite(distance) or distance > 1e-4 for distance in far.values()))


if __name__ == "__main__":
    sys.exit(main())
