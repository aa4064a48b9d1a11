"""Calls in threads: results in order, and calls that are abandoned."""

import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest

from abag.core.messages import reporting, say
from abag.core.threads import abandoned, in_order, meanwhile


def test_results_come_in_order_whatever_takes_longest():
    def call(i):
        time.sleep(0.02 * (i % 3 == 0))
        return i * i

    assert list(in_order(call, range(40))) == [i * i for i in range(40)]


def test_a_call_meanwhile_runs_beside_the_block_and_reports_where_the_block_does():
    begun, said = threading.Event(), []

    def call():
        begun.set()
        say("from the thread")
        return 7

    with reporting(said.append), meanwhile(call) as result:
        assert begun.wait(20)
        assert result() == result() == 7
    assert said == ["from the thread"]


def test_an_error_meanwhile_is_raised_where_the_result_is_needed():
    def fail():
        raise KeyError

    with meanwhile(fail) as result, pytest.raises(KeyError):
        result()
    with meanwhile(fail):
        pass


def test_an_abandoned_call_ends_soon():
    begun, done, ended = threading.Event(), [], []

    def task(i):
        begun.set()
        time.sleep(0.01)
        done.append(i)

    def call():
        try:
            list(in_order(task, range(10**6)))
        except CancelledError:
            ended.append(abandoned().is_set())
            raise

    with suppress(KeyError), meanwhile(call):
        begun.wait(20)
        raise KeyError
    assert ended == [True]
    assert len(done) < 10**5
    assert not abandoned().is_set()
