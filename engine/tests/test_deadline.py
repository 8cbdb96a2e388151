"""A call is tried again until its deadline, and not until the last long pause before it."""

import itertools
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rdzv_core import Entry, Token
from rdzv_core.backend import ABSENT
from rdzv_core.deadline import pause_within

from rdzv import RendezvousBackend, RendezvousConnectionError
from rdzv.engine import register
from rdzv.engine.client import RetryingClient
from rdzv.engine.effects import OpenLease, Put, Sleep
from rdzv.engine.register_adapter import RegisterAdapter

from .coroutines import Harness
from .memory import MemoryBackend

LONG = 1.0
"""Seconds of a pause, when a service has been away for a while."""
CALL = 0.8
"""Seconds of a call."""


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("rdzv.engine.client", "rdzv.engine.register_adapter"):
        monkeypatch.setattr(f"{module}.backoff", lambda rng, most=None: itertools.repeat(LONG))


def pauses(seconds: float, drawn: Callable[[], float]) -> Iterator[float]:
    """The pauses between attempts that take no time."""
    while (pause := pause_within(seconds, drawn())) is not None:
        yield pause
        seconds -= pause


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.03, 0.8, 5.0, 600.0])
def test_the_last_attempt_is_just_before_the_deadline(seconds: float) -> None:
    rng = random.Random(7)
    taken = list(pauses(seconds, lambda: rng.uniform(0.5, 1.0)))
    assert max(0.0, seconds - 0.1) == pytest.approx(sum(taken))
    assert len(taken) <= 2 * seconds + 2


class Recovering(MemoryBackend):
    """Away for some reads.

    Attributes:
        away: For so many.
        allowed: The seconds that each of them was allowed to take.
    """

    def __init__(self, away: int) -> None:
        super().__init__()
        self.away = away
        self.allowed: list[float] = []

    def read(self, key: str, *, timeout: float) -> Entry | None:
        self.allowed.append(timeout)
        if len(self.allowed) <= self.away:
            raise RendezvousConnectionError("it is away")
        return super().read(key, timeout=timeout)


@pytest.mark.usefixtures("long_pauses")
def test_a_service_that_is_back_before_the_deadline_is_asked_again() -> None:
    backend = Recovering(away=1)
    assert RetryingClient(backend, "a").read("key", time.monotonic() + CALL) is None
    first, last = backend.allowed
    # Each is allowed what is left.
    assert CALL >= first > last > 0


@pytest.mark.usefixtures("long_pauses")
def test_a_service_that_stays_away_is_an_error_at_the_deadline() -> None:
    backend, began = Recovering(away=1000), time.monotonic()
    with pytest.raises(RendezvousConnectionError, match=r"^Every call to .* has failed for \d\.\d s: it is away$"):
        RetryingClient(backend, "a").read("key", began + CALL)
    assert time.monotonic() - began >= CALL - 0.1


def test_of_a_single_attempt_the_error_says_all() -> None:
    with pytest.raises(RendezvousConnectionError, match=r"^it is away$"):
        RetryingClient(Recovering(away=1), "a").read("key", time.monotonic())


@pytest.mark.usefixtures("long_pauses")
def test_a_node_tries_to_register_until_its_deadline() -> None:
    harness = Harness()
    node = harness.node()
    node.registration.record = harness.registered().registration.record
    deadline = harness.now + CALL
    registering = harness.stepper(register.register(node, deadline))
    registering.to(OpenLease)
    assert isinstance(registering.throw(RendezvousConnectionError("it is away")), Sleep)
    registering.to(Put)
    assert harness.now == pytest.approx(deadline - 0.1)


class Contended(RendezvousBackend):
    """A register that another changes before each of the first writes, on the test's clock."""

    name = "contended"

    def __init__(self) -> None:
        self.now, self.others = 0.0, 1
        self.state: bytes | None = None

    def get_state(self) -> tuple[bytes, Token] | None:
        return None if self.state is None else (self.state, 1)

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Token, bool] | None:
        self.others -= 1
        if self.others < 0:
            self.state = state
        return state, 1, self.others < 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.usefixtures("long_pauses")
def test_a_register_that_others_change_is_written_until_the_deadline() -> None:
    register = Contended()
    keys = RegisterAdapter(register, clock=lambda: register.now, sleep=register.sleep)
    keys.put("nodes/a", b"here", expect=ABSENT, timeout=CALL)
    entry = keys.read("nodes/a", timeout=CALL)
    assert entry is not None
    assert entry.value == b"here"
    assert register.now < CALL
