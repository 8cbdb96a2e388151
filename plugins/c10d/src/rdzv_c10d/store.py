"""What is used of a store of torch's, as a type; and what the rest of the package needs to say about one."""

import importlib
import math
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from rdzv_core.errors import RendezvousConnectionError

FAILURES: Final = (RuntimeError, OSError, MemoryError, ValueError)
"""What a store of torch's raises when it cannot do its work: its `DistError` is a `RuntimeError`; the last two where it
has taken what something else sends for a length."""

_LONGEST: Final = 1e6
"""Seconds that are as good as no limit."""

_ROOM: Final = 1 << 16
"""Bytes that a file system must have left for a FileStore."""

_ATTEMPTS: Final = 1000
"""More than a write takes in any crowd."""

_LEVEL: Final = "TORCH_CPP_LOG_LEVEL"
_importing: Final = threading.Lock()

_STOP_WAITING: Final = b"\0" + bytes(8)
"""How a TCPStore answers a `get` of a key that is there and empty: the wait for it, then its length."""

_NOTHING: Final = b"\0nothing"
"""A value that no key ever has."""


class NoAnswerError(RendezvousConnectionError):
    """The store did not answer in time."""


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that is used here, in bytes: torch takes them wherever it says str.

    ``get``, ``wait`` and ``multi_get`` block until the keys exist; nothing else does. For ``set``, ``multi_set`` and
    ``append`` a TCPStore does not even wait for an answer. ``compare_set`` writes if the value is the expected one
    (empty: if there is none), and returns the present value; for a missing key that is what was expected, whatever it
    is, and all who wait for that key wake as if it were there. ``has_extended_api`` says whether ``append`` and
    ``multi_get`` are one step each.
    """

    timeout: timedelta

    def compare_set(self, key: str, expected: bytes, desired: bytes, /) -> bytes: ...
    def set_timeout(self, timeout: timedelta, /) -> None: ...
    def set(self, key: str, value: bytes, /) -> None: ...
    def multi_set(self, keys: list[str], values: list[bytes], /) -> None: ...
    def append(self, key: str, value: bytes, /) -> None: ...
    def add(self, key: str, amount: int, /) -> int: ...
    def check(self, keys: list[str], /) -> bool: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def wait(self, keys: list[str], timeout: timedelta, /) -> None: ...
    def delete_key(self, key: str, /) -> bool: ...
    def list_keys(self) -> list[str]: ...
    def has_extended_api(self) -> bool: ...
    def queue_push(self, key: str, value: bytes, /) -> None: ...
    def queue_pop(self, key: str, block: bool, /) -> bytes: ...
    def queue_len(self, key: str, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Session:
    """The time in which a store keeps what is written into it: for a TCPStore, until its host ends.

    Attributes:
        id: Random; made by the first client.
        owner: The only run that may use the store (see `TcpLocator`); empty: any.
    """

    id: str
    owner: str = field(compare=False)


@dataclass(slots=True, eq=False)
class Connection:
    """A client of a store, for one thread at a time.

    Attributes:
        client: The client itself.
        session: What it is connected to.
        descriptor: Of its socket, by which its waits can be limited; None: they cannot.
        path: The file of a FileStore.
    """

    client: Any
    session: Session
    descriptor: int | None = None
    path: str | None = None
    _limit: float = field(default=0.0, init=False)
    _until: float = field(default=math.inf, init=False)

    @property
    def store(self) -> Any:
        """The client, for one more call: it waits for an answer as long as those before it have left it.

        Raises:
            NoAnswerError: They have left nothing.
        """
        if self._until < math.inf:
            if (remaining := self._until - time.monotonic()) <= 0:
                raise NoAnswerError("The store did not answer in time: the calls before have taken all of it.")
            self._limit_wait(remaining)
        return self.client

    def limit_waits(self, seconds: float) -> None:
        """Have the calls from now on end within so many seconds, if they can be limited: a hundredth later at most, and
        as late as the system's timers are.

        Raises:
            OSError: The system has no such limit.
        """
        self._until = time.monotonic() + seconds if self.descriptor is not None else math.inf
        self._limit_wait(seconds)

    def _limit_wait(self, seconds: float) -> None:
        # Most calls have about the same patience: then nothing has to be set, which takes three system calls.
        if self.descriptor is not None and not seconds <= self._limit <= 1.01 * seconds:
            limit = 1.005 * seconds
            _limit_waits(self.descriptor, limit)
            self._limit = limit

    def check_room(self) -> None:
        """See `check_room`."""
        if self.path is not None:
            check_room(self.path)

    def end_wait(self) -> AbstractContextManager[object]:
        """End the wait of the thread that gets a key, as if that were there and empty. After that it is of no use.

        Torch, which would print a warning with a stack trace if the connection were cut, finds an answer there.

        Returns:
            Whence the answer comes: to be left when the wait has ended.
        """
        connection = socket_of(self.store)
        if connection is None or self.descriptor is None:
            return nullcontext()
        ours, torchs = socket.socketpair()
        with connection, torchs, suppress(OSError):
            ours.send(_STOP_WAITING)
            os.dup2(torchs.fileno(), self.descriptor, inheritable=False)
            # The thread waits for the socket that was there before.
            connection.shutdown(socket.SHUT_RDWR)
        return ours

    def cut(self) -> None:
        """Break it, if it has a socket, which ends whatever waits for an answer there."""
        connection = socket_of(self.client)
        if connection is not None:
            with connection, suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def check_room(path: str) -> None:
    """Refuse to write to a full disk: torch would leave a part of a record, at whose end every reader waits for ever.

    Raises:
        RendezvousConnectionError: It is full, or nearly.
    """
    with suppress(FileNotFoundError):
        found = os.statvfs(path)
        if found.f_bavail * found.f_frsize < _ROOM:
            raise RendezvousConnectionError(
                f"The file system of the FileStore '{path}' is full: fewer than {_ROOM} bytes are left."
            )


def file_of(store: Any) -> str | None:
    """The path of a FileStore; None: it is another store."""
    inner = without_prefixes(store)
    return str(inner.path) if isinstance(inner, stores().FileStore) else None


def stores() -> Any:
    """torch's module that has the stores; imported when it is first needed, since that takes seconds.

    What torch's C++ says of a call that fails goes straight to the standard error, and the error says the same: a
    reader that stalls would hold up the thread, and the lease with it. torch reads the level as it is imported; a
    program's is its own, and one that the user has set stays.
    """
    if "torch" in sys.modules or _LEVEL in os.environ:
        return importlib.import_module("torch.distributed")
    with _importing:
        os.environ[_LEVEL] = "FATAL"
        try:
            return importlib.import_module("torch.distributed")
        finally:
            del os.environ[_LEVEL]


def peek(store: Store, key: str) -> bytes | None:
    """Read a key without waiting for it, in one round trip; None if it is missing or empty.

    Not for a missing key that others wait for: each reading wakes them all (see `Store`), and were they to read it in
    the same way, none of them would ever rest.
    """
    found = store.compare_set(key, _NOTHING, _NOTHING)
    return None if found in (_NOTHING, b"") else found


def extend(store: Store, key: str, data: bytes) -> None:
    """Append to a value, in one step."""
    if store.has_extended_api():
        store.append(key, data)
        return
    there = peek(store, key) or b""
    for _ in attempts(key):
        if (found := store.compare_set(key, there, there + data)) == there + data:
            return
        # A missing key answers with what was expected of it.
        there = b"" if found == there else found


def attempts(key: str) -> Iterator[int]:
    """As many as a write takes at most.

    Raises:
        RuntimeError: These were all: what is no TCPStore may answer each time that another was faster.
    """
    yield from range(_ATTEMPTS)
    raise RuntimeError(f"of {_ATTEMPTS} attempts to write '{key}' none was the fastest; is it a TCPStore?")


def without_prefixes(store: Any) -> Any:
    """The store within a PrefixStore; any other store itself."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store


