"""What imports what: one order for the packages, a light top level, and everything up to the plan without native code."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import tenonnx

PACKAGE = Path(tenonnx.__file__).parent
# A module imports only from its left; modules of one rank are strangers.
ORDER = [
    ("errors", "dtypes", "callables", "collection"), ("schema",), ("structs",), ("alias",), ("shapes",), ("check",),
    ("layouts",), ("plan",), ("codecs", "cache", "compiled"), ("runtime",), ("convert",), ("text",), ("inspection",), ("cli",),
]  # fmt: skip
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
NATIVE_FROM = RANK["plan"] + 1
OPTIONAL_NATIVE = Path("structs/native.py")  # unpacks faster where there is native code, and does without
WITHIN_RANK = {("dtypes", "errors"), ("cache", "codecs"), ("compiled", "codecs")}  # dtypes raises errors
HEAVY = ["onnxruntime", "onnx_ir", "tokenizers", "jinja2", "rich", "typer", "blake3", "archspec", "onnx", "numpy", "gguf"]
SOURCES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))


def imported(path):
    """(line, full module name) of every import of this package in a source file, those in functions too."""
    tree = ast.parse((PACKAGE / path).read_text())
    guarded = {
        id(node) for block in ast.walk(tree) if is_type_checking(block) for child in block.body for node in ast.walk(child)
    }
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            if node.module == "tenonnx":
                yield from ((node.lineno, f"tenonnx.{alias.name}") for alias in node.names)
            elif node.module and node.module.startswith("tenonnx."):
                yield node.lineno, node.module
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "tenonnx")
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
            yield from computed(path, node)


def computed(path, call):
    """An import by a computed name names its package in its first letters; only the top level finds its own names by a table."""
    name = call.args[0].values[0] if isinstance(call.args[0], ast.JoinedStr) else call.args[0]
    if path != Path("__init__.py"):
        start = name.value if isinstance(name, ast.Constant) else ""
        assert start.count(".") > 1, f"{path}:{call.lineno}: an import that this test cannot follow"
        yield call.lineno, start


def is_type_checking(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def test_every_module_has_a_rank():
    tops = {path.parts[0].removesuffix(".py") for path in SOURCES} - {"__init__", "__main__"}
    assert tops <= set(RANK)
    assert len(SOURCES) > 50


@pytest.mark.parametrize("path", [path for path in SOURCES if path not in (Path("__init__.py"), Path("__main__.py"))], ids=str)
def test_a_module_imports_only_from_its_left(path):
    own = path.parts[0].removesuffix(".py")
    for line, name in imported(path):
        top = name.split(".")[1] if "." in name else "the whole package"
        if top == "_native" and path != OPTIONAL_NATIVE:
            assert RANK[own] >= NATIVE_FROM, f"{path}:{line}: {own} works without the native module"
        elif top not in (own, "_native") and (own, top) not in WITHIN_RANK:
            assert top in RANK and RANK[top] < RANK[own], f"{path}:{line}: {own} imports {name}, which is not on its left"


def test_the_top_level_imports_nothing_of_its_own():
    assert list(imported(Path("__init__.py"))) == []


# ---- In a fresh interpreter ---------------------------------------------------------------------------------------------


def fresh(code):
    """The JSON that ``code`` prints in a new interpreter that finds the same package."""
    source = f"import sys, json\nsys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_import_loads_nothing_and_does_no_work():
    loaded = fresh("import tenonnx; print(json.dumps(sorted(sys.modules)))")
    assert not [name for name in loaded if name.split(".")[0] in HEAVY]
    assert [name for name in loaded if name.split(".")[0] == "tenonnx"] == ["tenonnx"]


def test_messages_and_files_load_no_engine():
    loaded = fresh("import tenonnx; tenonnx.load, tenonnx.ModelProto, tenonnx.Session; print(json.dumps(sorted(sys.modules)))")
    assert not [name for name in loaded if name.split(".")[0] in HEAVY if name.split(".")[0] not in ("onnx", "numpy")]


def test_everything_up_to_the_plan_works_without_the_native_module():
    tops = [name for name, rank in RANK.items() if rank < NATIVE_FROM]
    code = f"""
