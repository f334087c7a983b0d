"""The bytes of caches that a plan of a model with page tables tells: those of pages, never those of their descriptors."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tenonnx import cli, errors, plan, save
from tenonnx.cache import PageSpec, PageTable
from tenonnx.schema.messages import ValueInfoProto
from tests.runtime.paged_models import FLOAT16, attending, pages, tensor, updating

DIMS = (2, 3, 16, 64)
SIZES = {"n": 1, "p": 1}


def table_of(*formats):
    table = PageTable(PageSpec(FLOAT16, DIMS))
    for number, name in enumerate(formats):
        table.create(number, name)
    return table


def test_a_table_of_which_nothing_is_bound_counts_nothing():
    assert plan(updating(DIMS), SIZES).cache_bytes == 0
    assert plan(attending(4, 2, 8, 32), SIZES | {"pages": 1}).cache_bytes == 0


def test_a_bound_table_counts_the_pages_that_it_holds_in_their_own_formats():
    table = table_of("INT4_PAGE", "FP8_PAGE", "INT2_PAGE")
    assert plan(updating(DIMS), SIZES, tables={"cache": table}).cache_bytes == table.nbytes == 96 * (40 + 66 + 24)
    table.requantize(0, "F32")
    table.remove(1)
    assert plan(updating(DIMS), SIZES, tables={"cache": table}).cache_bytes == 96 * (256 + 24)
    assert plan(updating(DIMS), SIZES, tables={"cache": table_of()}).cache_bytes == 0


def test_pages_count_beside_a_dense_cache():
    made = updating(DIMS)
    dense = tensor(made.graph.input, "dense", FLOAT16, [1, 2, 8, 4])
    dense.access = ValueInfoProto.READ_WRITE
    assert plan(made, SIZES).cache_bytes == 2 * 8 * 4 * 2
    assert plan(made, SIZES, tables={"cache": table_of("F16")}).cache_bytes == 2 * 8 * 4 * 2 + 96 * 128


@pytest.mark.parametrize("name", ["values", "missing", "read"])
def test_a_name_that_is_no_read_write_table_is_refused(name):
    made = updating(DIMS)
    pages(made.graph.input, "read", DIMS)
    with pytest.raises(errors.BindingError, match=f"'{name}' is no READ_WRITE input"):
        plan(made, SIZES, tables={name: table_of("F16")})


def test_the_command_counts_the_pages_of_the_context_exactly(tmp_path):
    save(attending(4, 2, 8, 32, 64), tmp_path / "m.onnx")
    arguments = ["plan", str(tmp_path / "m.onnx"), "--dim", "n=1", "--dim", "p=1", "--context", "17", "--json"]
    result = CliRunner().invoke(cli.app, arguments)
    assert json.loads(result.stdout)["cache_bytes"] == 3 * 2 * 8 * (32 + 64) * 2
