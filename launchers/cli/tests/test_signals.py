"""What signals ask of an agent."""

import os
import re
import signal
import sys
import time as clock
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from rdzv_cli.agent import signals as module
from rdzv_cli.agent.guard import Guard
from rdzv_cli.agent.signals import ASKING, Asked, Signals, signals_to_handle
from rdzv_cli.agent.workers import Workers

FAULTS = ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGPIPE"]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's time, to be changed."""
    time = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: time[0]))
    return time


def test_a_signal_that_a_wrapper_sends_twice_is_one(now: list[float]) -> None:
    asked = Signals(drains=True, in_world=True)
    with asked.handled():
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
            now[0] += 0.1
        assert (asked.asked, asked.drain_since) == (Asked.DRAIN, 100.0)
        now[0] += 0.1
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert (asked.asked, asked.number) == (Asked.END, signal.SIGTERM)


def test_another_signal_is_another_one(now: list[float]) -> None:
    asked = Signals(drains=True, in_world=True)
    with asked.handled():
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM):
            signal.raise_signal(number)
        assert (asked.asked, now) == (Asked.END_AT_ONCE, [100.0])


def test_ctrl_c_twice_waits_for_nothing(now: list[float]) -> None:
    asked = Signals(drains=False)
    with asked.handled():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert (asked.asked, now) == (Asked.END_AT_ONCE, [100.0])


@pytest.mark.parametrize("number", sorted(ASKING))
def test_every_signal_that_would_end_the_agent_asks_it_to_end(number: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        asked = Signals(drains=False)
        with asked.handled():
            signal.raise_signal(number)
        assert (asked.asked, asked.number) == (Asked.END, number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_what_a_process_does_to_itself_and_what_ends_none_asks_for_nothing() -> None:
    others = [signal.Signals[name] for name in (*FAULTS, "SIGCHLD", "SIGCONT", "SIGTSTP", "SIGWINCH")]
    before = [signal.getsignal(number) for number in others]
    with Signals(drains=True).handled():
        assert [signal.getsignal(number) for number in others] == before


@pytest.mark.parametrize("drains", [False, True])
def test_what_is_ignored_stays_so(drains: bool) -> None:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ASKING}
    try:
        with Signals(drains).handled():
            taken = {number for number in ASKING if signal.getsignal(number) != signal.SIG_IGN}
        # But for what says that a scheduler ends the job.
        assert taken == ({signal.SIGTERM, signal.SIGUSR1} if drains else {signal.SIGTERM})
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_those_that_are_named_are_handled_and_no_others() -> None:
    named = signals_to_handle("SIGTERM, SIGINT,hup,SIGQUIT")
    assert named == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
    # A shell has SIGINT and SIGQUIT ignored for what it starts in the background, such as these tests.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ASKING}
    try:
        with Signals(False, named).handled():
            assert {number for number in ASKING if signal.getsignal(number) != signal.SIG_DFL} == named
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("agent", [99.0, 99.9, 100.5, 101.0])
def test_a_death_together_with_the_agent_s_own_signal_is_explained(now: list[float], agent: float) -> None:
    asked = Signals(drains=True, in_world=True)
    with asked.handled():
        now[0] = agent
        signal.raise_signal(signal.SIGTERM)
        now[0] = 200.0
        assert asked.may_explain(signal.SIGTERM, 100.0)
        # Another signal's.
        assert not asked.may_explain(signal.SIGUSR1, 100.0)


def test_a_death_by_a_signal_that_the_agent_does_not_get_is_a_failure(now: list[float]) -> None:
    asked = Signals(drains=True, in_world=True)
    with asked.handled():
        # The agent may get its own yet.
        assert asked.may_explain(signal.SIGTERM, 99.1)
        assert not asked.may_explain(signal.SIGTERM, 99.0)
        signal.raise_signal(signal.SIGTERM)
        assert not asked.may_explain(signal.SIGTERM, 98.9)
        now[0] = 300.0
        assert not asked.may_explain(signal.SIGTERM, 101.1)
        for code in (signal.SIGKILL, signal.SIGSEGV, -1):
            assert not asked.may_explain(code, 100.0)


HANDLER = """
import os, signal, sys, time
def save(number, frame):
    os.write(1, b"saved on " + signal.Signals(number).name.encode())
    sys.exit()
for name in sys.argv[1:]:
    signal.signal(signal.Signals[name], save)
os.write(1, b"ready, ")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("number", "handled", "told"),
    [
        (signal.SIGUSR2, ("SIGUSR2", "SIGTERM"), "SIGUSR2"),
        # It would be killed in mid-work.
        (signal.SIGUSR2, ("SIGTERM",), "SIGTERM"),
        (signal.SIGINT, ("SIGTERM", "SIGINT"), "SIGINT"),
    ],
)
def test_a_program_gets_a_signal_that_it_knows(
    number: int, handled: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    command = ["sh", "-c", f'exec "$@" > {said}', "sh", sys.executable, "-c", HANDLER, *handled]
    with closing(Guard(os.environ)) as keeper:
        workers = Workers(command, [os.environ], keeper)
        _wait_for(said, "ready, ")
        workers.stop(60, number)
    assert said.read_text() == f"ready, saved on {told}"


def test_a_signal_to_all_processes_of_a_job_leaves_the_guard_alive() -> None:
    with closing(Guard(os.environ)) as keeper:
        guard = keeper._process
        status = Path(f"/proc/{guard.pid}/status")
        deadline = clock.monotonic() + 60
        while not _signals_in(status.read_text(), "SigIgn") | _signals_in(status.read_text(), "SigCgt") >= ASKING:
            assert clock.monotonic() < deadline
            clock.sleep(0.01)
        for number in ASKING:
            os.kill(guard.pid, number)
        keeper.watch(Path("/none"))
        assert guard.poll() is None
    assert guard.returncode == 0


def _wait_for(path: Path, text: str) -> None:
    deadline = clock.monotonic() + 60
    while not path.exists() or path.read_text() != text:
        assert clock.monotonic() < deadline
        clock.sleep(0.01)


def _signals_in(status: str, kind: str) -> set[int]:
    found = re.search(rf"^{kind}:\s*(\w+)$", status, re.MULTILINE)
    assert found is not None
    return {number for number in range(1, 65) if int(found[1], 16) >> (number - 1) & 1}
