"""Drawn tokens: the filters against a plain formula, the same seed twice, ties, broken logits and options."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonnx.errors import OptionError, TenonnxError
from tenonnx.text.sampling import Sampler, Sampling, _most_probable

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40).map(lambda values: np.array(values, np.float32))


def admitted(logits, top_k, top_p, min_p):
    """The ids that the three filters leave, in float64, from the definitions."""
    order = sorted(range(logits.size), key=lambda i: (-logits[i], i))
    order = order[:top_k] if top_k else order
    weights = [math.exp(float(logits[i]) - float(logits.max())) for i in order]
    kept, reached = [], 0.0
    for i, weight in zip(order, weights, strict=True):
        if kept and reached >= top_p * sum(weights) * (1 + 1e-9):
            break
        kept.append(i)
        reached += weight
    return {i for i in kept if i == order[0] or math.exp(float(logits[i]) - float(logits.max())) >= min_p}


@given(LOGITS, st.integers(0, 45), st.sampled_from([0.1, 0.5, 0.83, 1.0]), st.sampled_from([0.0, 0.07, 0.4, 1.0]))
def test_filters_leave_what_their_definitions_say(logits, top_k, top_p, min_p):
    found = set(_most_probable(logits, Sampling(top_k=top_k, top_p=top_p, min_p=min_p)).tolist())
    expected = admitted(logits, top_k, top_p, min_p)
    # float32 sums may put one token on the other side of a threshold that it all but equals.
    assert len(found ^ expected) <= 1 and np.argmax(logits) in found


def test_top_p_over_a_whole_vocabulary_searches_past_its_head():
    logits = np.zeros(5000, np.float32)
    assert _most_probable(logits, Sampling(top_k=0, top_p=0.9, min_p=0)).tolist() == list(range(4500))
    assert _most_probable(logits, Sampling(top_k=0, top_p=1, min_p=0)).size == 5000


@given(LOGITS)
def test_temperature_zero_and_top_k_one_take_the_greatest(logits):
    for options in (Sampling(temperature=0), Sampling(top_k=1)):
        assert Sampler(options)(logits) == np.argmax(logits)


@given(LOGITS, st.integers(0, 2**32))
def test_the_same_seed_draws_the_same_tokens(logits, seed):
    first, second = (Sampler(Sampling(seed=seed, temperature=1.5)) for _ in range(2))
    assert [first(logits) for _ in range(5)] == [second(logits) for _ in range(5)]


def test_a_seed_of_its_own_is_told_and_can_be_used_again():
    logits = np.zeros(100, np.float32)
    first = Sampler(Sampling(top_k=0))
    again = Sampler(Sampling(top_k=0, seed=first.seed))
    assert [first(logits) for _ in range(9)] == [again(logits) for _ in range(9)]
    assert first.seed != Sampler().seed


def test_frequencies_follow_the_tempered_probabilities():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(Sampling(temperature=0.5, top_p=1, min_p=0, seed=3))
    drawn = np.bincount([sampler(logits) for _ in range(4000)], minlength=3) / 4000
    expected = np.array([0.25, 0.09, 0.04]) / 0.38
    np.testing.assert_allclose(drawn, expected, atol=0.03)


def test_equal_logits_are_kept_by_id():
    logits = np.random.default_rng(0).integers(0, 3, 5000).astype(np.float32)
    kept = _most_probable(logits, Sampling(top_k=3000, top_p=1, min_p=0))
    assert kept.tolist() == sorted(range(5000), key=lambda i: (-logits[i], i))[:3000]


def test_the_repeat_penalty_divides_positive_and_multiplies_negative_logits_once():
    logits = np.array([3, 2, -1, -1.5], np.float32)
    kept = logits.copy()
    assert Sampler(Sampling(temperature=0, repeat_penalty=2))(logits, [0, 0]) == 1
    assert Sampler(Sampling(temperature=0, repeat_penalty=2))(logits[2:], [0]) == 1
    assert np.array_equal(logits, kept), "the logits belong to the session"


def test_the_repeat_penalty_forgets_tokens_before_the_window_and_skips_foreign_ids():
    logits = np.array([3, 2], np.float32)
    penal = Sampler(Sampling(temperature=0, repeat_penalty=4))
    assert penal(logits, [0] + [7] * 63) == 1
    assert penal(logits, [0] + [7] * 64) == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_are_told(value):
    logits = np.array([0, value, 1], np.float32)
    with pytest.raises(TenonnxError, match="broken"):
        Sampler(Sampling(temperature=0))(logits)
    with pytest.raises(TenonnxError, match="broken"):
        Sampler()(np.full(4, -np.inf, np.float32))


def test_masked_tokens_are_never_drawn():
    logits = np.array([-np.inf, 1, -np.inf, 1], np.float32)
    sampler = Sampler(Sampling(top_k=0, top_p=1, min_p=0, seed=1))
    assert {sampler(logits) for _ in range(200)} == {1, 3}


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.01},
        {"top_p": math.nan},
        {"min_p": -0.1},
        {"min_p": 2},
        {"repeat_penalty": 0},
        {"repeat_penalty": math.nan},
        {"seed": -1},
    ],
    ids=str,
)
def test_an_option_outside_its_range_is_refused_by_name(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        Sampling(**options)
