"""Where a store is, and how to get a connection of one's own to it."""

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from rdzv_core.endpoints import Endpoint, source_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError, RendezvousStateError
from rdzv_transport import keep_in_children

from .hosting import Host, try_to_host
from .store import FAILURES, Session, Store, socket_of, stores, without_prefixes
from .values import nonce

_LONGEST_KEY: Final = 1 << 20

_MARK: Final = "rdzv-c10d/store"
"""The key that says which session of the store this is, and whose store it is."""

_CONNECT: Final = 2.0
"""Seconds that torch may try to connect to a port where a process listened just before: if its host has ended
since then, torch tries on and on."""

_READS: Final = timedelta(seconds=1)
"""How long a read of several keys waits for one that was removed just then."""

_SHARED_MACHINE: Final = "127.0.0.1"

_NO_PROCESS: Final = 0
"""The process that has made, and may make, no folder."""


class StoreLocator(ABC):
    """Where a store is. It makes connections, and does not know what uses them.

    Attributes:
        kind: Which class of torch's it is.
        where: Its address, for messages.
        key: What is the same for two places if and only if their stores are.
        read_timeout: The longest that one call may take, in seconds.
    """

    kind: str
    where: str
    key: Hashable
    read_timeout = float("inf")

    @abstractmethod
    def connect(self, timeout: float) -> Store:
        """Make a connection, which is for one thread; may outlast its timeout (in seconds).

        Raises:
            RendezvousConnectionError: The store could not be reached.
        """

    def release(self, *, at_once: bool) -> None:  # noqa: B027 - most have nothing to release
        """Let go of what `connect` set up beside the connections, even if others need it still: `at_once`."""

    def local_address(self) -> str:
        """This machine's address as the store's other clients see it."""
        return _SHARED_MACHINE


class TcpLocator(StoreLocator):
    """A TCPStore at an endpoint, which this process serves itself if it is the one who can.

    A store that is served so belongs to one run; the nodes of another that meet it by accident
    learn it. One that was there already (a TCPStore of torch's) is for all.
    """

    kind = "TCPStore"

    def __init__(
        self, endpoint: Endpoint, owner: str, is_host: bool | None, read_timeout: float, linger: float
    ) -> None:
        """See `OPTIONS`; `owner` is the run."""
        self.where = str(endpoint)
        self.read_timeout = read_timeout
        self._endpoint = endpoint
        self._owner = owner
        # A port of one's own is another one each time.
        self._name = (endpoint, owner) if endpoint.port else (endpoint, owner, nonce())
        self.key = "tcp", self._name, is_host
        self._is_host = is_host
        self._linger = linger
        self._host: Host | None = None
        self._hosting = threading.Lock()

    def connect(self, timeout: float) -> Store:
        """See `StoreLocator`. Serves the store first, if no process does."""
        started = time.monotonic()
        host = None if self._is_host is False else self._serve()
        if host is None and self._endpoint.port == 0:
            raise RendezvousParameterError(
                f"The endpoint '{self._endpoint}' leaves the port to this process, which cannot serve a store there: "
                "it is no address of this machine. Write localhost:0."
            )
        address = _reach(self._endpoint, timeout) if host is None else host.address
        return _client(address, self.where, timeout - (time.monotonic() - started))

    def release(self, *, at_once: bool) -> None:
        with self._hosting:
            host, self._host = self._host, None
        if host is not None:
            host.release(0.0 if at_once else self._linger)

    def local_address(self) -> str:
        return source_address([self._endpoint], self.read_timeout)

    def _serve(self) -> Host | None:
        """Be the host, if possible or demanded; None if another process is."""
        with self._hosting:
            if self._host is None:
                self._host = try_to_host(self._endpoint, self._name, self._is_host is True, self._claim)
            return self._host

    def _claim(self, store: Store) -> None:
        """Say that a new store is this run's alone, even if a client has entered already."""
        mark, there = _mark(nonce(), self._owner), b""
        while (found := store.compare_set(_MARK, there, mark)) != mark:
            mark, there = _mark(_parse_mark(found).id, self._owner), found


class FileLocator(StoreLocator):
    """A FileStore: a file that all nodes see."""

    kind = "FileStore"

    def __init__(self, path: str) -> None:
        """At `path`; its folder must exist."""
        self._path = self.where = os.path.abspath(path)
        self.key = "file", self._path

    def connect(self, timeout: float) -> Store:
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise RendezvousParameterError(f"There is no folder '{folder}' for the file '{self._path}'. Make it first.")
        self._check_file()
        store: Store = stores().FileStore(self._path)
        return store

    def _check_file(self) -> None:
        """Refuse a file that is not a store, or not writable: torch would try for ever, and not even end at Ctrl-C."""
        if os.path.exists(self._path) and not os.path.isfile(self._path):
            what = "a folder" if os.path.isdir(self._path) else "no file"
            raise RendezvousParameterError(
                f"'{self._path}' is {what}; a FileStore is a file. Give the path of a new one."
            )
        try:
            with open(self._path, "a+b") as file:
                file.seek(0)
                head = file.read(4)
        except OSError as error:
            raise RendezvousParameterError(
                f"The file '{self._path}' cannot be read and written: {error.strerror}. "
                "Give the path of a new file, in a folder that this user may write to."
            ) from error
        # It begins with the length of a key. Four letters would be a very long one.
        if int.from_bytes(head, sys.byteorder) > _LONGEST_KEY:
            raise RendezvousParameterError(f"The file '{self._path}' is no FileStore. Give the path of a new file.")


