"""Tokenizers built from GGUF vocabularies give the ids that llama.cpp gives.

``llama_cpp_ids.json`` holds what llama-cpp-python's tokenizer (special tokens parsed, no BOS added) returned for the same files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tenonnx.convert import gguf, tokenizer
from tenonnx.convert.metadata import Metadata
from tenonnx.convert.pretokenizers import PRE_TOKENIZERS
from tenonnx.errors import PayloadError, UnsupportedError
from tests.gguf_files import BYTE_TEXT, bpe_tokens, write_llama

LLAMA_CPP: dict[str, Any] = json.loads(Path(__file__).with_name("llama_cpp_ids.json").read_text("utf-8"))


def build(metadata: Metadata) -> Tokenizer:
    vocabulary = tokenizer.vocabulary(metadata)
    assert vocabulary is not None
    return Tokenizer.from_str(tokenizer.tokenizer_json(metadata, vocabulary))


def ids(built: Tokenizer, text: str) -> list[int]:
    found: list[int] = built.encode(text, add_special_tokens=False).ids
    return found


def special(metadata: Metadata) -> dict[str, Any]:
    vocabulary = tokenizer.vocabulary(metadata)
    assert vocabulary is not None
    return tokenizer.special_tokens(metadata, vocabulary)


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return build(gguf.read(smollm2_gguf).metadata)


@pytest.fixture
def spm(tmp_path: Path) -> Metadata:
    return gguf.read(write_llama(tmp_path / "spm.gguf", vocabulary="spm")).metadata


@pytest.fixture
def bpe(tmp_path: Path) -> Metadata:
    return gguf.read(write_llama(tmp_path / "bpe.gguf", vocabulary="bpe")).metadata


@pytest.mark.parametrize(("text", "expected"), LLAMA_CPP["smollm2"])
def test_the_real_vocabulary(smollm2: Tokenizer, text: str, expected: list[int]) -> None:
    assert ids(smollm2, text) == expected
    assert smollm2.decode(expected, skip_special_tokens=False) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_survives_the_round_trip(smollm2: Tokenizer, text: str) -> None:
    missing = {byte for byte, piece in BYTE_TEXT.items() if smollm2.token_to_id(piece) is None}  # 0x16, for one, has no token
    assume(missing.isdisjoint(text.encode()))
    assert smollm2.decode(ids(smollm2, text), skip_special_tokens=False) == text


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizers(bpe: Metadata, name: str) -> None:
    bpe["tokenizer.ggml.pre"] = name
    assert ids(build(bpe), LLAMA_CPP["pre_tokenizers"]["text"]) == LLAMA_CPP["pre_tokenizers"]["ids"][name]


def test_the_default_pre_tokenizer(bpe: Metadata) -> None:
    del bpe["tokenizer.ggml.pre"]
    assert ids(build(bpe), LLAMA_CPP["pre_tokenizers"]["text"]) == LLAMA_CPP["pre_tokenizers"]["ids"]["default"]


@pytest.mark.parametrize(("text", "expected"), LLAMA_CPP["sentencepiece"]["prefix"])
def test_sentencepiece(spm: Metadata, text: str, expected: list[int]) -> None:
    assert ids(build(spm), text) == expected


@pytest.mark.parametrize(("text", "expected"), LLAMA_CPP["sentencepiece"]["plain"])
def test_sentencepiece_without_a_leading_space(spm: Metadata, text: str, expected: list[int]) -> None:
    spm["tokenizer.ggml.add_space_prefix"] = False
    assert ids(build(spm), text) == expected


@pytest.mark.parametrize(("text", "expected"), LLAMA_CPP["gemma"])
def test_runs_of_spaces_and_lines_as_gemma_has_them(tmp_path: Path, text: str, expected: list[int]) -> None:
    built = build(gguf.read(write_llama(tmp_path / "gemma.gguf", vocabulary="gemma")).metadata)
    assert ids(built, text) == expected


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("text", ["hello there", " two  spaces ", "日本語 🙂\n\té", "\n", " "])
def test_sentencepiece_round_trip(spm: Metadata, text: str, prefix: bool) -> None:
    spm["tokenizer.ggml.add_space_prefix"] = prefix
    built = build(spm)
    assert built.decode(ids(built, text)) == text


def test_control_tokens_are_special_and_user_defined_ones_are_text(bpe: Metadata) -> None:
    built = build(bpe)
    tokens = bpe_tokens()
    found = ids(built, "<|im_start|><think><|im_end|>")
    assert [tokens[number] for number in found] == ["<|im_start|>", "<think>", "<|im_end|>"]
    assert built.decode(found) == "<think>"


def test_roles_of_tokens(bpe: Metadata, spm: Metadata) -> None:
    tokens = bpe_tokens()
    start, end, text_end = (tokens.index(text) for text in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))
    roles = {"bos": start, "eos": [end, text_end], "unk": None, "pad": None, "add_bos": False, "add_eos": False}
    assert special(bpe) == roles
    assert special(spm) == {"bos": 1, "eos": [2], "unk": 0, "pad": None, "add_bos": True, "add_eos": False}


def test_a_turn_ends_by_name_only_for_control_tokens(bpe: Metadata) -> None:
    tokens = bpe_tokens()
    kinds = bpe.numbers("tokenizer.ggml.token_type").copy()
    kinds[tokens.index("<|endoftext|>")] = 1
    bpe["tokenizer.ggml.token_type"] = kinds
    bpe["tokenizer.ggml.eot_token_id"] = 7
    assert special(bpe)["eos"] == [tokens.index("<|im_end|>"), 7]


def test_llama3_asks_for_its_bos_unless_the_file_says_no(bpe: Metadata) -> None:
    del bpe["tokenizer.ggml.add_bos_token"]
    assert not special(bpe)["add_bos"]
    bpe["tokenizer.ggml.pre"] = "llama-bpe"
    assert special(bpe)["add_bos"]
    bpe["tokenizer.ggml.add_bos_token"] = False
    assert not special(bpe)["add_bos"]


def test_tokens_without_text_are_kept_apart(bpe: Metadata) -> None:
    bpe["tokenizer.ggml.tokens"] = [*bpe_tokens(), "", ""]
    kinds = bpe.numbers("tokenizer.ggml.token_type")
    bpe["tokenizer.ggml.token_type"] = np.append(kinds, [5, 5])
    assert build(bpe).get_vocab_size() == len(bpe_tokens()) + 2


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        ("tokenizer.ggml.model", "bert", UnsupportedError, "'bert'; this version converts gpt2 and llama"),
        ("tokenizer.ggml.model", 7, PayloadError, "expected a text"),
        ("tokenizer.ggml.tokens", [*bpe_tokens()[:-1], "!"], PayloadError, "stands twice"),
        ("tokenizer.ggml.tokens", bpe_tokens()[:-1], PayloadError, "token types; expected as many of each"),
        ("tokenizer.ggml.tokens", np.arange(3), PayloadError, "expected a list of texts"),
        ("tokenizer.ggml.merges", ["abc"], PayloadError, "no pair of tokens"),
        ("tokenizer.ggml.merges", ["a b c"], PayloadError, "no pair of tokens"),
        ("tokenizer.ggml.merges", ["qqq zzz"], PayloadError, "vocabulary and merges do not fit"),
        ("tokenizer.ggml.bos_token_id", 2**31, PayloadError, "tokenizer.ggml.bos_token_id is 2147483648"),
        ("tokenizer.ggml.eos_token_id", -1, PayloadError, "tokenizer.ggml.eos_token_id is -1"),
    ],
)
def test_vocabularies_that_contradict_themselves(
    bpe: Metadata, key: str, value: Any, error: type[Exception], message: str
) -> None:
    bpe[key] = value
    with pytest.raises(error, match=message):
        build(bpe)
        special(bpe)


def test_scores_for_every_token(spm: Metadata) -> None:
    spm["tokenizer.ggml.scores"] = spm.numbers("tokenizer.ggml.scores")[:-1]
    with pytest.raises(PayloadError, match="scores; expected as many of each"):
        build(spm)


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    assert tokenizer.vocabulary(gguf.read(write_llama(tmp_path / "m.gguf")).metadata) is None
