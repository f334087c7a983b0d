"""Decoder architectures as data: what sets one family apart, its tensors, and the sizes that a GGUF file gives them.

A family that differs from the others in no more than these traits is one entry of ``ARCHITECTURES``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tenonnx.convert.gguf import Gguf
from tenonnx.errors import PayloadError, UnsupportedError


class Window(NamedTuple):
    """How layers that see the latest tokens alone alternate with those that see all."""

    period: int  # of so many layers the last sees all; metadata may give another
    tokens: int  # that the others see, when the metadata does not say; 0: they see all, too
    rope_base: float = 0.0  # of their own, unscaled rotation; 0: they rotate as the others do


@dataclass(frozen=True)
class Architecture:
    """The traits of a family of models, all decoders of pre-normalized attention and gated feed-forward blocks.

    Caps are what to take when the metadata gives none: x becomes cap · tanh(x / cap), and 0 leaves it as it is.
    """

    name: str  # general.architecture, and the prefix of its metadata keys
    interleaved_rope: bool = False  # rotated pairs are elements (2i, 2i+1), not (i, i + rotary/2)
    head_norms: bool = False  # each head of Q and K is normalized before it is rotated
    post_norms: bool = False  # what attention and feed-forward give is normalized before it is added
    gate: Literal["Swish", "Gelu"] = "Swish"  # the operator on the gate; Gelu is the one by tanh
    scaled_embedding: bool = False  # by sqrt(hidden)
    window: Window | None = None
    score_cap: float = 0.0  # of attention scores
    logit_cap: float = 0.0
    # The model of so many layers scales scores by 1 / sqrt(hidden / heads), which its metadata does not say.
    layers_of_wide_scale: int = 0


_GEMMA = Architecture("gemma", gate="Gelu", scaled_embedding=True)

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture("llama", interleaved_rope=True),
        Architecture("qwen2"),
        Architecture("qwen3", head_norms=True),
        _GEMMA,
        replace(
            _GEMMA,
            name="gemma2",
            post_norms=True,
            window=Window(2, 4096),
            score_cap=50.0,
            logit_cap=30.0,
            layers_of_wide_scale=46,
        ),
        replace(_GEMMA, name="gemma3", head_norms=True, post_norms=True, window=Window(6, 0, 10_000.0), layers_of_wide_scale=62),
    )
}

_MAX_SCALE = 1e30  # of attention scores and caps; far above any model's, and a FLOAT

# Tensors of each layer (blk.N.*) and of the model, with their row-major shapes; the names of sizes are in Decoder.sizes.
LAYER_TENSORS: dict[str, tuple[str, ...]] = {
    "attn_norm.weight": ("hidden",),
    "attn_q.weight": ("queries", "hidden"),
    "attn_k.weight": ("keys", "hidden"),
    "attn_v.weight": ("values", "hidden"),
    "attn_output.weight": ("hidden", "attended"),
    "ffn_norm.weight": ("hidden",),
    "ffn_gate.weight": ("ffn", "hidden"),
    "ffn_up.weight": ("ffn", "hidden"),
    "ffn_down.weight": ("hidden", "ffn"),
}
HEAD_NORMS: dict[str, tuple[str, ...]] = {
    "attn_q_norm.weight": ("key_size",),
    "attn_k_norm.weight": ("key_size",),
}
POST_NORMS: dict[str, tuple[str, ...]] = {
    "post_attention_norm.weight": ("hidden",),
    "post_ffw_norm.weight": ("hidden",),
}
LAYER_BIASES: dict[str, tuple[str, ...]] = {
    "attn_q.bias": ("queries",),
    "attn_k.bias": ("keys",),
    "attn_v.bias": ("values",),
    "attn_output.bias": ("hidden",),
    "ffn_gate.bias": ("ffn",),
    "ffn_up.bias": ("ffn",),
    "ffn_down.bias": ("hidden",),
}
MODEL_TENSORS: dict[str, tuple[str, ...]] = {
    "token_embd.weight": ("vocab", "hidden"),
    "output_norm.weight": ("hidden",),
}
OPTIONAL_TENSORS: dict[str, tuple[str, ...]] = {
    "output.weight": ("vocab", "hidden"),  # absent: the embedding is used
    "rope_freqs.weight": ("rotary_pairs",),
}


@dataclass(frozen=True)
class Decoder:
    """The sizes and constants of one model."""

    architecture: Architecture
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    key_size: int  # elements of a head of Q and K
    value_size: int  # elements of a head of V
    rotary: int  # leading elements of a head that are rotated
    vocab: int
    context_length: int  # tokens the model was trained for
    epsilon: float
    scale: float  # of the attention scores
    score_cap: float  # 0: none
    logit_cap: float  # 0: none
    window: int  # tokens that a windowed layer sees; 0: no layer is windowed
    window_period: int  # of so many layers all but the last are windowed

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "hidden": self.hidden,
            "ffn": self.ffn,
            "vocab": self.vocab,
            "queries": self.heads * self.key_size,
            "key_size": self.key_size,
            "keys": self.kv_heads * self.key_size,
            "values": self.kv_heads * self.value_size,
            "attended": self.heads * self.value_size,
            "rotary_pairs": self.rotary // 2,
        }

    def window_of(self, layer: int) -> int:
        """Tokens that a layer sees, the new one among them; 0 for all."""
        return self.window if (layer + 1) % self.window_period else 0


def _positive(gguf: Gguf, **sizes: int) -> None:
    for name, size in sizes.items():
        if not 0 < size < 2**31:
            raise PayloadError(f"{gguf.files[0]}: {name.replace('_', ' ')} is {size}; expected at least 1: convert it again")


def architecture_of(gguf: Gguf) -> Architecture:
    """The traits of a model's family; ``UnsupportedError`` when this version has none for it."""
    name = gguf.metadata.text("general.architecture")
    architecture = ARCHITECTURES.get(name)
    if architecture is None:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedError(f"{gguf.files[0]}: its architecture is {name!r}; this version converts {known}")
    if gguf.metadata.integer(f"{name}.expert_count", 0):
        raise UnsupportedError(f"{gguf.files[0]}: is a mixture of experts; this version converts dense models alone")
    return architecture


