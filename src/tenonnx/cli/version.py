"""What `tenonnx --version` prints: the package, how it was built, the kernels in use, and the libraries under it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib import resources
from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("onnx", "onnxruntime", "numpy")


def version_lines() -> Iterator[str]:
    """One line on each."""
    from tenonnx._native import host_isa

    yield f"tenonnx {_version('tenonnx')}"
    yield f"build: {_build()}"
    yield f"kernels: {host_isa()}"
    yield f"Python {platform.python_version()}, " + ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)


def _build() -> str:
    """What CMake wrote beside the extension; a source tree does not have it."""
    try:
        build = json.loads(resources.files("tenonnx").joinpath("build.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "from a source tree"
    return f"{build['type']}, {build['compiler']}, for {build['processor']}"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
