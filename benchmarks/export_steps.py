"""One process that runs an exported decoder for benchmarks/exports.py: python export_steps.py onnxruntime|tenonnx FOLDER CONTEXT

Reads commands from standard input and answers each with a line of JSON:

    feed IDS FILE   run these tokens behind those before; the logits of the last one, FLOAT[vocabulary], go to FILE
    step IDS FILE   the same, a token at a time; milliseconds of each, and of FILE a row of logits for each
    reset           forget all tokens
    peak            bytes of resident memory: now, and at most since the last such command
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

THREADS = 2


class Onnxruntime:
    """The export as it is in stock onnxruntime, with as few copies as its interface admits.

    A cache that grows by Concat goes from output to input as it is; one that GroupQueryAttention shares is bound to both.
    """

    def __init__(self, folder: Path, context: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        self._session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
        self._value = onnxruntime.OrtValue.ortvalue_from_numpy
        self._names = {value.name for value in self._session.get_inputs()}
        self._pasts = {name: name.replace("past_key_values", "present") for name in self._names if name.startswith("past")}
        self._shared = (folder / "genai_config.json").exists()
        shape = next(value.shape for value in self._session.get_inputs() if value.name in self._pasts)
        rows = context if self._shared else 0
        self._dims = 1, int(shape[1]), rows, shape[3] if isinstance(shape[3], int) else _head(folder)
        self.reset()

    def reset(self) -> None:
        self._length = 0
        self._held = {name: self._value(np.zeros(self._dims, np.float32)) for name in self._pasts}

    def run(self, ids: list[int]) -> np.ndarray:
        begin, end = self._length, self._length + len(ids)
        feeds = {
            "input_ids": np.array([ids]),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(begin, end)[None],
        }
        binding = self._session.io_binding()
        for name in self._names & feeds.keys():
            binding.bind_cpu_input(name, feeds[name])
        for past, present in self._pasts.items():
            binding.bind_ortvalue_input(past, self._held[past])
            if self._shared:
                binding.bind_ortvalue_output(present, self._held[past])
            else:
                binding.bind_output(present, "cpu")
        binding.bind_output("logits", "cpu")
        self._session.run_with_iobinding(binding)
        outputs = dict(zip([*self._pasts.values(), "logits"], binding.get_outputs(), strict=True))  # in the order of binding
        if not self._shared:
            self._held = {past: outputs[present] for past, present in self._pasts.items()}
        self._length = end
        return np.array(outputs["logits"].numpy()[0, -1])


def _head(folder: Path) -> int:
    return int(json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"])


class Tenonnx:
    """The export as ``tenonnx convert`` makes it."""

    def __init__(self, folder: Path, context: int) -> None:
        from tenonnx import Session

        self._session = Session(folder / "declared.onnx", threads=THREADS)
        self._cache = self._session.new_cache(context=context)
        self._mask = np.ones((1, context), np.int64)

    def reset(self) -> None:
        self._cache.reset()

    def run(self, ids: list[int]) -> np.ndarray:
        begin = self._cache.length
        positions = np.arange(begin, begin + len(ids))[None]
        feeds = {"input_ids": np.array([ids]), "attention_mask": self._mask, "position_ids": positions}
        given = {name: feeds[name] for name in feeds if name in self._session.inputs}
        return np.array(self._session.run(given, cache=self._cache)["logits"][0, -1])


ENGINES: dict[str, Any] = {"onnxruntime": Onnxruntime, "tenonnx": Tenonnx}


def memory(key: str) -> int:
    """Bytes of this process: VmRSS now, or VmHWM at most."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(key)) * 1024


def answer(engine: Any, command: str, arguments: list[str]) -> Any:
    if command == "reset":
        return engine.reset()
    if command == "peak":
        found = {"now": memory("VmRSS"), "peak": memory("VmHWM")}
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts anew from here
        return found
    ids, times, rows = json.loads(arguments[0]), [], []
    for part in [ids] if command == "feed" else [[token] for token in ids]:
        begin = time.perf_counter()
        rows.append(engine.run(part))
        times.append((time.perf_counter() - begin) * 1e3)
    np.save(arguments[1], np.stack(rows))
    return times


def main(name: str, folder: Path, context: int) -> None:
    begin = time.perf_counter()
    engine = ENGINES[name](folder, context)
    print(json.dumps((time.perf_counter() - begin) * 1e3), flush=True)
    for line in sys.stdin:
        command, *arguments = line.rstrip("\n").split("\t")
        print(json.dumps(answer(engine, command, arguments)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
