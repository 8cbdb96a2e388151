"""What a fork's child must not free, it does not; its parent does, as ever. No fork interrupts a call of OpenSSL."""

import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from rdzv_transport import tls_context
from rdzv_transport.sockets import Sockets, TimedSocket

PROGRAM = """
import gc, os, sys, warnings
from rdzv_transport.forks import keep_in_children

class Thing:
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print(self.name, "freed", flush=True)

warnings.simplefilter("ignore")
gc.disable()
used, garbage = keep_in_children(Thing("used")), keep_in_children(Thing("garbage"))
garbage.itself = garbage
keep_in_children(Thing("gone"))
del garbage
if not (pid := os.fork()):
    del used
    gc.collect()
    if not (pid := os.fork()):
        gc.collect()
        sys.exit(0)
    sys.exit(os.waitpid(pid, 0)[1])
print("child", os.waitpid(pid, 0)[1], flush=True)
gc.collect()
del used
"""


def test_only_its_own_process_frees_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["gone freed", "child 0", "garbage freed", "used freed"]


def _make_context(_: TimedSocket) -> None:
    tls_context(protocol="https", ca_cert=("ca", None), cert=("cert", __file__), key=("key", None))


def _exchange(sock: TimedSocket) -> None:
    deadline = time.monotonic() + 30
    sock.start_tls(ssl.create_default_context(), "host", deadline)
    sock.send(b"x", deadline)
    sock.receive(deadline)


@pytest.mark.parametrize(
    ("function", "result", "use"),
    [
        ((ssl, "create_default_context"), ssl.create_default_context(), _make_context),
        ((ssl.SSLContext, "load_cert_chain"), None, _make_context),
        ((ssl.SSLSocket, "do_handshake"), None, _exchange),
        ((ssl.SSLSocket, "send"), 1, _exchange),
        ((ssl.SSLSocket, "recv"), b"x", _exchange),
    ],
)
def test_no_fork_interrupts_openssl(
    function: tuple[Any, str], result: Any, use: Callable[[TimedSocket], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    calling, forked = threading.Event(), threading.Event()
    interrupted = []

    def slow(*_: Any, **__: Any) -> Any:
        calling.set()
        interrupted.append(forked.wait(0.3))
        return result

    ours, theirs = socket.socketpair()
    sock = TimedSocket(Sockets(None, None, "tls=no"), ours)
    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", lambda *_, **__: None)
    for name, value in (("do_handshake", None), ("send", 1), ("recv", b"x")):
        monkeypatch.setattr(ssl.SSLSocket, name, lambda *_, value=value: value)
    monkeypatch.setattr(*function, slow)
    with theirs, closing(sock), ThreadPoolExecutor(1) as pool:
        using = pool.submit(use, sock)
        assert calling.wait(30)
        _fork()
        forked.set()
        using.result(30)
    assert interrupted == [False]


def _fork() -> None:
    with warnings.catch_warnings():
        # Python >= 3.12 warns if another thread runs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
