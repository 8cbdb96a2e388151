"""Where a store is, and how to get a connection of one's own to it."""

import fcntl
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
from typing import Any, BinaryIO, Final

from rdzv_core.endpoints import Endpoint, source_address
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError, RendezvousStateError
from rdzv_transport import keep_in_children

from .handshake import Handshake
from .hosting import Host, SharedNameError, known_addresses, try_to_host
from .store import FAILURES, Session, Store, check_room, socket_of, stores, without_prefixes
from .values import nonce

_LONGEST_KEY: Final = 1 << 20

_MARK: Final = "rdzv-c10d/store"
"""The key that says which session of the store this is, and whose store it is."""

_PATIENCE: Final = 60.0
"""Seconds that making a connection may take at most, where no `read_timeout` says less."""

_READS: Final = timedelta(seconds=1)
"""How long a read of several keys waits for one that was removed just then."""

_LOCKED: Final = 0.01
"""Seconds between two attempts to lock a file."""

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

    @property
    def patience(self) -> float:
        """Seconds that the host may take to answer a connection in the making; who waits for it may give up before."""
        return min(self.read_timeout, _PATIENCE)

    @abstractmethod
    def connect(self, timeout: float) -> Store:
        """Make a connection, which is for one thread; may outlast its timeout (in seconds).

        Raises:
            RendezvousConnectionError: The store could not be reached.
        """

    def release(self, *, at_once: bool) -> None:  # noqa: B027 - most have nothing to release
        """Let go of what `connect` set up beside the connections, even if others need it still: `at_once`."""

    def cut(self) -> None:  # noqa: B027 - most have nothing to cut
        """End the connections in the making, where that is possible."""

    def local_address(self) -> str:
        """This machine's address as the store's other clients see it."""
        return _SHARED_MACHINE


class _NetworkLocator(StoreLocator):
    """A TCPStore."""

    def __init__(self) -> None:
        self._handshakes: set[Handshake] = set()

    def cut(self) -> None:
        for handshake in list(self._handshakes):
            handshake.cut()

    def _client(self, connection: socket.socket) -> Store:
        """A client of what a connection leads to."""
        handshake = Handshake(connection)
        self._handshakes.add(handshake)
        try:
            return _prepare(handshake.make(self.patience))
        except FAILURES as error:
            if isinstance(error, RendezvousConnectionError):
                raise
            raise RendezvousConnectionError(
                f"What listens at {self.where} does not answer as a TCPStore does ({error}); is it a TCPStore?"
            ) from None
        finally:
            self._handshakes.discard(handshake)


class TcpLocator(_NetworkLocator):
    """A TCPStore at an endpoint, which this process serves itself if it is the one who can.

    A store that is served so belongs to one run; the nodes of another that meet it by accident
    learn it. One that was there already (a TCPStore of torch's) is for all.
    """

    kind = "TCPStore"

    def __init__(
        self, endpoint: Endpoint, owner: str, is_host: bool | None, read_timeout: float, linger: float
    ) -> None:
        """See `OPTIONS`; `owner` is the run."""
        super().__init__()
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
        self._is_released = False
        self._hosting = threading.Lock()

    def connect(self, timeout: float) -> Store:
        """See `StoreLocator`. Serves the store first, if no process does."""
        host, hint = None, "Is its host up?"
        try:
            host = None if self._is_host is False else self._serve()
        except SharedNameError as error:
            hint = str(error)
        if host is None and self._endpoint.port == 0:
            raise RendezvousParameterError(
                f"The endpoint '{self._endpoint}' leaves the port to this process, which cannot serve a store there: "
                "it is no address of this machine. Write localhost:0."
            )
        if host is not None:
            return self._client(_dial(Endpoint(*host.address), timeout, hint))
        connection = _dial(self._endpoint, timeout, hint)
        known_addresses[self._endpoint.host] = [connection.getpeername()[0]]
        return self._client(connection)

    def release(self, *, at_once: bool) -> None:
        with self._hosting:
            host, self._host, self._is_released = self._host, None, True
        if host is not None:
            host.release(0.0 if at_once else self._linger)

    def local_address(self) -> str:
        # The name of a host that answers is looked up no more: the resolver may be silent meanwhile.
        known = known_addresses.get(self._endpoint.host, [self._endpoint.host])
        return source_address([Endpoint(host, self._endpoint.port) for host in known], self.read_timeout)

    def _serve(self) -> Host | None:
        """Be the host, if possible or demanded; None if another process is."""
        if self._host is None:
            # Without the lock, for which `release` would wait: the name is looked up.
            host = try_to_host(self._endpoint, self._name, self._is_host is True, self._claim)
            with self._hosting:
                if self._host is None and not self._is_released:
                    self._host, host = host, None
            if host is not None:
                host.release(0.0)
        return self._host

    def _claim(self, store: Store) -> None:
        """Say that a new store is this run's alone, even if a client has entered already."""
        mark, there = _mark(nonce(), self._owner), b""
        while (found := store.compare_set(_MARK, there, mark)) != mark:
            mark, there = _mark(_parse_mark(found).id, self._owner), found


