"""The client waits for what is wanted, also while the service is away, and gives up in time."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from rdzv_core import Snapshot

from rdzv import RendezvousConnectionError, RendezvousDeniedError
from rdzv.engine.client import DecodedSnapshot, Pauses, RetryingClient

from .memory import Fault, MemoryBackend
from .waiting import wait_until

LONG = 30.0


def has(key: str, seen: DecodedSnapshot) -> bool:
    return key in seen.names()


def write(backend: MemoryBackend, key: str) -> None:
    RetryingClient(MemoryBackend(backend.service), "b").put(key, b"", time.monotonic() + LONG, previous=None)


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def client(backend: MemoryBackend) -> RetryingClient:
    return RetryingClient(backend, "a")


@pytest.fixture
def empty(client: RetryingClient) -> DecodedSnapshot:
    return client.read_all("keys", time.monotonic() + LONG)


def test_what_is_there_costs_no_call(backend: MemoryBackend, client: RetryingClient, empty: DecodedSnapshot) -> None:
    assert client.wait_for(lambda seen: True, "keys", empty, time.monotonic() + LONG) is empty
    assert backend.calls == {"read_all": 1}


def test_it_waits_on_until_it_is_what_is_wanted(
    backend: MemoryBackend, client: RetryingClient, empty: DecodedSnapshot
) -> None:
    with ThreadPoolExecutor(1) as pool:
        deadline = time.monotonic() + LONG
        waiting = pool.submit(client.wait_for, lambda seen: has("keys/b", seen), "keys", empty, deadline)
        wait_until(lambda: backend.calls["wait"] == 1)
        write(backend, "keys/a")
        wait_until(lambda: backend.calls["wait"] == 2)
        write(backend, "keys/b")
        assert waiting.result(LONG).names() == ["keys/a", "keys/b"]
    assert backend.calls == {"read_all": 1, "wait": 2}


def test_when_time_is_up_it_returns_what_it_has_seen(client: RetryingClient, empty: DecodedSnapshot) -> None:
    began = time.monotonic()
    assert client.wait_for(lambda seen: False, "keys", empty, began + 0.1) is empty
    assert 0.1 <= time.monotonic() - began < LONG


def test_a_wait_that_fails_is_followed_by_a_read(
    backend: MemoryBackend, client: RetryingClient, empty: DecodedSnapshot
) -> None:
    write(backend, "keys/a")
    backend.fail("wait", Fault.REQUEST_LOST)
    seen = client.wait_for(lambda seen: has("keys/a", seen), "keys", empty, time.monotonic() + LONG)
    assert seen.names() == ["keys/a"]
    assert backend.calls["wait"] == 1


def test_a_service_that_stays_away_is_an_error(
    backend: MemoryBackend, client: RetryingClient, empty: DecodedSnapshot
) -> None:
    backend.disconnect("it is away")
    with pytest.raises(RendezvousConnectionError, match="it is away"):
        client.wait_for(lambda seen: False, "keys", empty, time.monotonic() + 0.2)


def test_a_refusal_is_not_tried_again_by_who_is_in_no_run(backend: MemoryBackend, empty: DecodedSnapshot) -> None:
    client = RetryingClient(backend, "observer", pauses=lambda: Pauses(random.Random(), refused=lambda: 0.0))
    backend.refuse(RendezvousDeniedError("not you"), "wait")
    with pytest.raises(RendezvousDeniedError, match="not you"):
        client.wait_for(lambda seen: False, "keys", empty, time.monotonic() + LONG)
    assert backend.calls == {"read_all": 1, "wait": 1}


def test_a_refusal_is_an_outage_to_who_is_in_a_run(
    backend: MemoryBackend, client: RetryingClient, empty: DecodedSnapshot
) -> None:
    write(backend, "keys/a")
    backend.refuse(RendezvousDeniedError("not you"), "wait")
    seen = client.wait_for(lambda seen: has("keys/a", seen), "keys", empty, time.monotonic() + 0.5)
    assert seen.names() == ["keys/a"]
    backend.refuse(RendezvousDeniedError("not you"), "read_all")
    with pytest.raises(RendezvousDeniedError, match=r"^not you$"):
        client.read_all("keys", time.monotonic() + 0.3)


def test_a_refused_call_is_tried_again_for_so_long_at_most_and_no_other(backend: MemoryBackend) -> None:
    client = RetryingClient(backend, "a", pauses=lambda: Pauses(random.Random(), refused=lambda: 0.5))
    backend.refuse(RendezvousDeniedError("not you"), "read_all")
    with pytest.raises(RendezvousDeniedError, match=r"^not you$"):
        client.read_all("keys", time.monotonic() + 4.0)
    assert backend.calls == {"read_all": 1}
    backend.refuse(RendezvousConnectionError("away"), "read_all")
    with pytest.raises(RendezvousConnectionError, match="away"):
        client.read_all("keys", time.monotonic() + 1.0)
    assert backend.calls["read_all"] > 2


@pytest.mark.parametrize("least", [0.0, 5.0])
def test_the_service_gets_its_time_to_answer_however_near_the_deadline_is(empty: DecodedSnapshot, least: float) -> None:
    allowed: list[float] = []

    class Watched(MemoryBackend):
        def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
            allowed.append(timeout)
            return super().read_all(prefix, timeout=timeout)

    backend = Watched()
    backend.refuse(RendezvousConnectionError("reads only"), "wait")
    RetryingClient(backend, "a").wait_for(lambda seen: False, "keys", empty, time.monotonic() + 0.05, least)
    assert allowed
    assert all(max(least - 0.05, 0.0) < timeout <= max(least, 0.05) for timeout in allowed)


def test_closing_ends_the_pause_after_a_wait_that_failed(
    backend: MemoryBackend, client: RetryingClient, empty: DecodedSnapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdzv.engine.client.backoff", lambda random, most: iter([LONG]))
    backend.fail("wait", Fault.REQUEST_LOST)
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        waiting = pool.submit(client.wait_for, lambda seen: False, "keys", empty, began + LONG)
        wait_until(lambda: backend.calls["wait"] == 1)
        client.close()
        assert isinstance(waiting.exception(LONG), RendezvousConnectionError)
    assert time.monotonic() - began < LONG / 2
