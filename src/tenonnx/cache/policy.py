"""Policies: which format each page of a cache has as it falls behind. Small objects; a user's own needs two methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from tenonnx.errors import CapacityError, CheckError, OptionError
from tenonnx.structs.catalogue import catalogue
from tenonnx.structs.formats_pages import PAGE_FORMATS
from tenonnx.structs.resolve import imported

LADDER = ("F16", "INT8_PAGE", "INT4_PAGE", "INT2_PAGE")


class PageState(NamedTuple):
    """One page of a sequence: its format's name, and how many tokens lie behind it up to the newest (0: the newest page)."""

    format: str
    age: int


class Policy(Protocol):
    """What a cache asks when a sequence starts a page."""

    def new_format(self) -> str:
        """The format of a new page."""

    def formats(self, pages: Sequence[PageState], nbytes: Callable[[str], int]) -> Sequence[str]:
        """The format that each page should have, oldest first, the new ones included.

        ``nbytes(format)`` are the bytes of a page. Raises ``CapacityError`` where nothing satisfies the policy.
        """


class Uniform:
    """One format for all pages."""

    def __init__(self, format: str = "F16") -> None:
        self.format = format

    def new_format(self) -> str:
        return self.format

    def formats(self, pages: Sequence[PageState], nbytes: Callable[[str], int]) -> Sequence[str]:
        return [page.format for page in pages]

    def __repr__(self) -> str:
        return f"Uniform({self.format!r})"


class Aged:
    """Steps down with age: ``Aged([("F16", 128), ("INT8_PAGE", 1024), ("INT4_PAGE", None)])`` keeps pages F16 until 128 tokens
    lie behind them, INT8_PAGE until 1024 do, and INT4_PAGE from then on. A page steps once per bound and never back.
    """

    def __init__(self, steps: Sequence[tuple[str, int | None]]) -> None:
        bounds = [bound for _, bound in steps]
        ordered = all(a is not None and a >= 0 and (b is None or a < b) for a, b in pairwise(bounds))
        if not steps or bounds[-1] is not None or not ordered:
            raise OptionError(f"Aged({list(steps)!r}): expected ages in tokens that grow, and None for the last step")
        self.steps = tuple(steps)

    def new_format(self) -> str:
        return self.steps[0][0]

    def formats(self, pages: Sequence[PageState], nbytes: Callable[[str], int]) -> Sequence[str]:
        names = [name for name, _ in self.steps]
        found = []
        for page in pages:
            step = next(number for number, (_, bound) in enumerate(self.steps) if bound is None or page.age < bound)
            at = names.index(page.format) if page.format in names else 0
            found.append(names[max(step, at)])
        return found

    def __repr__(self) -> str:
        return f"Aged({list(self.steps)!r})"


class Budget:
    """Keeps the pages of a sequence within ``bytes``: the oldest step down one format at a time, and where even that does not
    make room, the page is refused by ``CapacityError``. The newest page stays as it is.
    """

    def __init__(self, bytes: int, ladder: Sequence[str] = LADDER) -> None:
        if bytes < 1 or not ladder:
            raise OptionError(f"Budget({bytes}): expected bytes of 1 or more, and at least one format")
        self.bytes, self.ladder = bytes, tuple(ladder)

    def new_format(self) -> str:
        return self.ladder[0]

    def formats(self, pages: Sequence[PageState], nbytes: Callable[[str], int]) -> Sequence[str]:
        found = [page.format for page in pages]
        total = sum(nbytes(name) for name in found)
        for target in self.ladder[1:]:
            for number, name in enumerate(found[:-1]):
                if total <= self.bytes:
                    return found
                if name in self.ladder and self.ladder.index(name) < self.ladder.index(target):
                    total += nbytes(target) - nbytes(name)
                    found[number] = target
        if total > self.bytes:
            raise CapacityError(
                f"{len(pages)} pages take {total:,} bytes in the smallest formats of the budget of {self.bytes:,}; "
                "give a larger budget, or truncate the cache"
            )
        return found

    def __repr__(self) -> str:
        return f"Budget({self.bytes})"


DEFAULT_AGED = (("F16", 128), ("INT8_PAGE", 1024), ("INT4_PAGE", None))
_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def _bytes(text: str) -> int:
    digits = text.rstrip("bBiIkKmMgG")
    unit = _UNITS.get(text[len(digits) :].upper())
    if unit is None or not digits.isascii() or not digits.isdecimal():
        raise OptionError(f"budget:{text}: {text!r} is no size; write bytes such as budget:64MiB")
    return int(digits) * unit


def parse_policy(text: str) -> Policy:
    """A policy from a command line: ``aged``, ``budget:64MiB``, ``module:object``, or the name of a page format."""
    kind, _, rest = text.partition(":")
    if kind.lower() == "aged" and not rest:
        return Aged(DEFAULT_AGED)
    if kind.lower() == "budget":
        return Budget(_bytes(rest))
    if rest:
        try:
            found = imported(text)
        except CheckError as error:
            raise OptionError(f"policy {error}; name an object with new_format and formats") from error
        return _checked(found, f"policy {text}")
    name = text.upper()
    if name not in PAGE_FORMATS and name not in catalogue:
        raise OptionError(f"policy {text!r} is no format of pages; choose one of {', '.join(PAGE_FORMATS)}, aged or budget:64MiB")
    return Uniform(name)


def as_policy(given: Any) -> Policy:
    """A Policy, or the one that a text names as on the command line; ``OptionError`` for anything else."""
    return parse_policy(given) if isinstance(given, str) else _checked(given, "policy")


def _checked(given: Any, where: str) -> Policy:
    if isinstance(given, type) or not all(callable(getattr(given, name, None)) for name in ("new_format", "formats")):
        raise OptionError(f"{where}: {given!r} is no policy; name an object with new_format and formats, such as Uniform(FORMAT)")
    policy: Policy = given
    return policy
