"""What torch does to threads that are in it and to stores that are let go, and what becomes of it."""

import fcntl
import gc
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.processes import Link, Processes
from rdzv_core.backend import ANY
from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousParameterError

from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.handshake import Handshake
from rdzv_c10d.locator import FileLocator, GivenLocator, is_whole
from rdzv_c10d.store import stores
from rdzv_c10d.stuck import MOST_STUCK, Stay

from .clients import CALL, Connect, ForkedStore


class Silent:
    """A host that takes connections and answers none, as one that is stopped."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepted: list[socket.socket] = []
        self.port = self._listener.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def vanish(self) -> None:
        """Listen no more, and end no connection, as a machine that is gone without a word."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def close(self) -> None:
        """End all."""
        self.vanish()
        for connection in self._accepted:
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._accepted.append(self._listener.accept()[0])


@pytest.fixture
def silent() -> Iterator[Silent]:
    """One for the test."""
    host = Silent()
    yield host
    host.close()


def _answers(backend: C10dRendezvousBackend) -> bool:
    try:
        return backend.read("key", timeout=0.3) is None
    except RendezvousConnectionError:
        return False


def test_a_client_goes_on_with_a_new_host_after_one_that_fell_silent(connect: Connect, silent: Silent) -> None:
    backend = connect(silent.endpoint, read_timeout=1)
    with ThreadPoolExecutor(20) as pool:
        for call in [pool.submit(backend.read, "key", timeout=0.3) for _ in range(20)]:
            assert isinstance(call.exception(CALL), RendezvousConnectionError)
    silent.vanish()
    listener = socket.create_server(("127.0.0.1", silent.port))
    host = stores().TCPStore(
        "127.0.0.1", silent.port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    eventually(lambda: _answers(backend), "the client", CALL)
    since = backend.read_all("key", timeout=CALL)
    backend.put("key/a", b"x", expect=ANY, timeout=CALL)
    assert backend.wait("key", since, timeout=CALL).entries
    del host


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is late is stuck at once."""
    monkeypatch.setattr("rdzv_c10d.stuck._LATE", 0.0)


@pytest.mark.usefixtures("strict")
def test_so_many_threads_may_be_stuck_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, began = threading.Event(), threading.Semaphore(0)
    connect = GivenLocator.connect

    def hang(locator: GivenLocator, timeout: float) -> Any:
        began.release()
        goes_on.wait(60)
        return connect(locator, timeout)

    monkeypatch.setattr(GivenLocator, "connect", hang)
    monkeypatch.setattr("rdzv_c10d.locator._PATIENCE", 0.01)
    backend = C10dRendezvousBackend(stores().HashStore(), "run")
    try:
        for _ in range(MOST_STUCK):
            with pytest.raises(RendezvousConnectionError, match="did not answer in time"):
                backend.read("key", timeout=0.1)
            assert began.acquire(timeout=CALL)
        with pytest.raises(RendezvousConnectionError, match=f"{MOST_STUCK} threads of this process are stuck in torch"):
            backend.read("key", timeout=CALL)
        # Nor do other backends of this process start any.
        other = C10dRendezvousBackend(stores().HashStore(), "other")
        with pytest.raises(RendezvousConnectionError, match="are stuck in torch"):
            other.read("key", timeout=CALL)
        assert not began.acquire(blocking=False)
        goes_on.set()
        eventually(lambda: _answers(backend), "the client", CALL)
        other.close()
    finally:
        goes_on.set()
        backend.close()


@pytest.mark.usefixtures("strict")
def test_who_listens_or_is_back_is_not_stuck() -> None:
    with Stay(math.inf) as listens:
        assert not listens.is_stuck()
    with Stay(0.0) as late:
        assert late.is_stuck()
    assert not late.is_stuck()


AT_THE_END = """
import atexit, sys, threading
# Registered before the backend's own, and so called after it.
atexit.register(lambda: print(sorted(one.name for one in threading.enumerate() if "c10d" in one.name)))
from rdzv_core.errors import RendezvousError
from rdzv_core.parameters import RendezvousParameters
from rdzv_c10d import create_backend
params = RendezvousParameters("c10d", sys.argv[1], "run", 1, 1, is_host=False)
backend, _ = create_backend(params)
for ask in (lambda: backend.read("key", timeout=0.2), lambda: backend.call_in_order(len, 0.2)):
    try:
        ask()
    except RendezvousError as error:
        print(type(error).__name__)
if sys.argv[2] == "closes":
    backend.close()
"""


@pytest.mark.parametrize("end", ["closes", "just ends"])
def test_no_thread_is_in_torch_when_the_interpreter_ends(silent: Silent, end: str) -> None:
    command = [sys.executable, "-c", AT_THE_END, silent.endpoint, end]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout) == (0, "NoAnswerError\n" * 2 + "[]\n"), ended.stderr


def test_what_is_not_used_any_more_is_cut(connect: Connect, silent: Silent) -> None:
    backend = connect(silent.endpoint)
    with pytest.raises(RendezvousConnectionError):
        backend.read("key", timeout=0.2)
    backend.close()
    eventually(lambda: not [one for one in threading.enumerate() if "handshake" in one.name], "its threads")


def test_a_fork_cuts_no_connection_that_its_parent_makes(server: ForkedStore, processes: Processes) -> None:
    host, _, port = server.endpoint.partition(":")
    connection = socket.create_connection((host, int(port)))
    handshake = Handshake(connection)
    processes.fork(lambda link: handshake.cut()).result(CALL)
    store = handshake.make(CALL)
    store.set("key", b"x")
    assert store.get("key") == b"x"


def test_a_handshake_that_is_cut_fails(server: ForkedStore) -> None:
    host, _, port = server.endpoint.partition(":")
    handshake = Handshake(socket.create_connection((host, int(port))))
    handshake.cut()
    with pytest.raises(RuntimeError):
        handshake.make(CALL)


# FileStores.


def _on(file: Path) -> C10dRendezvousBackend:
    return C10dRendezvousBackend(FileLocator(str(file)), "run")


def test_a_file_store_is_never_freed(tmp_path: Path) -> None:
    """Its end writes to the file, which never ends on a full disk, and no other thread runs meanwhile."""
    file = tmp_path / "store"
    backend = _on(file)
    backend.put("key", b"x", expect=ANY, timeout=CALL)
    backend.close()
    gc.collect()
    assert b"cleanup/" not in file.read_bytes()


def test_a_full_disk_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, waiting, new = _on(tmp_path / "store"), _on(tmp_path / "store"), _on(tmp_path / "new")
    backend.put("key/a", b"x", expect=ANY, timeout=CALL)
    since = waiting.read_all("key", timeout=CALL)
    before, written = os.statvfs, (tmp_path / "store").read_bytes
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=15, f_frsize=4096))
    size = len(written())
    for call in (
        lambda: backend.put("key/b", b"x", expect=ANY, timeout=CALL),
        lambda: backend.read("key/a", timeout=CALL),
        lambda: new.read("key/a", timeout=CALL),
    ):
        with pytest.raises(RendezvousConnectionError, match="is full"):
            call()
    assert len(written()) == size
    monkeypatch.setattr(os, "statvfs", before)
    backend.put("key/b", b"x", expect=ANY, timeout=CALL)
    assert len(waiting.wait("key", since, timeout=CALL).entries) == 2
    for one in (backend, waiting, new):
        one.close()


RECORDS = b"\x02\0\0\0/a\x01\0\0\0x" if sys.byteorder == "little" else b"\0\0\0\x02/a\0\0\0\x01x"


@pytest.mark.parametrize(("cut_off", "whole"), [(0, True), (1, False), (5, False), (6, False), (11, True)])
def test_what_is_whole(cut_off: int, whole: bool) -> None:
    assert is_whole((RECORDS * 2)[: 22 - cut_off]) is whole


def test_letters_are_no_records() -> None:
    assert not is_whole(b"just some text")


def test_a_file_that_would_hold_torch_for_ever_is_refused(tmp_path: Path, processes: Processes) -> None:
    """In processes of their own, for no thread of theirs would run any more."""
    (tmp_path / "cut off").write_bytes(RECORDS[:-1])
    (tmp_path / "locked").touch()

    def read(name: str, link: Link) -> str:
        backend = _on(tmp_path / name)
        try:
            backend.read("key", timeout=0.5)
        except RendezvousError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            backend.close()
        return ""

    with open(tmp_path / "locked") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        locked = processes.fork(lambda link: read("locked", link)).result(CALL)
    assert locked.startswith((RendezvousConnectionError.__name__, "NoAnswerError"))
    cut_off = processes.fork(lambda link: read("cut off", link)).result(CALL)
    assert cut_off.startswith(RendezvousParameterError.__name__)
    assert "whose last record is cut off, as on a full disk" in cut_off


# Names.


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """One that answers for no name until the event is set."""
    answers, look_up = threading.Event(), socket.getaddrinfo

    def hang(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not str(host)[0].isdigit():
            answers.wait(60)
        return look_up(host, *args, **kwargs)

    answers.set()
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    yield answers
    answers.set()


def test_a_silent_resolver_is_asked_once(connect: Connect, server: ForkedStore, resolver: threading.Event) -> None:
    backend = connect(f"localhost:{server.endpoint.partition(':')[2]}")
    backend.read("key", timeout=CALL)
    resolver.clear()
    assert backend.local_address == "127.0.0.1"
    assert not resolver.is_set()


def test_a_host_knows_its_address_although_the_resolver_is_silent(connect: Connect, resolver: threading.Event) -> None:
    backend = connect("localhost:0", is_host=None)
    backend.read("key", timeout=CALL)
    resolver.clear()
    assert backend.local_address in ("127.0.0.1", "::1")
    assert not resolver.is_set()


def test_the_end_does_not_wait_for_the_resolver(connect: Connect, resolver: threading.Event) -> None:
    resolver.clear()
    backend = connect("node1.test:1", is_host=None)
    with pytest.raises(RendezvousConnectionError, match="did not answer in time"):
        backend.read("key", timeout=0.2)
    backend.close()
    assert not resolver.is_set()


_OPENERS = """
import os, sys, threading
from rdzv_c10d.locator import FileLocator
from rdzv_c10d.stuck import keep_file

def work():
    for _ in range(40):
        # As the pool does: the end of one waits for the file's lock, too, with Python's.
        keep_file(FileLocator(sys.argv[1]).connect(10))

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.stdout.write("all")
sys.stdout.flush()
os._exit(0)
"""


def test_threads_that_open_one_file_at_once_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _OPENERS, str(tmp_path / "store")]
    # Where one reads the file under its lock, and another waits for that in torch with Python's lock, both stand still.
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "all"
