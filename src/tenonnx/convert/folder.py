"""What lies beside a model in its folder, as transformers and onnxruntime-genai write it: tokenizer and chat template.

Metadata written: ``tenonnx.tokenizer``, ``tenonnx.special_tokens``, ``tenonnx.chat_template`` as for a GGUF, and
``tenonnx.inputs``: JSON from the roles input_ids, position_ids, attention_mask, logits to the graph's names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenonnx.convert.editing import set_metadata
from tenonnx.errors import PayloadError

_SPECIAL = ("bos", "eos", "unk", "pad")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; ``PayloadError`` when there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PayloadError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{path}: is not JSON: {error}; fetch the folder again") from error
    if not isinstance(found, dict):
        raise PayloadError(f"{path}: holds a {type(found).__name__}; expected a JSON object")
    return found


def part(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object within a configuration; an empty one where there is none."""
    found = config.get(name)
    return found if isinstance(found, dict) else {}


def describe(model: Any, path: Path, *, inputs: Mapping[str, str], logits: str, special: Mapping[str, Any]) -> None:
    """Put the tokenizer of a folder, and which input is which, into a model's metadata.

    ``special`` may name token ids as genai_config.json does: bos_token_id, eos_token_id (one or a list), pad_token_id.
    """
    set_metadata(model, "tenonnx.inputs", json.dumps({**inputs, "logits": logits}))
    definition = path / "tokenizer.json"
    if not definition.is_file():
        return
    text = definition.read_text(encoding="utf-8")
    config = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
    set_metadata(model, "tenonnx.tokenizer", text)
    set_metadata(model, "tenonnx.special_tokens", json.dumps(_special_tokens(definition, text, config, special)))
    template = _chat_template(path, config)
    if template:
        set_metadata(model, "tenonnx.chat_template", template)


def _special_tokens(path: Path, definition: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(definition)
    except Exception as error:  # the library raises plain Exception
        raise PayloadError(f"{path}: is not a tokenizer.json: {error}; fetch the folder again") from error
    found: dict[str, Any] = {}
    for role in _SPECIAL:
        number = given.get(f"{role}_token_id")
        if number is None:
            number = tokenizer.token_to_id(_text(config.get(f"{role}_token")))
        found[role] = number
    eos = found["eos"]
    ends = [*eos] if isinstance(eos, list) else [] if eos is None else [eos]
    named = tokenizer.token_to_id(_text(config.get("eos_token")))  # a chat model may end its turns by another token
    found["eos"] = list(dict.fromkeys([*ends, *([] if named is None else [named])]))
    opened = tokenizer.encode("a", add_special_tokens=True).ids
    found["add_bos"] = bool(config.get("add_bos_token", found["bos"] is not None and opened[:1] == [found["bos"]]))
    return found


def _text(token: Any) -> str:
    """A token of tokenizer_config.json: a string, or an object that holds one."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _chat_template(path: Path, config: Mapping[str, Any]) -> str:
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # named ones; the one for plain conversations is called default
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""