class TemporaryFileLocator(FileLocator):
    """A FileStore in a folder that this process makes when it first connects, and removes in the end."""

    def __init__(self) -> None:
        """Makes nothing yet.

        Raises:
            RendezvousParameterError: There is no place for it.
        """
        try:
            self._folder = os.path.join(tempfile.gettempdir(), f"rdzv-c10d-{nonce()}")
        except OSError as error:
            raise _no_folder(error, "any of the usual places") from error
        super().__init__(os.path.join(self._folder, "store"))
        self._maker: int | None = None

    def connect(self, timeout: float) -> Store:
        self._make()
        store = super().connect(timeout)
        # Torch looks so long for a file in a folder that is gone, as a thread does that ends after `release`.
        store.set_timeout(_READS)
        return store

    def release(self, *, at_once: bool) -> None:
        # A fork has the same folder, and leaves it to the process that has made it.
        maker, self._maker = self._maker, _NO_PROCESS
        if maker != os.getpid():
            return
        # Without its name, a thread that is late cannot make the file again, as torch does.
        nameless = f"{self._folder}-removed"
        with suppress(OSError):
            os.rename(self._folder, nameless)
        shutil.rmtree(nameless, ignore_errors=True)

    def _make(self) -> None:
        if self._maker is not None:
            return
        try:
            os.mkdir(self._folder, 0o700)
        except FileExistsError:
            # Another thread was faster, or the process that this is a fork of.
            return
        except OSError as error:
            raise _no_folder(error, f"'{os.path.dirname(self._folder)}'") from error
        self._maker = os.getpid()


class GivenLocator(StoreLocator):
    """A store that the user brought."""

    def __init__(self, store: Any) -> None:
        """Connections are clones of `store`, which stays the user's."""
        # Either may be all that is left of it in a child.
        self._store = keep_in_children(store)
        keep_in_children(without_prefixes(store))
        self.key = "given", id(store)
        self.kind = type(store).__name__
        self.where = str(self._address() or "no address")

    def connect(self, timeout: float) -> Store:
        if self._store is None:
            raise RendezvousConnectionError("This backend of c10d was closed.")
        can_clone = hasattr(self._store, "clone")
        if (address := self._address()) is None:
            # It is one object for all, or a file.
            return self._store.clone() if can_clone else self._store  # type: ignore[no-any-return]
        # A clone of a store whose host is gone would try for most of a minute.
        _reach(address, timeout)
        if can_clone:
            return _prepare(self._store.clone())
        if without_prefixes(self._store) is self._store:
            return _client((address.host, address.port), self.where, timeout)
        raise RendezvousParameterError(
            "A PrefixStore over a TCPStore cannot be cloned by this version of torch; bring the TCPStore itself."
        )

    def local_address(self) -> str:
        address = self._address()
        return _SHARED_MACHINE if address is None else source_address([address], 10.0)

    def release(self, *, at_once: bool) -> None:
        # What used it refers to itself, and is garbage for a while. The store ends when its owner lets go of it.
        self._store = None

    def _address(self) -> Endpoint | None:
        inner = without_prefixes(self._store)
        return Endpoint(inner.host, inner.port) if hasattr(inner, "host") and hasattr(inner, "port") else None


def _no_folder(error: OSError, where: str) -> RendezvousParameterError:
    return RendezvousParameterError(
        f"No folder for a store can be made in {where} ({error.strerror}). Give a path as the endpoint, or another "
        "folder as TMPDIR."
    )


def enter(store: Store) -> Session:
    """Find out which session of which store this is; the first client to come names it.

    Raises:
        RendezvousStateError: Something else is written where this is said.
    """
    return _parse_mark(store.compare_set(_MARK, b"", _mark(nonce(), "")))


def _mark(session: str, owner: str) -> bytes:
    return json.dumps({"id": session, "owner": owner}).encode()


def _parse_mark(raw: bytes) -> Session:
    try:
        mark = json.loads(raw)
        return Session(str(mark["id"]), str(mark["owner"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RendezvousStateError(f"The store's key '{_MARK}' was not written by rdzv-c10d: {raw[:80]!r}") from error


def _reach(endpoint: Endpoint, timeout: float) -> tuple[str, int]:
    """The address at which a process listens; torch's client would try again and again, and print what it tries."""
    try:
        with socket.create_connection((endpoint.host, endpoint.port), max(0.001, timeout)) as probe:
            address: tuple[str, int] = probe.getpeername()[:2]
            if probe.getsockname()[:2] == address:
                # A free port of this machine that the system gave us as our own: no other process is there.
                raise ConnectionRefusedError("no process listens")
    except (OSError, UnicodeError) as error:
        raise RendezvousConnectionError(
            f"No process serves a store at {endpoint} ({getattr(error, 'strerror', None) or error}), and this process "
            "cannot or must not. Is its host up?"
        ) from error
    return address


def _client(address: tuple[str, int], where: str, timeout: float) -> Store:
    seconds = timedelta(seconds=max(0.1, min(timeout, _CONNECT)))
    try:
        return _prepare(stores().TCPStore(*address, is_master=False, timeout=seconds, wait_for_workers=False))
    except FAILURES as error:
        raise RendezvousConnectionError(
            f"What listens at {where} does not answer as a TCPStore does ({error}); is it a TCPStore?"
        ) from None


def _prepare(store: Any) -> Store:
    """Set up a new client of a TCPStore."""
    store.set_timeout(_READS)
    connection = socket_of(store)
    if connection is not None:
        with connection:
            # Where a machine is gone without a word torch would wait for ever; so the system ends the connection.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return store  # type: ignore[no-any-return]
