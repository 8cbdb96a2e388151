"""What tests do beside a service that fails, or while a call is under way."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from rdzv_core.backend import Entry, KeyValueBackend, Snapshot
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.threads import in_thread

from .deadlines import eventually

_T = TypeVar("_T")

_PATIENCE: Final = 120.0
"""Seconds after which what goes on in another thread will never end."""


def wait_for(
    client: KeyValueBackend,
    prefix: str,
    since: Snapshot,
    condition: Callable[[Snapshot], bool],
    what: str,
    seconds: float = 5,
    *,
    through_failures: bool = False,
) -> Snapshot:
    """Wait from snapshot to snapshot until one meets a condition.

    Args:
        client: Whom to ask.
        prefix: What to wait for.
        since: What is known of it.
        condition: What must come.
        what: The same in words.
        seconds: How long.
        through_failures: Go on when the service cannot be reached, as rdzv does.

    Raises:
        AssertionError: It did not come within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition(since):
        remaining = deadline - time.monotonic()
        assert remaining > 0, f"a change was missed: waited {seconds:.1f} s for {what}: it did not happen"
        try:
            since = client.wait(prefix, since, timeout=remaining)
        except RendezvousConnectionError:
            if not through_failures:
                raise
            time.sleep(0.05)
        assert isinstance(since, Snapshot), f"wait returned {since!r}: it returns a Snapshot, also when its time is up"
    return since


def follow(client: KeyValueBackend, prefix: str, since: Snapshot, key: str, value: bytes, seconds: float) -> Snapshot:
    """Wait through failures until a key holds a value; see `wait_for`."""
    what = f"'{key}' to become {value!r}"
    return wait_for(client, prefix, since, holds(key, value), what, seconds, through_failures=True)


def wait_briefly(client: KeyValueBackend, prefix: str, since: Snapshot) -> Snapshot:
    """A wait that is over at once. Where connecting takes longer, it may say so by its error, and nothing is missed."""
    try:
        return client.wait(prefix, since, timeout=0.05)
    except RendezvousConnectionError:
        return since


def holds(name: str, value: bytes | None) -> Callable[[Snapshot], bool]:
    """Whether a snapshot has this value (None: no such key)."""
    return lambda now: value_of(now.entries.get(name)) == value


def value_of(entry: Entry | None) -> bytes | None:
    """The value of an entry, if there is one."""
    return None if entry is None else entry.value


def with_retries(call: Callable[[], _T], seconds: float = 10) -> _T:
    """Ask again while the service cannot be reached, as rdzv does: backends do not retry."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return call()
        except RendezvousConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def persist(call: Callable[[], _T | None], seconds: float = 20) -> _T:
    """Call through failures until there is a result.

    Raises:
        AssertionError: There was none within `seconds`.
        RendezvousConnectionError: The last call failed.
    """
    deadline = time.monotonic() + seconds
    while (result := with_retries(call, deadline - time.monotonic())) is None:
        assert time.monotonic() < deadline, f"no call had a result within {seconds:g} s"
    return result


def open_files() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/dev/fd"))


@contextmanager
def in_background(work: Callable[[], _T]) -> Iterator[Future[_T]]:
    """Do something in another thread meanwhile, which ends before the test goes on."""
    future = in_thread(work, "in the background")
    try:
        yield future
    finally:
        wait([future], _PATIENCE)
    assert future.done(), f"what a test does meanwhile has not ended within {_PATIENCE:g} s, whatever its timeout"


@contextmanager
def once_counted(work: Callable[[], _T], count: Callable[[], int], what: str) -> Iterator[Future[_T]]:
    """Do something in another thread meanwhile, which the server has counted by now.

    Args:
        work: What.
        count: How often the server was asked for such a thing.
        what: That thing, in words.
    """
    before = count()
    with in_background(work) as future:
        eventually(lambda: count() > before, what)
        yield future


@contextmanager
def unanswered_names() -> Iterator[None]:
    """While this runs, every name lookup by Python hangs until it ends."""
    over = threading.Event()
    resolve = socket.getaddrinfo

    def hang(host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            over.wait()
        return resolve(host, port, family, type, proto, flags)

    socket.getaddrinfo = hang
    try:
        yield
    finally:
        socket.getaddrinfo = resolve
        over.set()
