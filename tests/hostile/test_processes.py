"""What a process does to running models: exit under them, small stacks, Ctrl-C, closed streams."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The package under test is the one that this process found: the installed one, or a folder on the path.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
SANITIZED = "TENONNX_SANITIZED" in os.environ

PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
from tenonnx import Session, writable
from tests.models import FLOAT, Graph, cache_model, chain
"""

ATTENTION = """
g = Graph()
for name, heads in (("q", 4), ("k", 2), ("v", 2)):
    g.input(name, FLOAT, [1, heads, 100, 128])
g.node("Attention", ["q", "k", "v"], "y")
g.output("y", FLOAT, [1, 4, 100, 128])
feeds = {name: np.random.default_rng(0).normal(size=(1, heads, 100, 128)).astype(np.float32) for name, heads in
         (("q", 4), ("k", 2), ("v", 2))}
session = Session(g.model, threads=2)
expected = session.run(feeds)["y"]
"""


def python(code: str, limit: Callable[[], object] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_exit_while_runs_are_in_flight(threads: int) -> None:
    done = python(f"""
        session = Session(chain(30, "Exp", ("n",)), threads={threads})
        def work():
            while True:
                session.run({{"x0": np.zeros(300_000, np.float32)}})
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(SANITIZED, reason="guards around arrays make every frame larger")
def test_stacks_smaller_than_a_kernel_needs() -> None:
    small = 256 * 1024
    done = python(
        ATTENTION
        + """
found = []
threading.stack_size(65536)
worker = threading.Thread(target=lambda: found.append(session.run(feeds)["y"]))
worker.start()
worker.join()
print((found[0] == expected).all())
""",
        lambda: resource.setrlimit(resource.RLIMIT_STACK, (small, small)),
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_ctrl_c_never_leaves_a_cache_bound() -> None:
    done = python("""
        session = Session(cache_model(), threads=1)
        cache = np.zeros((1, 2, 8, 4), np.float32)
        feeds = {"cache": writable(cache), "values": np.ones((1, 2, 1, 4), np.float32), "position": np.array(0)}
        session.run(feeds)
        def interrupted(number, frame):
            if running:
                raise KeyboardInterrupt
        running, count = False, 0
        # A timer of the system's: a thread of Python's would wait for its turn between runs this short.
        signal.signal(signal.SIGALRM, interrupted)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            try:
                running = True
                for _ in range(50):
                    session.run(feeds)
                running = False
            except KeyboardInterrupt:
                running = False
                count += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        session.run(feeds)
        print(count > 10)
    """)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


COMMAND = "import sys, tenonnx.cli; sys.argv[1:] = {}; tenonnx.cli.main()"


def command(arguments: list[str], redirect: str) -> subprocess.CompletedProcess[str]:
    line = f'"$0" -c "$1" {redirect}'
    code = COMMAND.format(arguments)
    return subprocess.run(
        ["/bin/sh", "-c", line, sys.executable, code], cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("arguments", [["demo"], ["inspect", "Q4_K"], ["--help"]], ids=lambda given: given[0])
def test_output_that_cannot_be_written(arguments: list[str]) -> None:
    done = command(arguments, ">/dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard output: No space left on device") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_standard_streams_closed_by_the_caller(redirect: str) -> None:
    done = command(["demo"], redirect)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_never_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    done = python(f"from tenonnx import save; from tests.models import spec_example; save(spec_example(), {str(source)!r})")
    assert done.returncode == 0, done.stderr
    command(["convert", str(source), str(out)], "")
    expected = out.read_bytes()
    out.unlink()
    assert command(["convert", str(source), str(out)], "<&- >&- 2>&-").returncode == 0
    assert out.read_bytes() == expected


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    done = command(["check", str(tmp_path / "pipe.onnx")], "")
    assert done.returncode == 1 and "not a regular file" in done.stderr


def test_a_prompt_without_end() -> None:
    done = command(["generate", "smollm2-135m", "--file", "/dev/zero"], "")
    assert done.returncode == 1 and "more than 50,000,000 characters" in done.stderr