def descriptor_of(store: Any) -> int | None:
    """The descriptor of the socket of a TCPStore's client; None where torch does not tell."""
    found = re.search(r"fd=(\d+)", repr(without_prefixes(store)))
    return None if found is None else int(found[1])


def socket_of(store: Any) -> socket.socket | None:
    """A copy of the socket of a TCPStore's client, to be closed; None where torch does not tell."""
    descriptor = descriptor_of(store)
    return None if descriptor is None else copy_socket(descriptor)


def _limit_waits(descriptor: int, seconds: float) -> None:
    """Have torch fail where the store's host is silent for so long: a failure after which the connection is of no use.

    Raises:
        OSError: The system has no such limit.
    """
    # Without a copy, which would be two more system calls for each call of the store.
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        limit = struct.pack("ll", *divmod(max(1, int(min(seconds, _LONGEST) * 1e6)), 1_000_000))
        borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    finally:
        borrowed.detach()


def limited(store: Any) -> int | None:
    """The descriptor by which a client's waits can be limited; None: they cannot, here or for such a store."""
    descriptor = descriptor_of(store)
    if descriptor is not None and sys.platform != "win32":
        with suppress(OSError):
            _limit_waits(descriptor, _LONGEST)
            return descriptor
    return None


def copy_socket(descriptor: int) -> socket.socket | None:
    """A second socket object for a descriptor of this process; None if that does not stand for a socket."""
    copy = -1
    with suppress(OSError):
        copy = os.dup(descriptor)
        return socket.socket(fileno=copy)
    if copy >= 0:
        os.close(copy)
    return None
