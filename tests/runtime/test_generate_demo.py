"""The demonstration runs without a download and shows the contract kept."""

import re

from typer.testing import CliRunner

from tenonnx import check, cli
from tenonnx.cli.demo import cache_model


def test_the_demonstrated_model_is_sound():
    assert check(cache_model()) == []


def test_the_demonstration_shows_one_address_the_bytes_and_three_refusals():
    result = CliRunner().invoke(cli.app, ["demo"], env={"COLUMNS": "400"})
    assert result.exit_code == 0 and result.stderr == "" and result.stdout.count("\n") == 10
    assert len(set(re.findall(r"0x[0-9a-f]+", result.stdout))) == 1
    assert "2,304 of 786,432 bytes: positions 5 to 7" in result.stdout and "0 cache bytes allocated" in result.stdout
    for refused in ("overflow: CapacityError", "plain array: ImmutableStorageError", "read-only array: ImmutableStorageError"):
        assert refused in result.stdout
    assert "0 bytes changed by the three" in result.stdout
