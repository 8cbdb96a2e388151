"""What tests do beside a service that fails, or while a call is under way."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from rdzv.backend import KeyValueBackend, Snapshot
from rdzv.errors import RendezvousConnectionError

__all__ = ["follow", "in_background", "open_files", "persist", "unanswered_names"]

_T = TypeVar("_T")


def follow(backend: KeyValueBackend, prefix: str, since: Snapshot, key: str, value: bytes, seconds: float) -> Snapshot:
    """Wait as the core does, through failures, until a key holds a value.

    Args:
        backend: Whom to ask.
        prefix: What to wait for.
        since: What is known of it.
        key: The key.
        value: Its value in the end.
        seconds: How long.

    Raises:
        AssertionError: It did not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        entry = since.entries.get(key)
        if entry is not None and entry.value == value:
            return since
        try:
            since = backend.wait(prefix, since, timeout=remaining)
        except RendezvousConnectionError:
            time.sleep(0.05)
    raise AssertionError(f"'{key}' did not become {value!r} within {seconds} s, but {since.entries.get(key)}")


def persist(call: Callable[[], _T | None], seconds: float = 20) -> _T:
    """Call through failures, as the core does, until there is a result.

    Raises:
        AssertionError: There was none within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if (result := call()) is not None:
                return result
        except RendezvousConnectionError:
            time.sleep(0.05)
    raise AssertionError(f"no result within {seconds} s")


def open_files() -> int:
    """How many files and sockets this process has open."""
    return len(os.listdir("/dev/fd"))


@contextmanager
def in_background(work: Callable[[], _T]) -> Iterator[Future[_T]]:
    """Do something in another thread meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work)


@contextmanager
def unanswered_names() -> Iterator[None]:
    """Within, no name server answers: a lookup by Python lasts until the end of it."""
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
