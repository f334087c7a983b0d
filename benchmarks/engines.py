"""The engines that the benchmarks race, alike to those who time them.

An engine is given token ids and no sampling: it is timed from the call until its logits are there. Its cache is filled to a
depth once and cut back to it after every measurement, so that a deep cache costs its prompt once.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

TOKENS = [104, 75, 182, 249, 114]  # that every vocabulary has; speed does not depend on them
BATCH = 512  # tokens of a prompt that an engine without batches of its own takes at once


class Engine(ABC):
    """A loaded model with one sequence; ``length`` tokens of it are in the cache."""

    length = 0

    @abstractmethod
    def feed(self, ids: np.ndarray) -> None:
        """Append tokens and compute the logits after the last."""

    @abstractmethod
    def cut(self, length: int) -> None:
        """Forget all tokens from ``length`` on."""

    @abstractmethod
    def logits(self) -> np.ndarray:
        """FLOAT[vocab]: those after the last token."""

    def extend(self, count: int, at_once: int) -> float:
        """Seconds to append ``count`` tokens, ``at_once`` of them in a call."""
        ids = np.resize(np.array(TOKENS), count)
        begin = time.perf_counter()
        for first in range(0, count, at_once):
            self.feed(ids[first : first + at_once])
        seconds = time.perf_counter() - begin
        self.length += count
        return seconds

    def prompt(self, count: int) -> float:
        """Tokens per second of a prompt into an empty cache."""
        self._rewind(0)
        return count / self.extend(count, count)

    def decode(self, depth: int, count: int) -> float:
        """Tokens per second of ``count`` single tokens behind ``depth`` others."""
        if self.length < depth:
            self.extend(depth - self.length, BATCH)
        self._rewind(depth)
        return count / self.extend(count, 1)

    def each(self, ids: list[int], depth: int = 0) -> np.ndarray:
        """FLOAT[n, vocab]: logits after each of the tokens behind ``depth`` others, fed one by one."""
        self._rewind(0)
        for first in range(0, depth, BATCH):
            self.feed(np.array(ids[first : min(first + BATCH, depth)]))
        rows = []
        for token in ids[depth:]:
            self.feed(np.array([token]))
            rows.append(np.array(self.logits(), np.float32).ravel())
        self.length = len(ids)
        return np.stack(rows)

    def _rewind(self, length: int) -> None:
        if self.length > length:
            self.cut(length)
            self.length = length


class Tenonnx(Engine):
    def __init__(self, path: str, threads: int, context: int) -> None:
        from tenonnx import Session

        if path.endswith(".gguf"):
            from tenonnx import convert

            model, folder = convert.from_gguf(path)
            self.session = Session(model, threads=threads, data_root=folder)
        else:
            self.session = Session(path, threads=threads)
        self.cache = self.session.new_cache(context=context)
        self.mask = np.ones((1, context), np.int64)

    def feed(self, ids: np.ndarray) -> None:
        places = np.arange(self.cache.length, self.cache.length + ids.size)
        inputs = {"input_ids": ids[None], "position_ids": places[None], "logit_rows": np.array([ids.size - 1])}
        inputs["attention_mask"] = self.mask
        self.results = self.session.run({name: inputs[name] for name in inputs if name in self.session.inputs}, cache=self.cache)

    def cut(self, length: int) -> None:
        self.cache.truncate(length)

    def logits(self) -> np.ndarray:
        return np.asarray(self.results["logits"])[0, -1]


class TenonnxText(Engine):
    """Any model that `tenonnx generate` takes, onnxruntime-genai's folders among them, its tokenizer included."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        from tenonnx import text
        from tenonnx.text.generation import Context

        self.context = Context(text.load_model(path, threads=threads), context)

    def feed(self, ids: np.ndarray) -> None:
        self.last = self.context.run(ids.tolist())

    def cut(self, length: int) -> None:
        self.context.cache.truncate(length)

    def logits(self) -> np.ndarray:
        return self.last


