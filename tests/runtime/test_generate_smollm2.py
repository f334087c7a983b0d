"""Text from the real model, by every way to name it. Skipped where the model is not there and cannot be pulled."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tenonnx import cli, text
from tenonnx.errors import OptionError, PayloadError, TenonnxError

PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def gguf(smollm2_gguf):
    return smollm2_gguf


@pytest.fixture(scope="module")
def model(gguf):
    return text.load_model(gguf)


def kl(p_logits, q_logits):
    """Divergence of softmax(q) from softmax(p), in nats, in float64."""
    p, q = (x.astype(np.float64) - np.logaddexp.reduce(x.astype(np.float64)) for x in (p_logits, q_logits))
    return float(np.sum(np.exp(p) * (p - q)))


def test_a_greedy_continuation_knows_the_capital_and_allocates_no_cache(model):
    made = text.generate(model, PROMPT, max_tokens=24, temperature=0)
    assert "Paris" in made.text and made.prompt_tokens == 5 and made.generated_tokens <= 24
    assert made.extra_cache_bytes == 0 and made.cache_bytes == model.session.cache_bytes(5 + 24)
    assert model.tokenizer.decode(made.token_ids) == made.text


def test_the_same_seed_writes_the_same_text(model):
    first, second = (text.generate(model, PROMPT, max_tokens=8, seed=7, temperature=1.2) for _ in range(2))
    assert first.token_ids == second.token_ids


def test_a_conversation_over_one_cache_sees_what_a_fresh_one_sees(model):
    talk = text.Conversation(model, context=200, temperature=0)
    for said in ("My name is Ada.", "What is my name?"):
        "".join(talk.reply(said, max_tokens=8))
    held = talk.context.tokens
    tokens = model.tokenizer.encode_messages([*talk.messages, {"role": "user", "content": "Say it again."}])
    kept = talk.context.reuse(tokens)
    assert kept > len(held) // 2, "most of the conversation is still in the cache"
    continued = talk.context.run(tokens[kept:]).copy()
    fresh = text.generation.Context(model, 200).run(tokens)
    assert kl(fresh, continued) <= 6e-3


@pytest.mark.parametrize("paged", [False, True])
def test_a_saved_conversation_goes_on_in_another_process_without_its_prompt(gguf, tmp_path, paged):
    first = text.Conversation(text.load_model(gguf, paged=paged), system="Be brief.", context=200, temperature=0)
    "".join(first.reply("My name is Ada.", max_tokens=8))
    first.save(tmp_path / "talk")
    other = text.Conversation(text.load_model(gguf, paged=paged), context=150, temperature=0)
    other.load(tmp_path / "talk")
    assert other.messages == first.messages and other.context.tokens == first.context.tokens
    answers = [talk.reply("What is my name?", max_tokens=8) for talk in (first, other)]
    assert len({"".join(answer) for answer in answers}) == 1
    other.reset()
    assert other.messages == [{"role": "system", "content": "Be brief."}]


def test_a_cache_without_its_conversation_is_refused_and_nothing_is_lost(model, tmp_path):
    talk = text.Conversation(model, context=200, temperature=0)
    "".join(talk.reply("Hello.", max_tokens=4))
    held = talk.messages, talk.context.tokens
    talk.context.cache.save(tmp_path / "plain")
    talk.context.cache.save(tmp_path / "strange", {"messages": [], "opening": 0, "tokens": ["a"]})
    talk.context.cache.save(tmp_path / "few", {"messages": [], "opening": 0, "tokens": [1]})
    for name in ("plain", "strange"):
        with pytest.raises(PayloadError, match="holds a cache, but"):
            talk.load(tmp_path / name)
        assert (talk.messages, talk.context.tokens) == held
    with pytest.raises(OptionError, match="is not JSON"):
        talk.context.cache.save(tmp_path / "plain", {1, 2})
    talk.load(tmp_path / "few")  # tokens that the file does not name run again
    assert "".join(talk.reply("Hello.", max_tokens=4))


def test_the_end_of_an_answer_is_seen(model):
    talk = text.Conversation(model, context=200, temperature=0)
    answer = talk.reply("Reply with the single word yes.")
    list(answer)
    assert answer.generation.finish_reason == "eos" and "<|im_end|>" not in answer.generation.text


def test_a_full_context_ends_the_text(model):
    made = text.generate(model, PROMPT, max_tokens=50, context=9, temperature=0)
    assert made.finish_reason == "context" and made.generated_tokens == 5


def test_a_symlink_and_a_converted_copy_write_the_same(gguf, tmp_path, monkeypatch):
    folder, elsewhere = tmp_path / "models", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    link, converted = folder / "link.gguf", folder / "converted.onnx"
    link.symlink_to(gguf)
    assert CliRunner().invoke(cli.app, ["convert", "smollm2-135m", str(converted), "--copy"]).exit_code == 0
    checked = CliRunner().invoke(cli.app, ["check", str(converted)])
    assert (checked.exit_code, checked.stdout) == (0, "no findings\n")
    made = []
    for name in (link, converted, "smollm2-135m"):
        result = CliRunner().invoke(cli.app, ["generate", str(name), PROMPT, "-n", "4", "--temperature", "0", "--json"])
        assert result.exit_code == 0, result.stderr
        made.append(json.loads(result.stdout)["token_ids"])
    assert made[0] == made[1] == made[2]
    assert sorted(path.name for path in folder.iterdir()) == ["converted.onnx", "converted.onnx.data", "link.gguf"]


def test_weights_elsewhere_are_refused_with_the_ways_out(gguf, tmp_path):
    result = CliRunner().invoke(cli.app, ["convert", str(gguf), str(tmp_path / "out.onnx")])
    assert result.exit_code == 1 and "--copy" in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_token_outside_the_vocabulary_is_an_error_and_leaves_the_context_usable(model):
    context = text.generation.Context(model, 16)
    context.run([1, 2, 3])
    with pytest.raises(TenonnxError):
        context.run([49152])
    assert context.tokens == [1, 2, 3]
    assert context.run([4]).shape == (49152,)
