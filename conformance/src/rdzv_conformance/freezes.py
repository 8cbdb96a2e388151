"""What a plugin's calls and waits make of a server that freezes: only its silence tells of it."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

import pytest
from rdzv_core.backend import ABSENT, ANY, Capability, KeyValueBackend, PutOutcome, PutResult
from rdzv_core.errors import RendezvousConnectionError

from .deadlines import lasting
from .meanwhile import follow, persist
from .suite.base import CALL
from .suite.server import Server

Watching = Callable[[Any, Callable[[], Any]], AbstractContextManager[Future[Any]]]
"""Does something in another thread meanwhile, whose question has reached the server by now."""


def check_frozen_leader_is_left(
    leader: Server, waiter: KeyValueBackend, writer: KeyValueBackend, watching: Watching
) -> None:
    """A wait at the leader finds another member, though the waiter makes no calls.

    Args:
        leader: Of a cluster; it is frozen, and stays so.
        waiter: A client that asks the leader first, and the others then.
        writer: Another one.
        watching: See there.
    """
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    with watching(leader, lambda: follow(waiter, "key", since, "key", b"after", 30)) as followed:
        leader.pause()
        persist(lambda: writer.put("key", b"after", expect=ANY, timeout=CALL).entry)
        followed.result(30)
    # A put whose outcome was unknown may have been applied after the one that was answered.
    assert persist(lambda: writer.read("key", timeout=CALL)).value == b"after"


def check_freeze_is_outlasted(
    server: Server, connect: Callable[[], KeyValueBackend], watching: Watching, seconds: float
) -> None:
    """A wait outlasts a freeze of so many seconds; calls end when their time is up, and a put does not know how.

    Args:
        server: The only one; it is frozen, and goes on.
        connect: Makes a client of it.
        watching: See there.
        seconds: How long it is frozen.
    """
    waiter, caller = connect(), connect()
    waiter.put("key", b"before", expect=ANY, timeout=CALL)
    since = waiter.read_all("key", timeout=CALL)
    caller.read("key", timeout=CALL)
    with watching(server, lambda: waiter.wait("key", since, timeout=30)) as waited:
        server.pause()
        thawed = time.monotonic() + seconds
        try:
            for client in (caller, caller, connect()):
                with lasting(0.5), pytest.raises(RendezvousConnectionError, match="no answer"):
                    client.read("key", timeout=0.5)
            if Capability.LEASE in caller.capabilities:
                with lasting(0.5), pytest.raises(RendezvousConnectionError, match="no answer"):
                    connect().open_lease(5, timeout=0.5)
            with lasting(0.5):
                assert caller.put("other", b"x", expect=ABSENT, timeout=0.5) == PutResult(PutOutcome.UNKNOWN)
            with lasting(0.5):
                assert connect().wait("key", since, timeout=0.5) is since
            time.sleep(max(0.0, thawed - time.monotonic()))
        finally:
            server.resume()
        caller.put("key", b"after", expect=ANY, timeout=CALL)
        assert waited.result(CALL).entries["key"].value == b"after"


def check_silence_is_noticed(server: Server, waiter: KeyValueBackend, watching: Watching, seconds: float) -> None:
    """A wait at the only server, which freezes, ends in an error within so many seconds."""
    waiter.put("silent", b"", expect=ANY, timeout=CALL)
    since = waiter.read_all("silent", timeout=CALL)
    with watching(server, lambda: waiter.wait("silent", since, timeout=60)) as waited:
        server.pause()
        try:
            with pytest.raises(RendezvousConnectionError, match="no answer"):
                waited.result(seconds)
        finally:
            server.resume()
