"""Small llama GGUF files with random weights, written by the ``gguf`` package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tenonnx.structs import catalogue

# A vocabulary of byte-level BPE in the manner of GPT-2: 256 byte tokens first, then merges, then control tokens.
_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TEXT = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_UNPRINTABLE)}
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "o n", "ĠĠ t"]
# Each of these is one token unless the pre-tokenizer cuts it.
PHRASES = [
    "1234567",
    "FooBar",
    "I'm",
    "he'LL",
    "$1,000",
    " <=x",
    "漢字かな。",
    " école",
    "x_1`",
    "...)\n",
    "\r\n'S",
    "\n\n\n  n",
    " ½²",
    "\t end",
    "+=/\n",
    "ǅa",
]
WHOLE_WORD = "zyx"  # a token that no merge makes
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>"]


def _merges_of(phrase: str) -> list[str]:
    """Merges that join a phrase from left to right."""
    text = [BYTE_TEXT[byte] for byte in phrase.encode()]
    return [f"{''.join(text[:cut])} {text[cut]}" for cut in range(1, len(text))]


def bpe_merges() -> list[str]:
    return list(dict.fromkeys(MERGES + [merge for phrase in PHRASES for merge in _merges_of(phrase)]))


def bpe_tokens() -> list[str]:
    pieces = [BYTE_TEXT[byte] for byte in range(256)] + [merge.replace(" ", "") for merge in bpe_merges()]
    return [*dict.fromkeys(pieces), WHOLE_WORD, *CONTROL, *USER_DEFINED]


def add_bpe_vocabulary(writer: gguf.GGUFWriter, pre: str | None = "smollm") -> int:
    tokens = bpe_tokens()
    kinds = [1] * (len(tokens) - len(CONTROL) - len(USER_DEFINED)) + [3] * len(CONTROL) + [4] * len(USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(bpe_merges())
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_add_bos_token(False)
    return len(tokens)


SPM_PIECES = ["▁t", "he", "▁the", "in", "▁a", "er", "▁▁", "▁▁▁▁", "on", "th", "▁th", "re", "is", "▁is", "é", "lo", "hel", "hello"]
SPM_CHARACTERS = "▁etaoinsrhldcumfpgwybvkxjqz.,ETAO0123"


GEMMA_RUNS = ["\n\n", "\n\n\n", "  ", "   ", "     ", "<h1>"]  # gemma's vocabulary has such runs as user-defined tokens


def spm_tokens(user_defined: Sequence[str] = ("<tool>",)) -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types: <unk> <s> </s>, 256 bytes, merged pieces, characters, and user-defined tokens."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [2, 3, 3] + [6] * 256
    learned = SPM_PIECES + list(SPM_CHARACTERS)
    scores = [0.0] * len(tokens) + [-float(rank) for rank in range(len(learned))] + [0.0] * len(user_defined)
    return [*tokens, *learned, *user_defined], scores, kinds + [1] * len(learned) + [4] * len(user_defined)


def add_spm_vocabulary(
    writer: gguf.GGUFWriter, add_space_prefix: bool | None = None, user_defined: Sequence[str] = ("<tool>",)
) -> int:
    tokens, scores, kinds = spm_tokens(user_defined)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    if add_space_prefix is not None:
        writer.add_add_space_prefix(add_space_prefix)
    return len(tokens)


def _add_vocabulary(writer: gguf.GGUFWriter, vocabulary: str, pre: str | None) -> int:
    if vocabulary == "bpe":
        return add_bpe_vocabulary(writer, pre)
    if vocabulary == "gemma":
        return add_spm_vocabulary(writer, False, GEMMA_RUNS)
    return add_spm_vocabulary(writer)


def weights(
    rng: np.random.Generator,
    *,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    head: int,
    value_head: int,
    vocab: int,
) -> dict[str, np.ndarray]:
    """Random matrices of a llama, with norms near one."""

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return rng.normal(1, 0.1, hidden).astype(np.float32)

    tensors = {"token_embd.weight": matrix(vocab, hidden) * np.float32(hidden**0.5)}
    for layer in range(layers):
        tensors |= {
            f"blk.{layer}.attn_norm.weight": norm(),
            f"blk.{layer}.attn_q.weight": matrix(heads * head, hidden),
            f"blk.{layer}.attn_k.weight": matrix(kv_heads * head, hidden),
            f"blk.{layer}.attn_v.weight": matrix(kv_heads * value_head, hidden),
            f"blk.{layer}.attn_output.weight": matrix(hidden, heads * value_head),
            f"blk.{layer}.ffn_norm.weight": norm(),
            f"blk.{layer}.ffn_gate.weight": matrix(ffn, hidden),
            f"blk.{layer}.ffn_up.weight": matrix(ffn, hidden),
            f"blk.{layer}.ffn_down.weight": matrix(hidden, ffn),
        }
    return tensors | {"output_norm.weight": norm()}


def write_llama(
    path: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    ffn: int = 96,
    heads: int = 4,
    kv_heads: int = 2,
    head: int | None = None,
    value_head: int | None = None,
    vocab: int = 64,
    format: str = "F32",
    formats: Mapping[str, str] | None = None,
    tied: bool = True,
    biases: Sequence[str] = (),
    rope_factors: np.ndarray | None = None,
    vocabulary: str | None = None,
    pre: str | None = "smollm",
    metadata: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    extra: Mapping[str, np.ndarray] | None = None,
    split: int = 0,
    architecture: str = "llama",
    seed: int = 0,
) -> Path:
    """Write a llama to ``path``.

    ``vocabulary`` is "bpe", "spm" or "gemma", or None for ``vocab`` tokens without text. ``format`` holds matrices,
    ``formats`` single tensors by name; ``biases`` are names such as "attn_q"; ``metadata`` adds keys below "llama.", or
    replaces what is written otherwise (None leaves a key out); ``without`` and ``extra`` are tensors left out and added;
    ``split`` is the number of tensors a part may hold (the path is then that of no file: see ``split_parts``).
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    if vocabulary is not None:
        vocab = _add_vocabulary(writer, vocabulary, pre)
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": 128,
        "embedding_length": hidden,
        "feed_forward_length": ffn,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head or hidden // heads,
    }
    if head is not None:
        keys["attention.key_length"] = head
    if value_head is not None:
        keys["attention.value_length"] = value_head
    for key, value in (keys | dict(metadata or {})).items():
        _add(writer, f"{architecture}.{key}", value)
    head = head or hidden // heads
    value_head = value_head or hidden // heads
    sizes = {"layers": layers, "hidden": hidden, "ffn": ffn, "heads": heads, "kv_heads": kv_heads, "head": head}
    tensors = weights(rng, **sizes, value_head=value_head, vocab=vocab)
    if not tied:
        tensors["output.weight"] = rng.normal(0, 0.2, (vocab, hidden)).astype(np.float32)
    for name in biases:
        for layer in range(layers):
            rows = len(tensors[f"blk.{layer}.{name}.weight"])
            tensors[f"blk.{layer}.{name}.bias"] = rng.normal(0, 0.5, rows).astype(np.float32)
    if rope_factors is not None:
        tensors["rope_freqs.weight"] = np.asarray(rope_factors, np.float32)
    tensors |= dict(extra or {})
    for name, array in tensors.items():
        if name not in without:
            plain = format if array.ndim == 2 else "F32"
            _add_tensor(writer, name, array, (formats or {}).get(name, plain))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split_parts(path: Path, count: int) -> list[Path]:
    """The files of a model written with ``split``."""
    return [path.with_name(f"{path.stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value is not None:
        writer.add_array(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, format: str) -> None:
    kind = gguf.GGMLQuantizationType[format]
    if format == "F32":
        writer.add_tensor(name, array)
    elif format == "F16":
        writer.add_tensor(name, array.astype(np.float16))
    else:
        try:
            blocks = gguf.quants.quantize(array, kind)
        except NotImplementedError:
            blocks = random_blocks(format, array) if format in catalogue else np.zeros(array.shape, np.uint8)
        writer.add_tensor(name, blocks, raw_dtype=kind)


def random_blocks(format: str, like: np.ndarray) -> np.ndarray:
    """Blocks of random codes and small scales of a format that the package does not quantize, about as large as ``like``."""
    fmt = catalogue[format]
    rng = np.random.default_rng(like.size)
    blocks = rng.integers(0, 256, (like.size // fmt.elements, fmt.nbytes), np.uint8)

    def scaled(scale: float) -> np.ndarray:
        for leaf in fmt.leaves:
            if leaf.scalar is not None and leaf.constant is None and leaf.scalar.name.startswith("FLOAT"):
                count = max(1, int(np.prod(leaf.shape)))
                value = np.full(count, scale, np.float32).astype(leaf.scalar.numpy).view(np.uint8)
                blocks[:, leaf.offset // 8 : leaf.offset // 8 + value.size] = value
        return blocks

    spread = fmt.decode(scaled(1), (blocks.shape[0] * fmt.elements,)).std()
    return scaled(float(like.std() / spread)).reshape(len(like), -1)
