"""From what a session is given to what it runs on: the model, its planner, its data folder and its packs."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, NamedTuple

from tenonnx.check import raise_errors
from tenonnx.compiled import Matcher, Packs, storable, summary, wanted
from tenonnx.errors import OptionError, TenonnxError
from tenonnx.plan import Planner
from tenonnx.schema.external import DataRoot, MappedFile
from tenonnx.schema.files import data_folder, load_portable
from tenonnx.schema.messages import as_model

_LOG = logging.getLogger("tenonnx")


class Prepared(NamedTuple):
    """A checked model, ready to be packed and run."""

    model: Any
    planner: Planner
    root: DataRoot
    packs: Packs


class Preparation:
    """The options that decide which packs a session uses."""

    def __init__(self, packs: str, strict: bool, threads: int) -> None:
        self._packs = packs
        self._strict = strict
        self._threads = threads

    def of_path(self, path: Path, data_root: str | os.PathLike[str] | None) -> Prepared:
        """A model file. With packs="write" what it lacks is stored first; where that fails the session packs for itself."""
        made = self._read(path, data_root)
        lacking = any(storable(want.layout) and name not in made.packs.arrays for name, want in wanted(made.planner).items())
        if self._packs != "write" or not lacking:
            return made
        from tenonnx.compiled.store import build

        try:
            build(path, threads=self._threads, data_root=data_root)
        except TenonnxError as error:
            _LOG.warning("%s: its packs are not stored: %s", path, error)
            return made
        return self._read(path, data_root)

    def of_model(self, model: Any, data_root: str | os.PathLike[str] | None, file: MappedFile | None = None) -> Prepared:
        """A model in memory, whose ``file`` it was read from if any."""
        if self._packs == "write" and file is None:
            raise OptionError('packs="write" stores packs in a model file; give the session its path, or use packs="auto"')
        model = as_model(model)
        planner, root = Planner(model, raise_errors(model)), DataRoot(data_root)
        return Prepared(model, planner, root, self._matched(planner, root, file))

    def _read(self, path: Path, data_root: str | os.PathLike[str] | None) -> Prepared:
        model, file = load_portable(path)
        return self.of_model(model, data_folder(model, path) if data_root is None else data_root, file)

    def _matched(self, planner: Planner, root: DataRoot, file: MappedFile | None) -> Packs:
        if self._packs == "off" or not planner.model.compiled_tensors:
            return Packs()
        matcher = Matcher(planner.model, wanted(planner), root, strict=self._strict, threads=self._threads, model_file=file)
        packs = matcher.match()
        damaged = [verdict for verdict in packs.verdicts if verdict.kind == "damaged"]
        if damaged:
            first = damaged[0]
            _LOG.warning(
                "%d damaged packs are passed over, the first for %r: %s (tenonnx packs verify lists them)",
                len(damaged), first.source, first.why,
            )  # fmt: skip
        _LOG.info("packs: %s", summary(packs.verdicts))
        return packs
