"""Streamed text is the text of all tokens, wherever characters, spaces and stop strings are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonnx.errors import OptionError
from tenonnx.text.decoding import StopStrings, StreamDecoder
from tenonnx.text.tokenizer import Tokenizer
from tests.pure.text_fakes import BOS, byte_level, metadata, sentencepiece

TOKENIZERS = [Tokenizer.from_metadata(metadata(make())) for make in (byte_level, sentencepiece)]
TEXTS = st.text(st.one_of(st.sampled_from("the ll\n!€🎉é"), st.characters(exclude_categories=["Cs"])), max_size=20)


def streamed(tokenizer, tokens, context=()):
    decoder = StreamDecoder(tokenizer, context)
    pieces = [decoder.push(token) for token in tokens]
    return [*pieces, decoder.finish()]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte_level", "sentencepiece"])
@given(prompt=TEXTS, text=TEXTS)
def test_pieces_join_to_the_whole_text(tokenizer, prompt, text):
    tokens = tokenizer.encode(prompt + text, special=False)
    start = len(tokens) // 2
    # The prompt must end between two characters; the tokens it ends with say whether a space follows.
    while start and "\ufffd" in tokenizer.decode(tokens[:start]):
        start -= 1
    whole, front = tokenizer.decode(tokens), tokenizer.decode(tokens[:start])
    assert front + "".join(streamed(tokenizer, tokens[start:], tokens[:start])) == whole


@given(st.lists(st.integers(0, 265)))
def test_any_tokens_of_a_byte_level_vocabulary_join(tokens):
    tokenizer = TOKENIZERS[0]
    assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens)


@given(st.lists(st.one_of(st.integers(0, 3), st.integers(260, 271), st.just(9999))))
def test_special_and_unknown_tokens_do_not_eat_the_space_after_them(tokens):
    tokenizer = TOKENIZERS[1]
    assert "".join(streamed(tokenizer, tokens)) == tokenizer.decode(tokens)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte_level", "sentencepiece"])
def test_an_incomplete_character_is_held_back_until_it_is_whole(tokenizer):
    tokens = tokenizer.encode("the🎉", add_bos=False)
    pieces = streamed(tokenizer, tokens)
    assert pieces[-2:] == ["🎉", ""] and all("\ufffd" not in piece for piece in pieces)


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["byte_level", "sentencepiece"])
def test_a_character_that_stays_incomplete_is_told_at_the_end(tokenizer):
    pieces = streamed(tokenizer, tokenizer.encode("the🎉", add_bos=False)[:-1])
    assert "".join(pieces[:-1]) == "the" and set(pieces[-1]) == {"\ufffd"}


def test_the_leading_space_follows_from_the_prompt():
    tokenizer = TOKENIZERS[1]
    tokens = tokenizer.encode("the the", add_bos=False)
    assert streamed(tokenizer, tokens[1:], tokens[:1])[0] == " the"
    assert streamed(tokenizer, tokens[1:], [BOS])[0] == "the"
    # A prompt that ends in byte tokens: four of them would start inside of a character.
    assert streamed(tokenizer, tokens[1:], tokenizer.encode("🎉€"))[0] == " the"


@given(text=st.text("ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), data=st.data())
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    stopper, shown = StopStrings(stops), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        shown += stopper.push(text[start:end])
        assert not any(stop in shown for stop in stops)
    shown += stopper.finish()
    # Oracle: the stop string that is complete first; of several, the one that starts first.
    ends = [(text[:end], end) for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    assert stopper.found == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert any(text[len(shown) :].startswith(stop) for stop in stops) and not any(stop in shown for stop in stops)


def test_a_stop_string_holds_back_only_what_may_become_it():
    stopper = StopStrings(["\nUser:"])
    assert [stopper.push(piece) for piece in ("Hi", " there\nUs", "ed", "\nUser", ":")] == ["Hi", " there", "\nUsed", "", ""]
    assert stopper.found and stopper.finish() == ""


def test_of_several_stop_strings_the_first_in_the_text_ends_it():
    stopper = StopStrings(["b", "a"])
    assert stopper.push("xaxb") == "x" and stopper.found


def test_an_empty_stop_string_is_refused():
    with pytest.raises(OptionError, match="stop string is empty"):
        StopStrings(["a", ""])
