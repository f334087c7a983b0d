"""Tenonnx, llama.cpp and onnxruntime-genai on the same weights, interleaved in one run.

    pip install '.[bench,exports]' && python benchmarks/peers.py FOLDER    # an hour; FOLDER keeps the models made once
    python benchmarks/peers.py FOLDER --quick --json peers.json            # under 10 minutes once the models are there

Every figure is a median over rounds in which the engines take turns, A B C A B C, each in a process of its own that waits
while another works; every ratio is taken within a round, so a machine that drifts moves both sides. Speeds are tokens per
second without sampling; ratios of load, first token and memory are ours over theirs too, so there less is better. KL is that
of the float32 model (NumPy, over 48 tokens of English) to the engine, in nats. llama.cpp reads the GGUF; tenonnx the same
weights converted, with their packs stored beside them, as every start but the first finds them.

Writes FOLDER/peers.md and FOLDER/peers.svg.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from peer_models import GENAI, OTHER_FILES, REPOSITORY, genai_folder, packed, smollm2
from peer_report import markdown, plot
from processes import Process

OURS = "tenonnx"
PROMPTS, DEPTHS, DECODED = [16, 128, 512, 2048], [0, 1024, 3000, 7000], 32
QUICK_PROMPTS, QUICK_DEPTHS = [128, 512], [0, 1024, 3000]
KL_TOKENS = 48
PAUSE_S = 0.2  # between turns: threads of the engine before may still spin
LESS_IS_BETTER = ("load", "first_token", "rss")

Figures = dict[str, dict[str, list[float]]]  # measure -> engine -> one figure a round


class Race:
    """Engines side by side over the same measures."""

    def __init__(self, entries: dict[str, tuple[str, Path]], threads: int, rounds: int) -> None:
        self.entries, self.threads, self.rounds = entries, threads, rounds
        self.figures: Figures = {}

    def speeds(self, prompts: Sequence[int], depths: Sequence[int], decoded: int = DECODED) -> None:
        """Prompts from an empty cache, and single tokens behind ``depths`` others."""
        measures = [(f"prompt_{count}", "prompt", (count,)) for count in prompts]
        measures += [(f"decode_{depth}", "decode", (depth, decoded)) for depth in depths]
        context = max(*prompts, *(depth + decoded for depth in depths)) + 16
        with ExitStack() as stack:
            engines = {name: stack.enter_context(self._process(name, context)) for name in self.entries}
            for measure, method, arguments in measures:
                for engine in engines.values():
                    engine(method, *arguments)  # warm, and as deep as it will be
                for _ in range(self.rounds):
                    for name, engine in engines.items():
                        time.sleep(PAUSE_S)
                        self._note(measure, name, engine(method, *arguments))
                print(f"  {measure}: {self._line(measure)}", file=sys.stderr, flush=True)

    def starts(self, depth: int) -> None:
        """Load, first token, and peak memory of a process that decoded behind ``depth`` tokens."""
        for _ in range(self.rounds):
            for name in self.entries:
                with self._process(name, depth + DECODED) as engine:
                    for measure, seconds in engine.loaded.items():
                        self._note(measure, name, seconds)
                    engine("decode", depth, 8)
                    self._note("rss", name, engine("rss"))
        for measure in LESS_IS_BETTER:
            print(f"  {measure}: {self._line(measure)}", file=sys.stderr, flush=True)

    def divergences(self, folder: Path) -> dict[str, float]:
        """KL of the float32 model to each engine."""
        sys.path.insert(0, str(REPOSITORY))
        from tests.model import divergence, log_softmax, log_softmax_of

        ids, expected = log_softmax_of(smollm2(), KL_TOKENS)
        found = {}
        for name in self.entries:
            with self._process(name, KL_TOKENS + 16) as engine:
                engine("each", ids.tolist(), str(folder / "logits.npy"))
            found[name] = float(divergence(expected, log_softmax(np.load(folder / "logits.npy"))).mean())
        return found

    def ratios(self) -> dict[str, dict[str, list[float]]]:
        """peer -> measure -> ours over theirs, round by round."""
        return {
            peer: {
                measure: [ours / theirs for ours, theirs in zip(row[OURS], row[peer], strict=True)]
                for measure, row in self.figures.items()
            }
            for peer in self.entries
            if peer != OURS
        }

    def _process(self, name: str, context: int) -> Process:
        kind, path = self.entries[name]
        return Process(kind, path, self.threads, context)

    def _note(self, measure: str, name: str, figure: float) -> None:
        self.figures.setdefault(measure, {}).setdefault(name, []).append(figure)

    def _line(self, measure: str) -> str:
        return ", ".join(f"{name} {statistics.median(row):,.3g}" for name, row in self.figures[measure].items())


def entries_of(folder: Path, peers: Sequence[str]) -> dict[str, tuple[str, Path]]:
    found = {OURS: ("tenonnx", packed(folder, smollm2()))}
    for peer in peers:
        found[peer] = ("llama.cpp", smollm2()) if peer == "llama.cpp" else ("genai", genai_folder(folder, peer))
    return found


def _pairs(folder: Path) -> Iterator[tuple[str, dict[str, tuple[str, Path]]]]:
    """The same file in two engines: other formats in llama.cpp, onnxruntime-genai's own models in it."""
    for name, make in OTHER_FILES.items():
        path = make(folder, name)
        yield name, {OURS: ("tenonnx", packed(folder, path)), "llama.cpp": ("llama.cpp", path)}
    for name in ("genai-int4", "genai-fp32"):
        path = genai_folder(folder, name)
        yield f"the folder {name} itself", {OURS: ("tenonnx-text", path), name: ("genai", path)}


