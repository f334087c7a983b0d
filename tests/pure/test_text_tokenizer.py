"""Tokenizer metadata, special tokens and chat templates: what is added, what is refused, and hostile templates."""

import json

import pytest

from tenonnx.errors import OptionError, PayloadError, TenonnxError, UnsupportedError
from tenonnx.text.template import ChatTemplate
from tenonnx.text.tokenizer import Tokenizer
from tests.pure.text_fakes import BOS, CHAT_TEMPLATE, byte_level, metadata


def tokenizer(**special):
    return Tokenizer.from_metadata(metadata(byte_level(), **special))


def test_bos_is_added_where_asked_for_and_never_twice():
    assert tokenizer().encode("hi")[0] == BOS
    assert tokenizer(add_bos=False).encode("hi")[0] != BOS
    assert tokenizer().encode("<s>hi") == tokenizer().encode("hi")
    assert tokenizer(add_bos=False).encode("hi", add_bos=True)[0] == BOS


def test_spelled_out_special_tokens_count_only_where_asked_for():
    assert tokenizer().encode("<|im_end|>", add_bos=False) == [3]
    plain = tokenizer().encode("<|im_end|>", special=False, add_bos=False)
    assert 3 not in plain and tokenizer().decode(plain) == "<|im_end|>"


def test_an_empty_prompt_starts_from_bos_or_is_refused():
    assert tokenizer().encode_prompt("") == tokenizer(add_bos=False).encode_prompt("") == [BOS]
    with pytest.raises(OptionError, match="prompt is empty"):
        tokenizer(bos=None).encode_prompt("")


def test_text_that_is_no_unicode_is_refused():
    with pytest.raises(OptionError, match="not valid Unicode"):
        tokenizer().encode("\udc80")


def test_truncation_and_padding_of_a_definition_are_not_applied():
    definition = json.loads(byte_level())
    definition["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    definition["padding"] = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<s>",
    }
    assert len(Tokenizer(json.dumps(definition)).encode("abcd")) == 4


@pytest.mark.parametrize("eos, expected", [(2, {2}), ([2, 3], {2, 3}), (None, set())])
def test_end_tokens_may_be_one_several_or_none(eos, expected):
    assert tokenizer(eos=eos).eos == expected


@pytest.mark.parametrize("definition", ["", "{}", "[]", "nonsense", '{"version": "1.0", "model": {"type": "BPE"}}'])
def test_a_missing_or_broken_definition_is_an_error(definition):
    with pytest.raises((UnsupportedError, PayloadError), match=r"tenonnx\.tokenizer"):
        Tokenizer.from_metadata({"tenonnx.tokenizer": definition})


@pytest.mark.parametrize(
    "special", ["{", "[]", "3", '{"bos": "x"}', '{"eos": [1, -1]}', '{"eos": [1.5]}', '{"unk": 1e99}', "[" * 10000]
)
def test_broken_special_tokens_are_an_error(special):
    with pytest.raises(PayloadError, match=r"tenonnx\.special_tokens"):
        Tokenizer.from_metadata({"tenonnx.tokenizer": byte_level(), "tenonnx.special_tokens": special})


def test_messages_are_rendered_with_the_names_of_special_tokens():
    found = tokenizer().chat_template.render([{"role": "user", "content": " hi "}])
    assert found == "<s><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer().encode_messages([{"role": "user", "content": "hi"}])
    assert ids[:2] == [BOS, 2] and ids.count(BOS) == 1


def test_a_model_without_a_template_says_what_to_do():
    plain = Tokenizer(byte_level())
    assert not plain.has_chat_template
    with pytest.raises(UnsupportedError, match="generate"):
        plain.encode_messages([{"role": "user", "content": "hi"}])


def test_templates_may_use_the_usual_helpers():
    loop = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\n  {{ m | tojson }}{% endfor %}"
    source = loop + "{{ strftime_now('%%') }}"
    assert ChatTemplate(source, {}).render([{"a": "<é>"}, {}]) == '  {"a": "<é>"}%'


@pytest.mark.parametrize(
    "source, found",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "cannot be read"),
        ("{{ missing.attribute }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content.nothing() }}", "UndefinedError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for i in range(10**9) %}{% endfor %}", "OverflowError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
    ],
)
def test_a_failing_or_hostile_template_is_one_clear_error(source, found):
    with pytest.raises(TenonnxError, match=found):
        ChatTemplate(source, {}).render([{"role": "user", "content": "hi"}])


def test_the_conversation_is_not_changed_by_rendering():
    messages = [{"role": "user", "content": "hi"}]
    ChatTemplate(CHAT_TEMPLATE, {"bos_token": ""}).render(messages)
    assert messages == [{"role": "user", "content": "hi"}]
