"""Hostile types, payloads and decoders in a process of their own: each gets its own answer, for little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tenonnx.structs.scalars import SCALARS

EXPECTED = {
    "cycle of one": ("CheckError", "0 → 0 contain one another"),
    "cycle of two": ("CheckError", "0 → 1 → 0 contain one another"),
    "chain of 100,000": ("TypeLimit", "100000 declarations"),
    "chain of 4,000": ("TypeLimit", "more than 64 levels deep"),
    "2^40 leaves": ("TypeLimit", "fields with references expanded"),
    "2^32 x 2^32": ("CheckError", "leaves uint64"),
    "dims that wrap": ("CheckError", "leaves uint64"),
    "0 x 2^32 x 2^32": ("CheckError", "leaves uint64"),
    "bits that wrap": ("CheckError", "leaves uint64"),
    "nothing x 2^63": ("TypeLimit", "elements of no bits"),
    "empty packing x 2^63": ("TypeLimit", "elements of no bits"),
    "7e8 elements of one byte": ("PayloadError", "takes 700000000 bytes, found 1"),
    "7e8 codes of one byte": ("PayloadError", "takes 87500000 bytes, found 1"),
    "decoder of Tile": ("TypeLimit", "makes 2000000008 bytes of 2"),
    "decoder of its payload's size": ("TypeLimit", "a size that is not known before it runs"),
    "decoder of Range": ("TypeLimit", "bytes of 2"),
    "decoder of a Loop": ("TypeLimit", "has a Loop"),
    "decoder of a nested Tile": ("TypeLimit", "a size that is not known before it runs"),
    "two of one name: field": ("CheckError", "field[1].name"),
    "two of one name: constant": ("CheckError", "field[1].name"),
    "two of one name: component": ("CheckError", "component[1].name"),
    "another file: value": ("PayloadError", "external_data length"),
    "another file: constant": ("CheckError", "constant.external_data"),
    "another file: decoder": ("CheckError", "keeps a tensor in another file"),
    "check: chain": ("ValueError", "limit type-is-within-limits"),
    "check: doubling": ("ValueError", "limit type-is-within-limits"),
    "check: cycle": ("ValueError", "invalid references-are-acyclic"),
}
MOST = 50e6  # bytes, for any one of them


@pytest.fixture(scope="module")
def answers():
    command = [sys.executable, "-m", "tests.hostile.limited"]
    paths = os.pathsep.join(path or "." for path in sys.path)
    # The time limit ends what would never end by itself; it says nothing about speed.
    done = subprocess.run(command, capture_output=True, timeout=300, check=True, env={**os.environ, "PYTHONPATH": paths})
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", EXPECTED)
def test_each_case_has_its_own_answer_for_little_memory(answers, case):
    error, message, _, held = answers["answers"][case]
    assert (error, EXPECTED[case][1] in message, held < MOST) == (EXPECTED[case][0], True, True), message


def test_no_case_is_left_out(answers):
    assert {case for case in answers["answers"] if " in " not in case} == set(EXPECTED)


@pytest.mark.parametrize("short", SCALARS)
def test_payloads_of_another_length_are_refused_for_every_scalar(answers, short):
    size = SCALARS[short].bits  # of eight elements, in bytes
    for length in (0, size - 1, size + 1):
        error, message, _, held = answers["answers"][f"{short} in {length} bytes"]
        assert error == "PayloadError" and f"takes {size} bytes, found {length}" in message and held < MOST


@pytest.mark.skipif("TENONNX_SANITIZED" in os.environ, reason="the sanitizer's own memory is in the figure")
def test_all_of_them_together_leave_the_process_small(answers):
    assert answers["grown"] < 4 * MOST
