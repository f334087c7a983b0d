"""Sections without garbage collection: as it was before, whoever leaves last, however they are left."""

import gc
import os
import threading

import pytest

from tenonnx.collection import uncollected


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was_before(enabled):
    (gc.enable if enabled else gc.disable)()
    try:
        with uncollected(), uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(ZeroDivisionError), uncollected():
            raise ZeroDivisionError
        assert gc.isenabled() == enabled
    finally:
        gc.enable()


def test_the_last_of_many_threads_enables_it():
    barrier, seen = threading.Barrier(8), []

    def work(number):
        for _ in range(50):
            with uncollected():
                seen.append(gc.isenabled())
        barrier.wait()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(seen) and gc.isenabled()


def test_a_child_of_a_fork_collects_again():
    enter, leave = threading.Event(), threading.Event()

    def work():
        with uncollected():
            enter.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    enter.wait()
    child = os.fork()
    if child == 0:
        with uncollected():
            pass
        os._exit(not gc.isenabled())
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
