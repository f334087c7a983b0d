"""What inspect shows of a saved cache is what the cache held; a damaged file is one line of error, whatever the damage."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml

import numpy as np
import pytest
from typer.testing import CliRunner

from tenonnx import cli
from tenonnx.cache import Aged, Cache, CacheSpec, container
from tenonnx.runtime import Session
from tests.runtime.paged_models import attending, rows

TOKENS, KV_HEADS, HEAD = 4, 2, 32
SVG = "{http://www.w3.org/2000/svg}"
PAGES, ROWS = b"TENONNXPAGES\x01", b"TENONNXCACHE\x01"


def inspect(*arguments, code=0):
    result = CliRunner().invoke(cli.app, ["inspect", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def paged(tmp_path_factory):
    """A cache whose K pages have stepped down and whose V pages have not, and its file."""
    session = Session(attending(4, KV_HEADS, TOKENS, HEAD))
    cache = session.new_cache(100, (Aged([("F16", 4), ("INT8_PAGE", 8), ("INT4_PAGE", None)]), Aged([("F16", None)])))
    rng = np.random.default_rng(0)
    for _ in range(18):
        q, k, v = rng.normal(size=(1, 4, 1, HEAD)).astype(np.float32), *(rows(rng, KV_HEADS, 1, HEAD) for _ in "kv")
        session.run({"q": q, "k_rows": k, "v_rows": v}, cache=cache)
    path = tmp_path_factory.mktemp("caches") / "cache.pages"
    cache.save(path)
    return cache, path


@pytest.fixture
def dense(tmp_path):
    cache = Cache({"k": CacheSpec(10, (1, 2, 9, 8), 2), "v": CacheSpec(1, (1, 2, 12, 4), 2)})
    cache.advance(5)
    cache.save(tmp_path / "cache.rows")
    return cache, tmp_path / "cache.rows"


# ---- The page map


def test_the_page_map_has_one_cell_for_each_page_and_a_line_for_each_format(paged):
    cache, path = paged
    shown = inspect(path).splitlines()
    letters = {"F16": "H", "INT8_PAGE": "i", "INT4_PAGE": "4"}
    assert shown[0] == f"18 tokens in 5 pages of 4, {cache.nbytes:,} bytes"
    for name in ("k", "v"):
        cells = "".join(letters[page[name]] for page in cache.page_formats())
        assert shown[shown.index(f"  {name}") + 1] == f"    {cells}"
    assert len({page["k"] for page in cache.page_formats()}) == 3
    for format, nbytes in cache.cache_bytes_by_format().items():
        assert f"  {letters[format]} {format}: {nbytes:,} bytes" in shown


def test_the_page_map_as_json_is_what_the_cache_says_of_itself(paged):
    cache, path = paged
    told = json.loads(inspect(path, "--json"))
    assert told.pop("formats") == {name: [page[name] for page in cache.page_formats()] for name in "kv"}
    by_format = cache.cache_bytes_by_format()
    assert told == {"tokens": 18, "page_tokens": 4, "pages": 5, "bytes": cache.nbytes, "cache_bytes_by_format": by_format}


def test_the_picture_has_a_titled_cell_for_each_page_of_each_group(paged, tmp_path):
    cache, path = paged
    inspect(path, "--svg", tmp_path / "map.svg")
    drawn = xml.parse(tmp_path / "map.svg")
    cells = [rect for rect in drawn.iter(f"{SVG}rect") if len(rect)]
    assert len({(rect.get("x"), rect.get("y")) for rect in cells}) == len(cells)
    titles = [rect.findtext(f"{SVG}title") for rect in cells]
    assert titles == [f"page {number}: {page[name]}" for name in "kv" for number, page in enumerate(cache.page_formats())]


# ---- Dense caches


def test_a_dense_cache_tells_length_and_each_tensor_with_type_shape_and_bytes(dense):
    assert inspect(dense[1]).splitlines() == [
        "5 tokens in 2 tensors, 320 bytes",
        "  k  FLOAT16[1, 2, 5, 8]  160 bytes",
        "  v  FLOAT[1, 2, 5, 4]  160 bytes",
    ]
    told = json.loads(inspect(dense[1], "--json"))
    assert told["tokens"] == dense[0].length and told["bytes"] == sum(entry["bytes"] for entry in told["tensors"])
    assert told["tensors"][0] == {"name": "k", "elem_type": "FLOAT16", "dims": [1, 2, 5, 8], "bytes": 160}


def test_a_dense_cache_has_no_picture(dense, tmp_path):
    assert "is a dense cache" in inspect(dense[1], "--svg", tmp_path / "x.svg", code=2)
    assert not (tmp_path / "x.svg").exists()


# ---- Damage


@pytest.mark.parametrize("kind", ["pages", "rows"])
def test_a_cut_longer_or_altered_file_is_one_line_of_error(kind, paged, dense, tmp_path):
    data = (paged if kind == "pages" else dense)[1].read_bytes()
    path = tmp_path / "damaged"
    header = int.from_bytes(data[13:21], "little")
    for damaged in (
        *(data[:cut] for cut in (13, 14, 21, 53, 54, 53 + header, len(data) - 1)),
        data + b"x",
        *(bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]]) for at in (13, 20, 22, 52, 53, 52 + header)),
    ):
        path.write_bytes(damaged)
        told = inspect(path, code=1)
        assert told.startswith("error: ") and told.count("\n") == 1 and str(path.name) in told


@pytest.mark.parametrize(
    "change",
    [
        {"length": float("inf")},
        {"length": -1},
        {"length": [1]},
        {"pages": None},
        {"tensors": {"k": [99, 2, 1, 2, None, 8]}},
        {"tensors": {"k": [10, 2, 1, 2, 3, 8]}},
        {"tensors": {"k": [10, 0, 1, -2, None, 8]}},
        {"tensors": {"k": [[], 7, None]}},
        {"tables": {"k": ["x"]}},
    ],
)
@pytest.mark.parametrize("magic", [PAGES, ROWS])
def test_a_header_that_no_cache_wrote_is_unsound_though_its_digest_is_right(magic, change, tmp_path):
    if magic == PAGES:
        sound = {"length": 0, "tokens": 4, "tables": {"k": [10, 2, 4, 8], "v": [10, 2, 4, 8]}, "pages": []}
    else:
        sound = {"length": 0, "tensors": {"k": [10, 2, 1, 2, None, 8]}, "digests": [""]}
    header = {key: change.get(key, value) for key, value in sound.items()}
    if magic == ROWS:
        header["signature"] = container.digest(json.dumps(header["tensors"], sort_keys=True).encode()).hex()
    container.write(tmp_path / "c", magic, header, [])
    if any(key in sound for key in change):
        assert "its header is unsound" in inspect(tmp_path / "c", code=1)
    else:
        assert inspect(tmp_path / "c").startswith("0 tokens")


def test_pages_of_negative_bytes_do_not_make_up_for_others(tmp_path):
    header = {"length": 1, "tokens": 4, "tables": {"k": [10, 2, 4, 8], "v": [10, 2, 4, 8]}}
    container.write(tmp_path / "c", PAGES, header | {"pages": [[["F16", -8, ""], ["F16", 8, ""]]]}, [])
    assert "its header is unsound" in inspect(tmp_path / "c", code=1)


@pytest.mark.parametrize("magic", [PAGES, ROWS])
def test_names_in_a_saved_cache_do_not_steer_the_terminal_or_break_the_picture(magic, tmp_path):
    name, format = "k\x1b[2J<\n\x00", "\x1b]0;owned\x07&"
    if magic == PAGES:
        header = {"length": 1, "tokens": 4, "tables": {name: [10, 2, 4, 8]}, "pages": [[[format, 0, ""]]]}
    else:
        tensors = {name: [10, 2, 1, 2, None, 8]}
        signature = container.digest(json.dumps(tensors, sort_keys=True).encode()).hex()
        header = {"length": 0, "tensors": tensors, "digests": [""], "signature": signature}
    container.write(tmp_path / "c", magic, header, [])
    assert not set(inspect(tmp_path / "c")) & {"\x1b", "\x07", "\x00"}
    if magic == PAGES:
        inspect(tmp_path / "c", "--svg", tmp_path / "m.svg")
        xml.parse(tmp_path / "m.svg")
