"""Forks and ends."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from rdzv.backend import ANY, Outcome
from rdzv_conformance.meanwhile import follow
from rdzv_conformance.processes import Link, Processes

from .clients import CALL, Connect, ForkedStore


def test_a_fork_amid_calls_and_waits(shared_store: ForkedStore, connect: Connect) -> None:
    """Parent and child go on, each with connections of its own."""
    backend = connect(shared_store.endpoint, "fork")
    since = backend.read_all("shared", timeout=CALL)
    stop = threading.Event()

    def work() -> int:
        count = 0
        while not stop.is_set():
            assert backend.put("parent", b"%d" % count, expect=ANY, timeout=CALL).outcome is Outcome.WON
            entry = backend.read("parent", timeout=CALL)
            assert entry is not None
            assert entry.value == b"%d" % count
            count += 1
        return count

    def child(link: Link) -> None:
        for number in range(20):
            value = b"%d" % number
            assert backend.put("child", value, expect=ANY, timeout=CALL).outcome is Outcome.WON
            entry = backend.read("child", timeout=CALL)
            assert entry is not None
            assert entry.value == value
        seen = backend.wait("shared", since, timeout=0.05)
        backend.put("shared", b"from the child", expect=ANY, timeout=CALL)
        follow(backend, "shared", seen, "shared", b"from the child", CALL)
        backend.close()

    with ThreadPoolExecutor(4) as pool, Processes() as processes:
        followed = pool.submit(follow, backend, "shared", since, "shared", b"from the child", 30)
        working = pool.submit(work)
        for _ in range(5):
            processes.fork(child).result()
        followed.result(30)
        stop.set()
        assert working.result() > 0


def test_a_process_may_end_amid_a_wait(shared_store: ForkedStore) -> None:
    """torch would take the process down if a thread came back to an interpreter that has ended."""
    program = f"""
import threading
from rdzv.endpoints import parse_endpoints
from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.place import TcpPlace
(endpoint,) = parse_endpoints("{shared_store.endpoint}", 0)
place = TcpPlace(endpoint, "rdzv/end/", is_host=False, read_timeout=60, linger=10)
backend = C10dRendezvousBackend(place, "end")
since = backend.read_all("control", timeout=10)
threading.Thread(target=backend.wait, args=("control", since), kwargs={{"timeout": 60}}, daemon=True).start()
while not any(hub.watches._by_prefix for hub in backend._hubs.values()):
    pass
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
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
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout.split()) == (0, ["0"] * 12), ended.stderr
