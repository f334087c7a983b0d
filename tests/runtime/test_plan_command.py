"""``tenonnx plan``: what it prints is the plan, on 80 columns; its picture is one page that needs no other file."""

import json
import re
import xml.etree.ElementTree as xml
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

from tenonnx import Session, cli, convert, plan, save
from tenonnx.inspection import machine
from tenonnx.inspection.machine import Memory, memory
from tenonnx.plan.timeline import live_bytes, tenants
from tests.gguf_files import write_llama
from tests.graphs import cached_graphs
from tests.models import FLOAT, INT64, Graph, cache_model, spec_example
from tests.runtime.test_loops_at_run_time import loop_model

DIMS = ["--dim", "batch=1", "--dim", "heads=2", "--dim", "head_size=4", "--dim", "new_length=3"]
KEYS = [
    "peak_bytes",
    "arena_bytes",
    "workspace_bytes",
    "cache_bytes",
    "extra_cache_bytes",
    "steps",
    "values",
    "weight_bytes",
    "output_bytes",
    "total_bytes",
    "available_bytes",
    "fits",
]


def run(*arguments, code=0):
    result = CliRunner().invoke(cli.app, ["plan", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


@pytest.fixture
def example(tmp_path):
    save(spec_example(), tmp_path / "example.onnx")
    return tmp_path / "example.onnx"


@pytest.fixture
def llama(tmp_path):
    write_llama(tmp_path / "llama.gguf")
    return tmp_path / "llama.gguf"


# ---- Figures


def test_json_has_these_keys_and_the_plan_s_figures(example):
    found = json.loads(run(example, *DIMS, "--context", 8, "--json"))
    assert list(found) == KEYS
    assert (found["peak_bytes"], found["cache_bytes"], found["extra_cache_bytes"]) == (0, 2 * 2 * 8 * 4 * 2, 0)
    assert [step["kernel"] for step in found["steps"]] == ["check_position", "cache_update"]
    cache, updated = (next(row for row in found["values"] if row["name"] == name) for name in ("cache", "updated_cache"))
    assert (cache["storage"], updated["storage"]) == ("input", "alias") and found["values"][updated["root"]] is cache


def test_the_peak_is_arena_plus_workspace_and_caches_count_apart(llama):
    found = json.loads(run(llama, "--dim", "batch=1", "--dim", "n=1", "--json"))
    assert found["peak_bytes"] == found["arena_bytes"] + found["workspace_bytes"] > 0
    assert found["workspace_bytes"] > 0 and found["extra_cache_bytes"] == 0
    shorter = json.loads(run(llama, "--dim", "batch=1", "--dim", "n=1", "--context", 16, "--json"))
    assert shorter["cache_bytes"] * 8 == found["cache_bytes"], "the default context is the 128 that the model was trained for"


def test_a_copy_of_a_whole_cache_shows_in_the_extra_bytes():
    model = cache_model(rows=1)
    assert plan(model).extra_cache_bytes == 0
    model.graph.output.add(name="cache").type.CopyFrom(model.graph.input[0].type)  # the old content, under no alias
    assert plan(model).extra_cache_bytes == plan(model).cache_bytes > 0


def test_weights_count_once_in_each_layout_that_a_kernel_reads(llama, tmp_path):
    convert.convert(llama, tmp_path / "llama.onnx", copy=True)
    session = Session(tmp_path / "llama.onnx", threads=1)
    context = session.new_cache(context=8)
    feeds = {"input_ids": np.array([[1]]), "position_ids": np.array([[0]]), "logit_rows": np.array([0])}
    session.run(feeds, cache=context)
    found = plan(session.model, {"batch": 1, "n": 1, "k": 1, "max_length": 8})
    assert session.weight_bytes <= found.weight_bytes <= session.weight_bytes + 1024  # constants that the plan provides itself


def test_pages_count_for_the_context_in_the_format_of_new_pages(llama, tmp_path):
    convert.convert(llama, tmp_path / "paged.onnx", copy=True, paged=16)
    arguments = tmp_path / "paged.onnx", "--dim", "n=1", "--dim", "p=1", "--json"
    short, long = (json.loads(run(*arguments, "--context", context))["cache_bytes"] for context in (16, 33))
    assert long == 3 * short > 0


# ---- Text


def test_lines_fit_80_columns_and_say_what_fits(llama, example):
    for arguments in ((llama, "--dim", "batch=1", "--dim", "n=1"), (llama, "--dim", "batch=7", "--dim", "n=5", "--all")):
        lines = run(*arguments).splitlines()
        assert max(map(len, lines)) <= 80
        assert lines[-1].startswith("fits: a context of 128 takes ")
    assert "a context of 9" in run(example, *DIMS, "--context", 9)


def test_layers_that_are_alike_stand_there_once(tmp_path):
    arguments = write_llama(tmp_path / "deep.gguf", layers=6), "--dim", "batch=1", "--dim", "n=1"
    every = [int(line[:5]) for line in run(*arguments, "--all").splitlines() if re.match(r" *\d+  ", line)]
    assert every == list(range(len(every)))
    shown = [int(number) for number in re.findall(r"^ {0,4}(\d+)  ", run(*arguments), re.MULTILINE)]
    folded = re.findall(r"the (?:(\d+) )?steps? above, (\d+) times more, to step (\d+)", run(*arguments))
    assert len(shown) + sum(int(size or 1) * int(times) for size, times, _ in folded) == len(every)
    assert folded
    for _, _, last in folded:
        assert int(last) + 1 in shown or int(last) == len(every) - 1


def test_steps_of_a_loop_have_a_sign(tmp_path):
    save(loop_model(), tmp_path / "loop.onnx")
    lines = run(tmp_path / "loop.onnx").splitlines()
    assert any("\N{CLOCKWISE OPEN CIRCLE ARROW} updated.body[0]/u (CacheUpda" in line and "cache" in line for line in lines)
    assert max(map(len, lines)) <= 80 and not any("if updated.body/on" in line for line in lines)


def test_what_does_not_fit_is_told(example, monkeypatch):
    monkeypatch.setattr(machine, "memory", lambda: Memory(250, "this machine has free"))
    assert "does not fit: a context of 8 takes 6 bytes over the 250 bytes" in run(example, *DIMS, "--context", 8)
    assert "fits: a context of 7 takes 89.6 %" in run(example, *DIMS, "--context", 7)


@pytest.mark.parametrize(
    ("arguments", "code", "found"),
    [
        (["--dim", "batch=1"], 2, "heads, max_length, head_size, new_length; give --dim heads=N --context N --dim head_size=N"),
        ([*DIMS, "--dim", "rows=2", "--context", "8"], 2, "--dim rows: no input has this dimension; theirs are batch, heads"),
        (["--dim", "batch"], 2, "--dim batch: expected NAME=N"),
        (["--dim", "batch=-1"], 2, "expected NAME=N"),
        (["--dim", "=1"], 2, "expected NAME=N"),
        ([*DIMS, "--context", "2"], 1, "3 new rows do not fit the cache's 2"),
        ([*DIMS, "--context", "8", "--html", "/nonexistent/x.html"], 1, "/nonexistent/x.html: cannot be written"),
    ],
)
def test_errors_name_what_to_give(example, arguments, code, found):
    told = run(example, *arguments, code=code)
    assert found in told and told.count("\n") == 1


def test_a_context_over_the_declared_capacity(tmp_path):
    save(cache_model(dims=(1, 2, 8, 4), rows=1), tmp_path / "fixed.onnx")
    assert "a cache is declared with a capacity of 8" in run(tmp_path / "fixed.onnx", "--context", 9, code=1)
    assert "a context of 8 takes" in run(tmp_path / "fixed.onnx", "--context", 5)


def test_dimensions_without_a_name_go_by_their_place(tmp_path):
    g = Graph()
    g.input("x", FLOAT, [2, None])
    g.node("Neg", ["x"], "y")
    g.output("y", FLOAT, None)
    save(g.model, tmp_path / "odd.onnx")
    assert "give --dim x[1]=N" in run(tmp_path / "odd.onnx", code=2)
    assert json.loads(run(tmp_path / "odd.onnx", "--dim", "x[1]=5", "--json"))["values"][0]["dims"] == [2, 5]


def test_a_model_that_breaks_the_contract_is_refused(tmp_path):
    model = spec_example()
    model.graph.node[0].output_alias[0].input_index = 1
    save(model, tmp_path / "broken.onnx")
    assert "error:" in run(tmp_path / "broken.onnx", code=1)


# ---- Memory over the steps


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cached_graphs())
def test_no_byte_has_two_tenants_at_a_step(case):
    found = plan(
        case.graph.model, {f"{name}_{axis}": dim for name, array in case.inputs.items() for axis, dim in enumerate(array.shape)}
    )
    held = tenants(found)
    for number, count in enumerate(live_bytes(found)):
        inside = sorted((t.offset, t.offset + t.nbytes) for t in held if t.first <= number < t.last and t.nbytes)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(inside))
        assert sum(end - begin for begin, end in inside) == count <= found.peak_bytes
    assert len({t.value for t in held}) == len(held)