class FileLocator(StoreLocator):
    """A FileStore: a file that all nodes see."""

    kind = "FileStore"
    # Torch's constructor waits for the file's lock with Python's own held: a thread that reads the file under the lock
    # meanwhile would never let it go.
    _opening = threading.Lock()

    def __init__(self, path: str) -> None:
        """At `path`; its folder must exist."""
        self._path = self.where = os.path.abspath(path)
        self.key = "file", self._path

    def connect(self, timeout: float) -> Store:
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise RendezvousParameterError(f"There is no folder '{folder}' for the file '{self._path}'. Make it first.")
        check_room(folder)
        deadline = time.monotonic() + timeout
        if not FileLocator._opening.acquire(timeout=max(0.0, min(timeout, threading.TIMEOUT_MAX))):
            raise RendezvousConnectionError(f"The file '{self._path}' is being opened by other threads for too long.")
        try:
            self._check_file(deadline)
            store: Store = stores().FileStore(self._path)
        finally:
            FileLocator._opening.release()
        return store

    def _check_file(self, deadline: float) -> None:
        """Refuse a file that is not a store, not writable or locked for long: with Python's lock held, torch's
        constructor would try for ever."""
        if os.path.exists(self._path) and not os.path.isfile(self._path):
            what = "a folder" if os.path.isdir(self._path) else "no file"
            raise RendezvousParameterError(
                f"'{self._path}' is {what}; a FileStore is a file. Give the path of a new one."
            )
        try:
            with open(self._path, "a+b") as file:
                is_unlocked = _lock_to_read(file, deadline)
                try:
                    file.seek(0)
                    whole = is_unlocked and is_whole(file.read())
                finally:
                    # To close it is not enough: a child that was forked meanwhile has it open, too.
                    fcntl.flock(file, fcntl.LOCK_UN)
        except OSError as error:
            raise RendezvousParameterError(
                f"The file '{self._path}' cannot be read and written: {error.strerror}. "
                "Give the path of a new file, in a folder that this user may write to."
            ) from error
        if not is_unlocked:
            raise RendezvousConnectionError(f"The file '{self._path}' is locked by another process for too long.")
        if not whole:
            raise RendezvousParameterError(
                f"The file '{self._path}' is no FileStore, or one whose last record is cut off, as on a full disk. "
                "Give the path of a new file."
            )


def _open_anew() -> None:
    """Another thread of the parent may have held it at the fork."""
    FileLocator._opening = threading.Lock()


os.register_at_fork(after_in_child=_open_anew)


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


class GivenLocator(_NetworkLocator):
    """A store that the user brought."""

    def __init__(self, store: Any) -> None:
        """Connections are clones of `store`, which stays the user's."""
        super().__init__()
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
        connection = _dial(address, timeout, "Is its host up?")
        if without_prefixes(self._store) is self._store:
            return self._client(connection)
        connection.close()
        if can_clone:
            return _prepare(self._store.clone())
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


def _lock_to_read(file: BinaryIO, deadline: float) -> bool:
    """Lock a FileStore as torch does to read it; False if that is not possible until a deadline."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCKED)
        else:
            return True


def is_whole(data: bytes) -> bool:
    """Whether these are the records of a FileStore: keys and values in turn, each after its length. torch reads on and
    on for the rest of one that is cut off."""
    position, count = 0, 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], sys.byteorder)
        if not count and length > _LONGEST_KEY:
            # Letters: four of them would be a very long key.
            return False
        position, count = position + 4 + length, count + 1
    return position == len(data) and count % 2 == 0


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


def _dial(endpoint: Endpoint, timeout: float, hint: str) -> socket.socket:
    """A connection to the process that listens at an endpoint; torch would try again and again, and print what it
    tries."""
    try:
        connection = socket.create_connection((endpoint.host, endpoint.port), max(0.001, timeout))
        if connection.getsockname()[:2] == connection.getpeername()[:2]:
            # A free port of this machine that the system gave us as our own: no other process is there.
            connection.close()
            raise ConnectionRefusedError("no process listens")
    except (OSError, UnicodeError) as error:
        if isinstance(error, socket.gaierror):
            hint = f"Does this machine know the name '{endpoint.host}'? If not, give its address in the endpoint."
        raise RendezvousConnectionError(
            f"No process serves a store at {endpoint} ({getattr(error, 'strerror', None) or error}), and this process "
            f"cannot or must not. {hint}"
        ) from error
    return connection


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
