"""Engines in processes of their own, which answer one request at a time."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from engines import KINDS

_IMPORTS = {
    "tenonnx-text": ["tenonnx.runtime", "tenonnx.convert", "tenonnx.text.generation"],
    "tenonnx": ["tenonnx.runtime"],
    "llama.cpp": ["llama_cpp"],
    "genai": ["onnxruntime_genai"],
    "onnxruntime": ["onnxruntime"],
}


def serve(kind: str, path: str, threads: int, context: int) -> None:
    """A measuring process: JSON requests [method, *arguments] on standard input, JSON answers on standard output.

    The first answer is what loading took: seconds to a ready model, imports not counted, and to the first token of a prompt
    of 16.
    """
    for module in _IMPORTS[kind]:
        __import__(module)
    begin = time.perf_counter()
    engine = KINDS[kind](path, threads, context)
    ready = time.perf_counter()
    engine.extend(16, 16)
    int(engine.logits().argmax())
    _answer({"load": ready - begin, "first_token": time.perf_counter() - begin})
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        if method == "rss":
            _answer(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        elif method == "peak":
            _answer(_peak())
        elif method == "each":
            ids, target, *depth = arguments
            np.save(target, engine.each(ids, *depth))
            _answer(None)
        else:
            _answer(getattr(engine, method)(*arguments))


def _peak() -> int:
    """Bytes resident at most since this was last asked."""
    with open("/proc/self/status") as status:
        found = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return found


def _answer(value: Any) -> None:
    print(json.dumps(value), flush=True)


class Process:
    """An engine in a process of its own; calls are its methods. Use as a context manager."""

    def __init__(self, kind: str, path: str | Path, threads: int, context: int) -> None:
        command = [sys.executable, __file__, kind, str(path), str(threads), str(context)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.loaded: dict[str, float] = self._read()

    def __call__(self, method: str, *arguments: Any) -> Any:
        if self._process.stdin is None:
            raise SystemExit("no pipe to the engine")
        self._process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise SystemExit(f"{' '.join(self._process.args)} ended with {self._process.wait()}")  # type: ignore[arg-type]
        return json.loads(line)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