sys.modules["tenonnx._native"] = None  # an import of it fails
import importlib, pkgutil, tenonnx
names = []
for top in {tops!r}:
    module = importlib.import_module("tenonnx." + top)
    names.append(module.__name__)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), module.__name__ + "."):
        names.append(importlib.import_module(found.name).__name__)
model = tenonnx.ModelProto(ir_version=11)
model.opset_import.add(version=21)
model.graph.name = "g"
model.graph.node.add(op_type="Neg", input=["x"], output=["y"])
for place, name in ((model.graph.input, "x"), (model.graph.output, "y")):
    declared = place.add(name=name).type.tensor_type
    declared.elem_type = 1
    declared.shape.dim.add(dim_value=4)
codes = tenonnx.structs.view(b"\\x21", tenonnx.structs.bits(lo=4, hi=4)[1])
assert (codes.lo, codes.hi) == (1, 2)
print(json.dumps([names, len(tenonnx.check(model)), tenonnx.ShapesContext(model)["y"].dims, len(tenonnx.plan(model).steps)]))
"""
    names, findings, dims, steps = fresh(code)
    assert len(names) > 30 and (findings, dims, steps) == (0, [4], 1)


# ---- Public names -------------------------------------------------------------------------------------------------------

PUBLIC = [
    "ModelProto", "GraphProto", "NodeProto", "ValueInfoProto", "TypeProto", "StructTypeProto", "StructProto", "ValueAliasProto",
    "QuantizedTensorProto", "QuantizationProto", "DeviceProto", "CompiledTensorProto", "load", "save", "check", "Diagnostic",
    "ShapesContext", "SymTensor", "SymSequence", "plan", "ExecutionPlan", "Session", "writable", "Cache", "structs", "convert",
    "text",
]  # fmt: skip
WITHIN = {
    "structs": ["catalogue", "structure", "bits", "array", "constant", "pad", "view"],
    "text": ["known", "generate"],
    "convert": ["from_gguf", "convert"],
    "schema": [],
    "cache": ["Cache", "writable"],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_there_and_listed(name):
    assert getattr(tenonnx, name) is not None
    assert name in tenonnx.__all__ and name in dir(tenonnx)


def test_a_name_is_loaded_when_it_is_first_used():
    present = "'SymTensor' in vars(tenonnx)"
    code = f"import tenonnx; before = {present}; tenonnx.SymTensor; print(json.dumps([before, {present}]))"
    assert fresh(code) == [False, True]


@pytest.mark.parametrize(("package", "names"), WITHIN.items())
def test_a_package_is_an_attribute_before_any_import_of_it(package, names):
    code = f"import tenonnx; print(json.dumps([hasattr(tenonnx.{package}, name) for name in {names!r}]))"
    assert fresh(code) == [True] * len(names)


def test_every_listed_name_can_be_imported_by_a_star():
    names = {}
    exec("from tenonnx import *", names)
    assert set(tenonnx.__all__) <= set(names)
    assert len(tenonnx.__all__) == len(set(tenonnx.__all__))


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="module 'tenonnx' has no attribute 'Sesion'"):
        _ = tenonnx.Sesion
    with pytest.raises(ImportError):
        exec("from tenonnx import Sesion")


@pytest.mark.parametrize("name", ["check", "plan"])
def test_packages_that_are_functions_stay_packages(name):
    package = importlib.import_module(f"tenonnx.{name}")
    assert getattr(tenonnx, name) is package and callable(package) and package.__path__
    assert package.__all__ and package.__name__ == f"tenonnx.{name}"


def test_typed_for_its_users():
    assert resources.files("tenonnx").joinpath("py.typed").is_file()
    assert resources.files("tenonnx").joinpath("schema", "messages.pyi").is_file()
