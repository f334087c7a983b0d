"""The loop: what runs when, where it ends, what is reported, and how a conversation reuses its cache."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonnx.errors import CapacityError, OptionError, TenonnxError, UnsupportedError
from tenonnx.text import Conversation, generate, stream
from tenonnx.text.generation import BATCH, Context
from tests.pure.text_fakes import byte_level, model, scripted, sentencepiece, writer


def mixed(cached):
    """A next token that depends on every token in the cache and its place."""
    return 4 + sum((i + 1) * token for i, token in enumerate(cached)) % 250


@pytest.mark.parametrize("definition", [byte_level(), sentencepiece()], ids=["byte_level", "sentencepiece"])
def test_a_continuation_streams_whole_and_ends_with_the_model(definition):
    pieces = stream(writer(" the hello 🎉!", "the", definition), "the", temperature=0)
    shown = list(pieces)
    made = pieces.generation
    assert "".join(shown) == made.text == " the hello 🎉!" and len(shown) > 3
    assert made.finish_reason == "eos" and made.token_ids[-1] == 1 and made.generated_tokens == len(made.token_ids)


def test_the_prompt_runs_in_batches_then_one_token_at_a_time():
    tested = model(mixed)
    prompt = "ab" * BATCH
    made = generate(tested, prompt, max_tokens=3, temperature=0)
    assert [len(ids) for ids in tested.session.feeds] == [BATCH, BATCH, 1, 1, 1]
    assert made.prompt_tokens == 2 * BATCH + 1 and made.generated_tokens == 3 and made.finish_reason == "length"
    # Oracle: the formula over the whole text.
    text = tested.tokenizer.encode(prompt)
    for token in made.token_ids:
        assert token == mixed(text)
        text.append(token)


KEYS = (
    "prompt_tokens generated_tokens text token_ids prompt_tokens_per_s decode_tokens_per_s cache_bytes extra_cache_bytes load_s"
)


def test_the_figures_have_the_documented_keys():
    made = generate(writer("hello", "x"), "x", temperature=0, seed=5, max_tokens=1).as_dict()
    assert set(KEYS.split()) <= made.keys()
    assert made["load_s"] == 0.25 and made["cache_bytes"] == 8 * (2 + 1) and made["seed"] == 5
    assert made["prompt_tokens_per_s"] > 0 and made["decode_tokens_per_s"] == 0  # one token: no step after it


def test_cache_bytes_allocated_while_generating_are_told():
    allocations = iter([100, 100, 164])
    tested = writer("hello", "x")
    object.__setattr__(tested, "cache_bytes_allocated", lambda: next(allocations))
    pieces = stream(tested, "x", temperature=0)
    assert pieces.generation.extra_cache_bytes == 0
    assert pieces.generation.extra_cache_bytes == 64


def test_a_stop_string_over_several_tokens_is_not_shown():
    pieces = stream(writer("hello\nUser: hi", "x"), "x", temperature=0, stop=["\nUser:"])
    assert "".join(pieces) == pieces.generation.text == "hello" and pieces.generation.finish_reason == "stop"


def test_one_stop_string_is_not_taken_for_its_letters():
    assert generate(writer("hello abc", "x"), "x", temperature=0, stop="abc").text == "hello "


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_exactly_max_tokens_are_written(max_tokens):
    tested = writer("hello hello", "x")
    made = generate(tested, "x", temperature=0, max_tokens=max_tokens)
    assert made.generated_tokens == max_tokens and made.finish_reason == "length"
    assert len(tested.session.feeds) == max(1, max_tokens), "no step whose logits nobody reads"


def test_a_full_context_ends_with_its_own_reason():
    made = generate(writer("hello hello", "x"), "x", temperature=0, context=5)
    assert made.finish_reason == "context" and made.generated_tokens == 4  # 2 of the prompt and 3 fit; the last needs no place
    made = generate(writer("hello hello", "x"), "x", temperature=0, context=2)
    assert made.finish_reason == "context" and made.generated_tokens == 1


def test_the_default_context_is_what_is_needed_at_most_what_the_model_knows():
    assert generate(writer("hello", "x"), "x", temperature=0, max_tokens=10).cache_bytes == 8 * 12
    short = model(scripted([10] * 20, 2), context_length=6)
    made = generate(short, "x", temperature=0)
    assert made.cache_bytes == 8 * 6 and made.finish_reason == "context"
    assert generate(short, "x", temperature=0, max_tokens=None).cache_bytes == 8 * 6


def test_a_prompt_over_the_context_is_refused_before_anything_runs():
    for options in ({"context": 3}, {}):
        tested = model(mixed, context_length=8)
        with pytest.raises(CapacityError, match="tokens"):
            generate(tested, "a prompt too long", **options)
        assert tested.session.feeds == []


def test_a_context_over_what_the_model_was_trained_for_is_refused():
    with pytest.raises(CapacityError, match="at most 8"):
        generate(model(mixed, context_length=8), "x", context=9)


@pytest.mark.parametrize("options", [{"max_tokens": -1}, {"context": 0}, {"stop": [""]}, {"temperature": -1}], ids=str)
def test_invalid_options_are_refused(options):
    with pytest.raises(OptionError):
        stream(writer("hello", "x"), "x", **options)


def test_a_system_message_needs_and_uses_the_chat_template():
    tested = model(mixed)
    generate(tested, "hi", system="be brief", max_tokens=1)
    text = "<s><|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tested.session.feeds[0] == tested.tokenizer.encode(text)


def test_an_interrupted_stream_tells_what_was_shown():
    tested = writer("hello hello", "x")
    run, steps = tested.session.run, iter(range(5))

    def interrupted(*args, **kwargs):
        if next(steps) == 3:
            raise KeyboardInterrupt
        return run(*args, **kwargs)

    tested.session.run = interrupted
    pieces, shown = stream(tested, "x", temperature=0), []
    with pytest.raises(KeyboardInterrupt):
        shown.extend(iter(lambda: next(pieces), None))
    made = pieces.generation
    assert made.finish_reason == "interrupted" and made.generated_tokens == 3 and made.text.startswith("he")
    assert list(pieces) == []


@given(st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=12), min_size=1, max_size=6))
def test_reuse_keeps_a_common_prefix_and_nothing_else(texts):
    tested = model(mixed)
    context, held = Context(tested, 20), []
    for tokens in texts:
        kept = context.reuse(tokens)
        common = next((i for i, (a, b) in enumerate(zip(held, tokens, strict=False)) if a != b), min(len(held), len(tokens)))
        assert kept == min(common, len(tokens) - 1)
        logits = context.run(tokens[kept:])
        assert np.argmax(logits) == mixed(tokens) and context.tokens == tokens
        held = tokens


def test_a_failed_run_leaves_no_tokens_behind():
    context = Context(model(mixed), 10)
    context.run([5, 6])
    session = context._session
    run, session.run = session.run, None
    with pytest.raises(TypeError):
        context.run([7])
    session.run = run
    assert context.tokens == [5, 6] and context.reuse([5, 6, 8]) == 2
    assert np.argmax(context.run([8])) == mixed([5, 6, 8])


def test_a_conversation_runs_only_what_is_new():
    tested = model(lambda cached: 1 if len(cached) % 7 == 0 else 20)
    talk = Conversation(tested, system="be brief", temperature=0)
    for said in ("hello", "and then?", "why"):
        held = talk.context.tokens
        start = len(tested.session.feeds)
        made = talk.reply(said)
        list(made)
        whole = tested.tokenizer.encode_messages(talk.messages[:-1])
        assert held + tested.session.feeds[start] == whole, "the first run of a turn continues the cache"
    assert [message["role"] for message in talk.messages] == ["system", *["user", "assistant"] * 3]
    assert talk.messages[-1]["content"] == made.generation.text


def test_a_reset_forgets_all_but_the_system_message():
    talk = Conversation(model(lambda cached: 1 if len(cached) % 7 == 0 else 20), system="be brief", temperature=0)
    list(talk.reply("hello"))
    talk.reset()
    assert talk.messages == [{"role": "system", "content": "be brief"}]


def test_a_message_that_does_not_fit_does_not_stay_in_the_conversation():
    talk = Conversation(model(lambda cached: 1 if len(cached) % 7 == 0 else 20), context=100, temperature=0)
    with pytest.raises(CapacityError):
        list(talk.reply("much too long " * 20))
    assert talk.messages == []
    list(talk.reply("hi"))
    assert [message["content"] for message in talk.messages[:1]] == ["hi"]


def test_an_interrupted_answer_stays_as_far_as_it_was_made():
    talk = Conversation(model(lambda cached: 20), temperature=0)
    answer = talk.reply("hi")
    shown = [next(answer) for _ in range(3)]
    assert talk.messages[-1] == {"role": "assistant", "content": "".join(shown)}


def test_a_conversation_without_a_template_is_refused_before_it_allocates():
    tested = model(mixed)
    tested.tokenizer._chat_template = ""
    tested.session.new_cache = None
    with pytest.raises(UnsupportedError, match="chat template"):
        Conversation(tested)


def test_a_context_nobody_names_is_asked_for():
    with pytest.raises(TenonnxError, match="max_tokens or context"):
        generate(model(mixed, context_length=None), "x", max_tokens=None)
