"""The figures of `tenonnx bench` are of the lengths that were asked for, and of this model."""

import json

import pytest
from typer.testing import CliRunner

from tenonnx import cli, text
from tenonnx.errors import CapacityError, OptionError
from tests.gguf_files import write_llama


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("speed") / "tiny.gguf", vocabulary="bpe", metadata={"context_length": 64})


def test_each_length_has_its_figure(path):
    model = text.load_model(path)
    found = text.speed(model, prompts=(3, 17), depths=(0, 20), decoded=4, repeat=1)
    assert list(found.prompt) == [3, 17] and list(found.decode) == [0, 20] == list(found.decode_share)
    assert all(rate > 0 for rate in (*found.prompt.values(), *found.decode.values(), found.read_bytes_per_s))
    assert found.weight_bytes == model.session.weight_bytes > 0
    assert found.cache_bytes == model.session.cache_bytes(24)
    share = found.decode[0] * found.weight_bytes / found.read_bytes_per_s
    assert found.decode_share[0] == pytest.approx(share)
    assert found.peak_rss_bytes > found.weight_bytes


def test_pages_are_measured_too(path):
    from tenonnx.cache import Uniform

    found = text.speed(text.load_model(path, paged=True), prompts=(5,), depths=(0,), decoded=2, repeat=1, kv=Uniform("INT8_PAGE"))
    assert found.decode[0] > 0


def test_more_tokens_than_the_model_admits(path):
    with pytest.raises(CapacityError, match="at most 64"):
        text.speed(text.load_model(path), prompts=(65,), depths=(), repeat=1)


@pytest.mark.parametrize("options", [{"prompts": (0,)}, {"depths": (-1,)}, {"decoded": 0}, {"repeat": 0}])
def test_lengths_that_cannot_be_measured(path, options):
    with pytest.raises(OptionError, match="expected"):
        text.speed(text.load_model(path), **options)


def test_the_command_prints_both(path):
    command = ["bench", str(path), "--prompt", "8", "--depth", "0", "--depth", "4", "-n", "2", "--repeat", "1"]
    shown = CliRunner().invoke(cli.app, command)
    assert shown.exit_code == 0, shown.output
    assert "prompt of      8" in shown.stdout and "decode at      4" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    figures = json.loads(CliRunner().invoke(cli.app, [*command, "--json"]).stdout)
    assert set(figures["prompt"]) == {"8"} and set(figures["decode"]) == {"0", "4"}