class LlamaCpp(Engine):
    def __init__(self, path: str, threads: int, context: int) -> None:
        import llama_cpp

        self.library = llama_cpp
        self.model = llama_cpp.Llama(
            path, n_ctx=context, n_batch=2048, n_ubatch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self.context = self.model._ctx.ctx

    def feed(self, ids: np.ndarray) -> None:
        array = (self.library.llama_token * ids.size)(*ids.tolist())
        if self.library.llama_decode(self.context, self.library.llama_batch_get_one(array, ids.size)) != 0:
            raise SystemExit("llama_decode failed")
        self.library.llama_synchronize(self.context)

    def cut(self, length: int) -> None:
        memory = self.library.llama_get_memory(self.context)
        if length == 0:
            self.library.llama_memory_clear(memory, True)
        elif not self.library.llama_memory_seq_rm(memory, 0, length, -1):
            raise SystemExit("llama_memory_seq_rm failed")

    def logits(self) -> np.ndarray:
        return np.ctypeslib.as_array(self.library.llama_get_logits(self.context), (self.model.n_vocab(),))


class Genai(Engine):
    def __init__(self, path: str, threads: int, context: int) -> None:
        import onnxruntime_genai as genai

        config = genai.Config(path)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self.model = genai.Model(config)
        options = genai.GeneratorParams(self.model)
        options.set_search_options(max_length=context, do_sample=False)
        self.generator = genai.Generator(self.model, options)

    def feed(self, ids: np.ndarray) -> None:
        self.generator.append_tokens(ids.astype(np.int32))

    def cut(self, length: int) -> None:
        self.generator.rewind_to(length)

    def logits(self) -> np.ndarray:
        return np.asarray(self.generator.get_logits())


class Onnxruntime(Engine):
    """An export as it is, with as few copies as onnxruntime's interface admits.

    What grows by Concat goes from an output to the next input as it is; a cache that an operator shares is bound to both.
    """

    def __init__(self, path: str, threads: int, context: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.value = onnxruntime.OrtValue.ortvalue_from_numpy
        inputs = {value.name: value for value in self.session.get_inputs()}
        self.names = inputs.keys()
        self.presents = {name: name.replace("past_key_values", "present") for name in inputs if name.startswith("past")}
        config = Path(path).with_name("genai_config.json")
        self.shared = config.exists()
        size = json.loads(config.read_text())["model"]["decoder"]["head_size"] if self.shared else None
        dims = {name: inputs[name].shape for name in self.presents}
        rows = context if self.shared else 0
        self.held = {
            name: self.value(np.zeros((1, heads, rows, size or head), np.float32)) for name, (_, heads, _, head) in dims.items()
        }
        self.end = 0

    def feed(self, ids: np.ndarray) -> None:
        begin, self.end = self.end, self.end + ids.size
        inputs = {"input_ids": ids[None], "attention_mask": np.ones((1, self.end), np.int64)}
        inputs["position_ids"] = np.arange(begin, self.end)[None]
        binding = self.session.io_binding()
        for name in inputs.keys() & self.names:
            binding.bind_cpu_input(name, inputs[name])
        for past, present in self.presents.items():
            binding.bind_ortvalue_input(past, self.held[past])
            if self.shared:
                binding.bind_ortvalue_output(present, self.held[past])
            else:
                binding.bind_output(present, "cpu")
        binding.bind_output("logits", "cpu")
        self.session.run_with_iobinding(binding)
        *presents, self.result = binding.get_outputs()  # in the order of binding
        if not self.shared:
            self.held = dict(zip(self.presents, presents, strict=True))

    def cut(self, length: int) -> None:
        self.end = length
        for name in [] if self.shared else [*self.held]:  # one after the other, so that memory never holds all twice
            self.held[name] = self.value(self.held[name].numpy()[:, :, :length].copy())

    def logits(self) -> np.ndarray:
        return np.asarray(self.result.numpy()[0, -1])


KINDS: dict[str, Callable[[str, int, int], Engine]] = {
    "tenonnx": Tenonnx,
    "tenonnx-text": TenonnxText,
    "llama.cpp": LlamaCpp,
    "genai": Genai,
    "onnxruntime": Onnxruntime,
}
