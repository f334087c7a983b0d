"""What inspect shows is what the types and the model say, on 80 columns, whatever their names and sizes."""

import json
import re
import xml.etree.ElementTree as xml

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from tenonnx import cli, convert, save, structs
from tenonnx.inspection import BitMap, described, rows, svg, unwrapped
from tenonnx.inspection.bitmap import MAX_BITS, TIMES
from tenonnx.inspection.show import type_lines
from tenonnx.schema.external import DataRoot
from tenonnx.schema.messages import ModelProto, TensorProto
from tenonnx.structs import bits, catalogue, constant, f16, i4, i8, pad, structure, u2, u16
from tests.gguf_files import write_llama


def inspect(*arguments, code=0, **environment):
    result = CliRunner().invoke(cli.app, ["inspect", *map(str, arguments)], env={"COLUMNS": "80", **environment})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


NODES = st.recursive(
    st.sampled_from([f16, i8, u2, i4, bits(a=3, b=5)[2], bits(x=1)[3], bits(wide=70)[1], structs.tensor(u16, 2, 3)]),
    lambda inner: st.one_of(
        st.builds(lambda node, count: node[count], inner, st.integers(0, 3)),
        st.builds(lambda parts: structure("S", **{f"f{i}": part for i, part in enumerate(parts)}), st.lists(inner, max_size=4)),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(NODES)
def test_every_bit_belongs_to_the_leaf_that_a_view_reads_there(node):
    found = BitMap(node)
    assert found.owner.size == min(node.bits, MAX_BITS)
    reread = structs.leaves(node)
    for place, leaf in enumerate(reread):
        shown = np.zeros(node.bits // 8 + 2, np.uint8)
        indices = np.flatnonzero(found.owner == place)
        np.bitwise_or.at(shown, indices // 8, (1 << (indices % 8)).astype(np.uint8))
        # All bits of a leaf set in the bytes read back as all ones, and every other leaf reads as zero.
        padded = structure("P", value=node, rest=bits(pad=8 - node.bits % 8)[1])
        arrays = structs.view(shown[: padded.bits // 8], padded).leaves()
        for other, array in enumerate(arrays[: len(reread)]):
            raw = np.ascontiguousarray(array).view(np.uint8)
            assert raw.any() == (other == place and array.size > 0), (leaf, other)
    assert (found.owner >= 0).all()


@pytest.mark.parametrize(
    "node", [bits(q=3)[10_000], structure("S", a=u2, b=bits(q=5, r=6)[7][300], c=i8[2000]), bits(wide=20_000)[2]]
)
def test_the_map_of_a_large_type_ends_within_a_leaf(node):
    found = BitMap(node)
    assert found.owner.size == MAX_BITS and (found.owner >= 0).all()
    for first, _, place in found.runs(MAX_BITS - 64, MAX_BITS):
        assert found.label(first).startswith(found.leaves[place].path)


@settings(max_examples=60, deadline=None)
@given(NODES)
def test_a_tree_has_each_leaf_once_and_its_lines_fit(node):
    _, element = unwrapped(node)
    listed = rows(element)
    leaves = structs.leaves(element)
    assert [row.leaf for row in listed if row.leaf is not None] == list(range(len(leaves)))
    assert [row.offset for row in listed if row.leaf is not None] == [leaf.offset for leaf in leaves]
    assert all(len(line.plain) <= 80 for line in type_lines("T", node))
    xml.fromstring(svg("T", node))
    json.dumps(described(node))


@pytest.mark.parametrize("name", list(catalogue))
def test_every_format_is_shown(name):
    shown = inspect(name)
    assert shown.startswith(f"{name}: ") and max(map(len, shown.splitlines())) <= 80
    for leaf in catalogue[name].leaves:
        assert leaf.path.rpartition(".")[2] in shown
    told = json.loads(inspect(name, "--json"))
    assert told["bits"] == catalogue[name].block_type.bits and told["fields"]


def test_a_ruler_marks_each_bit_and_counts_lines_alike():
    lines = inspect("Q4_K").splitlines()
    assert "     0  aaaaaaaa aaaaaaaa bbbbbbbb bbbbbbbb ccccccdd ccccccdd ccccccdd ccccccdd" in [line.rstrip() for line in lines]
    assert lines[-1].strip() == "… 15 lines alike: 120 bytes"


def test_colours_are_for_terminals_alone():
    assert "\x1b" not in inspect("Q4_0")
    assert "\x1b[" in inspect("Q4_0", FORCE_COLOR="1", TERM="xterm-256color")
    assert not re.search("\x1b\\[[0-9;]*(38|48);", inspect("Q4_0", FORCE_COLOR="1", NO_COLOR="1", TERM="xterm-256color"))


def test_a_drawing_has_a_box_for_each_element(tmp_path):
    inspect("Q4_0", "--svg", tmp_path / "bits.svg")
    root = xml.parse(tmp_path / "bits.svg").getroot()
    titles = [title.text for title in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 1 + 32 and "qs.hi[15]: bits 140 to 143" in titles and "d: bits 0 to 15" in titles
    assert "://" not in re.sub(r"http://www\.w3\.org/2000/svg", "", (tmp_path / "bits.svg").read_text())
    assert "cannot be written" in inspect("Q4_0", "--svg", tmp_path / "none" / "bits.svg", code=1)


# ---- Models


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    return write_llama(folder / "llama.gguf", format="Q4_0", formats={"token_embd.weight": "Q8_0"}, vocabulary="bpe")


def test_a_model_on_one_screen(llama):
    shown = inspect(llama)
    assert max(map(len, shown.splitlines())) <= 80
    for line in (
        rf"key_cache\.\* {TIMES} 2 +FLOAT16\[batch, 2, max_length, 16\]",
        rf"key_cache\.\*\.updated {TIMES} 2 +is key_cache\.\*, updated in place",
        r"Q4_0 +14 .* llama\.gguf",
        r"Q8_0 +1 ",
        r"tenonnx\.architecture +llama",
        r"Q4_0 +18 bytes",
    ):
        assert re.search(line, shown), (line, shown)
    told = json.loads(inspect(llama, "--json"))
    caches = [value for value in told["inputs"] if value.get("access") == "READ_WRITE"]
    assert [value["updated_as"] for value in caches] == [f"{value['name']}.updated" for value in caches] and len(caches) == 4
    stored = {group["format"]: group["bytes"] for group in told["weights"] if group["file"]}
    matrices = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96)
    assert stored["Q4_0"] == matrices // 32 * 18
    assert told["metadata"]["tenonnx.architecture"] == "llama"


def test_the_fields_of_one_element(llama):
    told = json.loads(inspect(llama, "--values", "blk.1.ffn_up.weight[5]", "--json"))
    model, folder = convert.from_gguf(llama)
    value = next(value for value in model.graph.struct_initializer if value.name == "blk.1.ffn_up.weight")
    seen = structs.view(value, struct_types=model.struct_types, data_root=DataRoot(folder))[5]
    assert told["fields"]["d"] == float(seen.d) and told["fields"]["qs.lo"] == seen.qs.lo.tolist()
    block = np.frombuffer(bytes.fromhex(told["bytes"]), np.uint8)
    assert told["decoded"] == catalogue["Q4_0"].decode(block, (32,)).tolist()
    shown = inspect(llama, "--values", "blk.1.ffn_up.weight[-1]")
    assert shown.startswith("blk.1.ffn_up.weight[191]: 18 bytes") and max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    "arguments, found",
    [
        (("--values", "nothing[0]"), "no structured initializer 'nothing'"),
        (("--values", "blk.0.attn_norm.weight[0]"), "plain tensor"),
        (("--values", "blk.0.attn_q.weight"), "name one"),
        (("--values", "blk.0.attn_q.weight[128]"), "128"),
        (("--type", "99"), "99"),
        (("--type", "Q9"), "no type 'Q9'"),
        (("--svg", "x.svg"), "--type"),
    ],
)
def test_what_is_not_there_is_told_in_one_line(llama, arguments, found):
    told = inspect(llama, *arguments, code=1)
    assert told.startswith("error: ") and told.count("\n") == 1 and found in told


def test_types_by_index_by_name_and_by_format(llama):
    by_name = inspect(llama, "--type", "q4_0")
    assert by_name == inspect("Q4_0")
    model, _ = convert.from_gguf(llama)
    index = next(index for index, declared in enumerate(model.struct_types) if declared.name == "Q4_0[64, 64]")
    assert inspect(llama, "--type", index).startswith(f"Q4_0[64, 64]: 128 {TIMES} 18 bytes, 2,304 bytes in all")
    assert "ask for one of the two" in inspect(llama, "--type", "0", "--values", "x[0]", code=2)


# ---- Hostile


def test_names_do_not_steer_the_terminal(tmp_path):
    model = ModelProto(ir_version=10)
    model.graph.name = "g"
    model.struct_types.add().CopyFrom(structs.to_proto(structure("\x1b]0;owned\x07", **{"a\x1b[2J\n\x00": f16, "b": pad(16)})))
    model.graph.struct_initializer.add(name="w\x1b[31m\r", type=0, raw_data=b"1234")
    model.graph.input.add(name="\x1b[1A").type.tensor_type.elem_type = TensorProto.FLOAT
    model.metadata_props.add(key="k\x1b", value="v\x1b[5m" * 100)
    save(model, tmp_path / "m.onnx")
    for arguments in ((), ("--type", "0"), ("--values", "w\x1b[31m\r")):
        assert not set(inspect(tmp_path / "m.onnx", *arguments)) & {"\x1b", "\x07", "\r", "\x00"}
    inspect(tmp_path / "m.onnx", "--type", "0", "--svg", tmp_path / "t.svg")
    xml.parse(tmp_path / "t.svg")


def test_immense_and_invalid_types_are_shown_at_once(tmp_path):
    model = ModelProto(ir_version=10)
    model.graph.name = "g"
    huge = structure(
        "HUGE", a=bits(q=3)[2**50], b=f16[2**20][2**30], c=structure("c", d=bits(wide=2**31)[1])[5], e=i8[0][4], f=pad(6)
    )
    model.struct_types.add().CopyFrom(structs.to_proto(huge))
    model.struct_types.add(name="LOOP").array.element_type.struct_type.type_index = 1
    for index in (0, 1, 7, -1):
        model.graph.struct_initializer.add(name=f"w{index}", type=index, raw_data=b"12")
    model.graph.initializer.add(name="t", data_type=99, dims=[2**62, 2**62])
    save(model, tmp_path / "m.onnx")
    shown = inspect(tmp_path / "m.onnx")
    assert "invalid" in shown and max(map(len, shown.splitlines())) <= 80
    assert "more" in inspect(tmp_path / "m.onnx", "--type", "HUGE")
    inspect(tmp_path / "m.onnx", "--type", "HUGE", "--svg", tmp_path / "t.svg")
    assert "contain one another" in inspect(tmp_path / "m.onnx", "--type", "LOOP", code=1)
    json.loads(inspect(tmp_path / "m.onnx", "--json"))
    for name in ("w0[0]", "w1[0]", "w7[0]", "w-1[0]"):
        assert inspect(tmp_path / "m.onnx", "--values", name, code=1).startswith("error: ")


def test_values_that_json_lacks_are_text(tmp_path):
    model = ModelProto(ir_version=10)
    model.graph.name = "g"
    node = structure("R", f=f16, g=f16, c=structs.c64, half=bits(n=4)[2], k=constant(2.5, np.float32))
    model.struct_types.add().CopyFrom(structs.to_proto(node))
    raw = np.array([np.nan, -np.inf], np.float16).tobytes() + np.array([1 + 2j], np.complex64).tobytes() + b"\x21"
    model.graph.struct_initializer.add(name="r", type=0, raw_data=raw)
    save(model, tmp_path / "m.onnx")
    told = json.loads(inspect(tmp_path / "m.onnx", "--values", "r", "--json"), parse_constant=pytest.fail)
    assert told["fields"] == {"f": "nan", "g": "-inf", "c": "(1+2j)", "half.n": [1, 2], "k": 2.5}
    assert "(1+2j)" in inspect(tmp_path / "m.onnx", "--values", "r")
