"""Forks and ends."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from rdzv_c10d import locator
from rdzv_c10d.shared import Shared, _by_store, join

from .clients import CALL, Connect, ForkedStore


def test_two_threads_that_make_the_first_call_at_once_hold_nothing_open(
    shared_store: ForkedStore, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def join_together(*where: Any) -> Shared:
        shared = join(*where)
        both.wait(CALL)
        return shared

    monkeypatch.setattr("rdzv_c10d.backend.join", join_together)
    backend = connect(shared_store.endpoint, "first-call")
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda key: backend.read(key, timeout=CALL), ["control/a", "control/b"])) == [None, None]
    assert both.n_waiting == 0
    assert any("/first-call/" in str(key) for key in _by_store)
    backend.close()
    assert not any("/first-call/" in str(key) for key in _by_store)


def test_a_process_may_end_amid_a_wait(shared_store: ForkedStore) -> None:
    """torch would take the process down if a thread came back to an interpreter that has ended."""
    program = f"""
import threading
from rdzv_core.endpoints import parse_endpoints
from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.locator import TcpLocator
(endpoint,) = parse_endpoints("{shared_store.endpoint}", 0)
place = TcpLocator(endpoint, "rdzv/end/", is_host=False, read_timeout=900, linger=10)
backend = C10dRendezvousBackend(place, "end")
since = backend.read_all("control", timeout=60)
threading.Thread(target=backend.wait, args=("control", since), kwargs={{"timeout": 900}}, daemon=True).start()
while backend._uses.get().shared.watches._page._waiting is None:
    pass
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "frame #" not in ended.stderr, "a connection was cut, and torch has complained"


@pytest.mark.parametrize("store", ["served", "PrefixStore('part', served)"])
def test_a_fork_may_collect_a_store_that_was_brought(store: str) -> None:
    """The thread that serves it is the parent's, and torch would wait for it."""
    program = f"""
import gc, os, sys, threading, warnings
from torch.distributed import PrefixStore, TCPStore
from rdzv_c10d import C10dRendezvousBackend
warnings.simplefilter("ignore")
gc.disable()
for number in range(12):
    served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    backend = C10dRendezvousBackend({store}, "run")
    backend.read("control", timeout=10)
    backend.close()
    garbage = [backend, served]
    garbage.append(garbage)
    del backend, served, garbage
    if not (pid := os.fork()):
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join()
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["0"] * 12), ended.stderr


def test_a_child_that_is_forked_while_a_file_is_opened_does_not_lock_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's descriptor is another one of what the parent has open, and stays."""
    lock, copies = locator._lock_to_read, []

    def lock_and_fork(file: BinaryIO, deadline: float) -> bool:
        is_locked = lock(file, deadline)
        copies.append(os.dup(file.fileno()))
        return is_locked

    monkeypatch.setattr(locator, "_lock_to_read", lock_and_fork)
    path = tmp_path / "store"
    try:
        locator.FileLocator(str(path))._check_file(time.monotonic() + CALL)
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for copy in copies:
            os.close(copy)