def decoder_of(gguf: Gguf) -> Decoder:
    """The sizes of a GGUF model, with every tensor present and of the expected shape.

    Raises ``UnsupportedError`` for an architecture that is not known, ``PayloadError`` for missing or contradictory data.
    """
    architecture, metadata = architecture_of(gguf), gguf.metadata
    name = architecture.name
    hidden = metadata.integer(f"{name}.embedding_length")
    heads = metadata.same_in_all_layers(f"{name}.attention.head_count")
    _positive(gguf, embedding_length=hidden, attention_head_count=heads)
    key_size = metadata.integer(f"{name}.attention.key_length", hidden // heads)
    _positive(gguf, attention_key_length=key_size)
    layers = metadata.integer(f"{name}.block_count")
    scaled_size = hidden / heads if layers == architecture.layers_of_wide_scale else key_size
    window = architecture.window or Window(1, 0)
    decoder = Decoder(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        ffn=metadata.same_in_all_layers(f"{name}.feed_forward_length"),
        heads=heads,
        kv_heads=metadata.same_in_all_layers(f"{name}.attention.head_count_kv", heads),
        key_size=key_size,
        value_size=metadata.integer(f"{name}.attention.value_length", hidden // heads),
        rotary=metadata.integer(f"{name}.rope.dimension_count", key_size),
        vocab=_vocabulary(gguf),
        context_length=metadata.integer(f"{name}.context_length"),
        epsilon=metadata.number(f"{name}.attention.layer_norm_rms_epsilon"),
        scale=metadata.number(f"{name}.attention.scale", 1 / math.sqrt(scaled_size)),
        score_cap=metadata.number(f"{name}.attn_logit_softcapping", architecture.score_cap),
        logit_cap=metadata.number(f"{name}.final_logit_softcapping", architecture.logit_cap),
        # Other families carry these keys, too, and see everything all the same.
        window=metadata.integer(f"{name}.attention.sliding_window", window.tokens) if architecture.window else 0,
        window_period=metadata.integer(f"{name}.attention.sliding_window_pattern", window.period) if architecture.window else 1,
    )
    _check_sizes(gguf, decoder)
    _check_tensors(gguf, decoder)
    return decoder


def _check_sizes(gguf: Gguf, decoder: Decoder) -> None:
    _positive(
        gguf,
        block_count=decoder.layers,
        feed_forward_length=decoder.ffn,
        attention_head_count_kv=decoder.kv_heads,
        attention_value_length=decoder.value_size,
        rope_dimension_count=decoder.rotary,
        vocabulary=decoder.vocab,
        context_length=decoder.context_length,
        attention_sliding_window_pattern=decoder.window_period,
    )
    if decoder.heads % decoder.kv_heads or decoder.rotary % 2 or decoder.rotary > decoder.key_size:
        raise PayloadError(
            f"{gguf.files[0]}: {decoder.heads} heads over {decoder.kv_heads} key heads, {decoder.rotary} rotated of "
            f"{decoder.key_size} elements a head; expected whole groups, and an even count within the head: convert it again"
        )
    if not (0 <= decoder.epsilon < 1 and 0 < decoder.scale < _MAX_SCALE):
        raise PayloadError(
            f"{gguf.files[0]}: the norm's epsilon is {decoder.epsilon}, the attention scale {decoder.scale}; "
            "expected 0 or a little more, and a positive number: convert it again"
        )
    caps = decoder.score_cap, decoder.logit_cap
    if not (all(0 <= cap < _MAX_SCALE for cap in caps) and 0 <= decoder.window < 2**31):
        raise PayloadError(
            f"{gguf.files[0]}: caps scores and logits at {caps[0]} and {caps[1]}, with a window of {decoder.window} tokens; "
            "expected 0 for none, or positive numbers: convert it again"
        )


def _vocabulary(gguf: Gguf) -> int:
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or not embedding.shape:
        raise PayloadError(f"{gguf.files[0]}: has no tensor 'token_embd.weight', the embedding; convert the model again")
    return embedding.shape[0]


def _check_tensors(gguf: Gguf, decoder: Decoder) -> None:
    """Exactly the tensors that the architecture has, each of its shape."""
    # Files of some years ago carry rope constants per layer, which follow from the metadata.
    unread = {name for name in gguf.tensors if not name.endswith((".rope_freqs", ".attn_rot_embd", ".attn_rot_embd.weight"))}
    required = [(name, shape) for name, shape in MODEL_TENSORS.items()]
    optional = [(name, shape) for name, shape in OPTIONAL_TENSORS.items()]
    traits = decoder.architecture
    layer_tensors = LAYER_TENSORS | (HEAD_NORMS if traits.head_norms else {}) | (POST_NORMS if traits.post_norms else {})
    for layer in range(min(decoder.layers, len(gguf.tensors) + 1)):
        required += [(f"blk.{layer}.{name}", shape) for name, shape in layer_tensors.items()]
        optional += [(f"blk.{layer}.{name}", shape) for name, shape in LAYER_BIASES.items()]
    sizes = decoder.sizes
    for name, symbols in required + [(name, shape) for name, shape in optional if name in gguf.tensors]:
        expected, tensor = tuple(sizes[symbol] for symbol in symbols), gguf.tensors.get(name)
        if tensor is None:
            raise PayloadError(f"{gguf.files[0]}: has no tensor {name!r}; expected one of shape {list(expected)}")
        if tensor.shape != expected:
            raise PayloadError(f"{tensor.file}: tensor {name!r} has shape {list(tensor.shape)}; expected {list(expected)}")
        unread.remove(name)
    if unread:
        raise UnsupportedError(
            f"{gguf.files[0]}: tensor {min(unread)!r} is none that architecture {decoder.architecture.name!r} knows; "
            "leaving it out would change the model"
        )
