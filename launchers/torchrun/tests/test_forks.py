"""A process that had handlers forks: what belongs to it is never freed in its children."""

import subprocess
import sys
from pathlib import Path

import pytest

CHILDREN = 12

PROGRAM = """
import gc, os, sys, threading, warnings
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

backend, children, *endpoints = sys.argv[1:]
warnings.simplefilter("ignore")
gc.disable()
for number in range(int(children)):
    params = RendezvousParameters(backend, endpoints[number], f"job-{number}", 1, 1, last_call_timeout="0.1")
    handler = get_rendezvous_handler(params)
    garbage = [handler, handler.next_rendezvous()]
    garbage.append(garbage)
    del handler, garbage
    if not (pid := os.fork()):
        collecting = threading.Thread(target=gc.collect)
        collecting.start()
        collecting.join()
        sys.exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
# Not the test's concern: twelve nodes that leave, one after the other.
os._exit(0)
"""


@pytest.mark.soak
@pytest.mark.parametrize("backend", ["sqlite", "rdzv-c10d"])
def test_a_child_may_collect_the_garbage_of_its_parent(backend: str, tmp_path: Path) -> None:
    endpoints = [str(tmp_path / "rdzv.db")] * CHILDREN
    if backend == "rdzv-c10d":
        pytest.importorskip("rdzv_c10d")
        servers = pytest.importorskip("rdzv_conformance.servers")
        endpoints = [f"127.0.0.1:{port}" for port in servers.free_ports(CHILDREN)]
    command = [sys.executable, "-c", PROGRAM, backend, str(CHILDREN), *endpoints]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["0"] * CHILDREN), done.stderr