# ---- The page


def drawings(text):
    return [xml.fromstring(part) for part in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


def test_the_page_is_whole_and_needs_no_network(llama, tmp_path):
    told = CliRunner().invoke(
        cli.app, ["plan", str(llama), "--dim", "batch=1", "--dim", "n=1", "--html", str(tmp_path / "p.html")]
    )
    assert told.exit_code == 0 and told.stdout == ""
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=|url\(|https?:|import ", text) and "$" not in text
    caches, outputs, workspace, arena = drawings(text)
    lanes = [part.findtext("title") for part in caches if part.get("class") == "lane"]
    assert len(lanes) == 4 and all("updated" not in title and "written by step" in title for title in lanes)
    assert len([part for part in caches if part.get("class") == "write"]) == 4
    assert "logits" in outputs[0].findtext("title")
    names = [part.findtext("title").split(":")[0] for part in arena if part.get("class") == "value"]
    assert any(name.endswith("attn.norm") for name in names)
    assert [part.findtext("title").splitlines()[1] for part in workspace if part.get("class") == "value"]
    steps = json.loads(run(llama, "--dim", "batch=1", "--dim", "n=1", "--json"))["steps"]
    assert text.count("<tr>") == len(steps) + 1


def test_the_page_of_hostile_names_and_of_no_memory(tmp_path):
    g = Graph()
    g.input("</svg><b>&", FLOAT, [3], mutable=True)
    g.input("position", INT64, [])
    g.input("values\n\x00", FLOAT, [1])
    g.update("</svg><b>&", "values\n\x00", "position", "</title>$$x", axis=0)
    g.output("</title>$$x", FLOAT, [3], alias_of="</svg><b>&")
    save(g.model, tmp_path / "hostile.onnx")
    run(tmp_path / "hostile.onnx", "--html", tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    (band,) = drawings(text)
    assert band[0].findtext("title").startswith("</svg><b>&: FLOAT[3], 12 bytes")
    assert "<b>" not in text and "\x00" not in text
    run(tmp_path / "hostile.onnx", "--svg", tmp_path / "p.svg")
    (titled,) = [part for part in xml.parse(tmp_path / "p.svg").getroot().iter() if part.get("class") == "lane"]
    assert titled[0].text.startswith("</svg><b>&: FLOAT[3], 12 bytes")


def test_the_picture_has_the_drawings_of_the_page(llama, tmp_path):
    for option, file in (("--html", "p.html"), ("--svg", "p.svg")):
        assert run(llama, "--dim", "batch=1", "--dim", "n=1", option, tmp_path / file) == ""
    root = xml.parse(tmp_path / "p.svg").getroot()
    svg = "{http://www.w3.org/2000/svg}"
    bands = root.findall(f"{svg}svg")
    shown = drawings((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert [[part.attrib for part in band] for band in bands] == [[part.attrib for part in band] for band in shown]
    assert [int(band.get("y")) for band in bands[1:]] == [int(band.get("y")) + int(band.get("height")) for band in bands[:-1]]
    texts = [part.text for part in root.findall(f"{svg}text")]
    assert {"caches: 4", "workspace", "arena", "0"} <= set(texts) and texts[0].startswith(f"{llama}: peak of a run ")
    width, height = int(root.get("width")), int(root.get("height"))
    assert all(0 <= float(part.get("x")) <= width and 0 < float(part.get("y")) <= height for part in root.findall(f"{svg}text"))


# ---- Memory of the machine


@pytest.mark.parametrize("version", [1, 2])
def test_a_control_group_leaves_less_than_the_machine_has(tmp_path, monkeypatch, version):
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert memory().limit == "this machine has free" and memory().available > 0
    names = [tmp_path / name for name in machine._LIMITS[2 - version]]
    names[0].parent.mkdir(exist_ok=True)
    for path, text in zip(names, ("5000", "3000", "file 9\ninactive_file 500\n"), strict=True):
        path.write_text(text)
    assert memory() == Memory(2500, "the control group leaves")
    names[1].write_text("9000")
    assert memory().available == 0
    names[0].write_text("max")
    assert memory().limit == "this machine has free"


def test_fusions_are_switched_by_name(llama):
    steps = {
        choice: len(json.loads(run(llama, "--fusions", choice, "--json"))["steps"]) for choice in ("none", "gate,norm", "all")
    }
    assert steps["none"] > steps["gate,norm"] > steps["all"]
    assert "'qkv' is no fusion; expected all, none, or some of gate, residual" in run(llama, "--fusions", "gate,qkv", code=2)
