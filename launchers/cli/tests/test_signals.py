"""What signals ask of an agent."""

import signal
from types import SimpleNamespace

import pytest

from rdzv_cli.agent import signals as module
from rdzv_cli.agent.signals import Asked, Signals


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
