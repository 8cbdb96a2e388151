"""A backend that hangs does not hang the suite: its test is named, and ended."""

import os
import sys
import time
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

FILE = """
import socket, threading, time
import pytest
from rdzv_conformance import BackendConformance
from {package}.reference import MemoryBackend, OnMemory

class Hangs(MemoryBackend):
    def read(self, key, *, timeout):
        {body}

class TestHangs(OnMemory, BackendConformance):
    backend = Hangs
"""
NO_TIMEOUT = "socket.create_server(('127.0.0.1', 0)).accept()"
RETRIES = """
        while True:
            try:
                raise ConnectionError
            except Exception:
                time.sleep(0.001)
"""
UNHEEDING = """
        while True:
            try:
                threading.Event().wait()
            except BaseException:
                pass
"""
TEST = "test_hang.py::TestHangs::test_missing_key_is_none"


def _run(pytester: pytest.Pytester, body: str, *args: str) -> tuple[pytest.RunResult, float]:
    tests = Path(__file__).parent.parent
    pytester.makepyfile(test_hang=FILE.format(package=tests.name, body=body))
    path = os.pathsep.join([str(tests.parent), os.environ.get("PYTHONPATH", "")])
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        result = pytester.run(sys.executable, "-m", "pytest", "-q", *args, timeout=120)
    return result, time.monotonic() - began


@pytest.mark.parametrize("body", [NO_TIMEOUT, RETRIES], ids=["no timeout", "retries for ever"])
def test_what_hangs_is_named_and_the_rest_is_tried(pytester: pytest.Pytester, body: str) -> None:
    told = "test_hang.py::TestHangs::test_name_is_reported"
    result, took = _run(pytester, body, "--rdzv-timeout=2", TEST, told)
    result.assert_outcomes(failed=1, passed=1)
    result.stderr.fnmatch_lines([f"*{TEST} did not end within 2 s. What every thread does:*", "*test_hang.py*in read*"])
    result.stdout.fnmatch_lines(["*it did not end within 2 s: does a call ignore its timeout, or retry for ever?*"])
    assert took < 60


@pytest.mark.soak
def test_threads_that_hang_do_not_outlast_the_run(pytester: pytest.Pytester) -> None:
    test = "test_hang.py::TestHangs::test_one_client_serves_many_threads"
    result, took = _run(pytester, NO_TIMEOUT, "--rdzv-timeout=2", test)
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert took < 90


@pytest.mark.soak
def test_what_heeds_no_signal_ends_with_the_run(pytester: pytest.Pytester) -> None:
    result, took = _run(pytester, UNHEEDING, "--rdzv-timeout=2", TEST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stderr.fnmatch_lines([f"*{TEST} cannot be ended: this run ends here.*"])
    assert took < 90


def test_after_three_that_hang_the_rest_is_not_tried(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nrdzv_timeout = 1\n")
    result, _ = _run(pytester, NO_TIMEOUT, "-k", "value_comes_back")
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*3 tests did not end: the rest is not tried*"])


def test_other_tests_are_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import time\ndef test_slow(): time.sleep(1)\n")
    pytester.runpytest("--rdzv-timeout=0.1").assert_outcomes(passed=1)


@pytest.mark.parametrize("seconds", ["x", "-1", "nan"])
def test_seconds_are_a_number(pytester: pytest.Pytester, seconds: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest(f"--rdzv-timeout={seconds}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*'{seconds}' is no number of seconds from 0 (never) on.*"])
