"""The calls to the service for which an agent waits: which signals end a wait."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from rdzv_core.errors import RendezvousConnectionError

from rdzv_cli.agent.calls import unless_urgent, until_signalled
from rdzv_cli.agent.signals import Asked, Signals


@pytest.fixture
def forever() -> Iterator[threading.Event]:
    """What a call waits for that does not end by itself."""
    event = threading.Event()
    yield event
    event.set()


def ask(signals: Signals, what: Asked) -> None:
    """Have a signal ask for that."""
    signals.asked, signals.number = what, 15


def test_a_first_signal_leaves_it_the_time_that_it_needs() -> None:
    signals = Signals(drains=False)

    def call() -> int:
        ask(signals, Asked.END)
        return 7

    assert unless_urgent(signals, call) == 7


def test_its_error_is_the_callers() -> None:
    def call() -> None:
        raise RendezvousConnectionError("away")

    with pytest.raises(RendezvousConnectionError, match="away"):
        unless_urgent(Signals(drains=False), call)


def test_a_second_signal_ends_the_wait(forever: threading.Event) -> None:
    signals = Signals(drains=False)

    def call() -> bool:
        ask(signals, Asked.END_AT_ONCE)
        return forever.wait()

    assert unless_urgent(signals, call) is None


@pytest.mark.parametrize("hangs", ["leaving", "the call"])
def test_a_second_signal_ends_a_wait_that_leaving_does_not_end(forever: threading.Event, hangs: str) -> None:
    signals = Signals(drains=False)
    left: list[str] = []

    def leave(reason: str) -> None:
        left.append(reason)
        ask(signals, Asked.END_AT_ONCE)
        if hangs == "leaving":
            forever.wait()

    def call() -> bool:
        ask(signals, Asked.END)
        return forever.wait()

    speaker: Any = SimpleNamespace(signals=signals, handler=SimpleNamespace(leave=leave), drain_if_asked=list)
    assert until_signalled(speaker, call) is None
    assert left == ["SIGTERM"]