def race_all(args: argparse.Namespace) -> dict[str, Any]:
    """All tables, as the JSON has them but for the ratios' spread."""
    entries = entries_of(args.folder, args.peers)
    prompts, depths = (QUICK_PROMPTS, QUICK_DEPTHS) if args.quick else (PROMPTS, DEPTHS)
    races: dict[str, Race] = {}
    for threads in [2] if args.quick else [2, 1]:
        print(f"{threads} threads", file=sys.stderr)
        race = races[f"{threads} threads"] = Race(entries, threads, args.rounds)
        if threads == 2:
            race.speeds(prompts, depths)
            race.starts(3000)
        else:
            race.speeds([512], [0])
    result: dict[str, Any] = {"kl": races["2 threads"].divergences(args.folder)}
    for title, pair in {} if args.quick else _pairs(args.folder):
        print(title, file=sys.stderr)
        race = races[title] = Race(pair, 2, args.rounds)
        race.speeds([512], [0])
    return result | {"races": races}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for models made once, and for the report")
    parser.add_argument("--peers", type=lambda text: text.split(","), default=["llama.cpp", *GENAI], help="comma-separated")
    parser.add_argument("--rounds", type=int, help="default: 5, or 3 with --quick")
    parser.add_argument("--quick", action="store_true", help="2 threads, fewer lengths, no other files")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    args.folder.mkdir(parents=True, exist_ok=True)
    result = race_all(args)
    races = result.pop("races")
    text = markdown(races, result["kl"])
    print(text)
    (args.folder / "peers.md").write_text(text, encoding="utf-8")
    plot(races["2 threads"], args.folder / "peers.svg")
    if args.json:
        medians = {
            name: {peer: {m: statistics.median(r) for m, r in row.items()} for peer, row in race.ratios().items()}
            for name, race in races.items()
        }
        figures = {name: race.figures for name, race in races.items()}
        args.json.write_text(json.dumps({"ratios": medians.pop("2 threads"), **medians, **result, "figures": figures}, indent=2))


if __name__ == "__main__":
    main()
