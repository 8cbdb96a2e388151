"""How long nodes need to gather, and what it costs the service.

    python3 dev.py gather                         # etcd v3: 2, 8, 32, 128, 256 and 1024 nodes
    python3 dev.py gather --backend sqlite 2 8

Nodes are handlers on threads of a few processes, all called at once; the time is from the first call
to the last return. A second round follows, for which everyone comes back at once. Calls are what
the server itself counted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rdzv import RendezvousHandler, RendezvousInfo, RendezvousParameters, get_rendezvous_handler
from rdzv_conformance.servers import SERVERS, free_ports

PROCESSES = 4
ROUNDS = 2


@dataclass(frozen=True)
class Result:
    """What one size cost.

    Attributes:
        nodes: How many nodes gathered.
        seconds: For each round, from the first call to the last return.
        calls: Calls to the service per node and round; None where it does not count them.
    """

    nodes: int
    seconds: list[float]
    calls: float | None


def gather(backend: str, endpoint: str, nodes: int, count: Callable[[], int] | None) -> Result:
    """Let `nodes` nodes gather, twice."""
    before = count() if count else 0
    shares = [share for share in (len(range(start, nodes, PROCESSES)) for start in range(PROCESSES)) if share]
    run_id = f"gather-{nodes}-{time.monotonic_ns()}"
    command = [sys.executable, __file__, "--node", backend, endpoint, run_id, str(nodes)]
    children = [
        subprocess.Popen([*command, str(share)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for share in shares
    ]
    seconds = []
    try:
        for _ in range(ROUNDS):
            for child in children:
                answer(child)
            for child in children:
                say(child, "go")
            spans = [json.loads(answer(child)) for child in children]
            seconds.append(max(end for _, end in spans) - min(start for start, _ in spans))
        calls = (count() - before) / nodes / ROUNDS if count else None
        for child in children:
            say(child, "end")
            child.wait(60)
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return Result(nodes, seconds, calls)


def say(child: "subprocess.Popen[str]", word: str) -> None:
    """Tell a child to go on."""
    assert child.stdin is not None
    child.stdin.write(f"{word}\n")
    child.stdin.flush()


def answer(child: "subprocess.Popen[str]") -> str:
    """What a child says next."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise RuntimeError("a child ended too early; what it said is above")
    return line


def be_nodes(backend: str, endpoint: str, run_id: str, nodes: int, share: int) -> None:
    """A child: `share` of the nodes, each on a thread of its own."""
    params = RendezvousParameters(backend, endpoint, run_id, nodes, nodes, join_timeout=300)
    handlers = [get_rendezvous_handler(params) for _ in range(share)]
    for _ in range(ROUNDS):
        infos: list[RendezvousInfo] = []

        def join(handler: RendezvousHandler, infos: list[RendezvousInfo] = infos) -> None:
            infos.append(handler.next_rendezvous())

        threads = [threading.Thread(target=join, args=(handler,)) for handler in handlers]
        print("ready", flush=True)
        sys.stdin.readline()
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if len(infos) != share or {info.world_size for info in infos} != {nodes}:
            sys.exit(f"{len(infos)} of {share} nodes got a world")
        print(json.dumps([start, time.monotonic()]), flush=True)
    sys.stdin.readline()
    for handler in handlers:
        handler.shutdown()


@contextmanager
def service(backend: str) -> Iterator[tuple[str, Callable[[], int] | None]]:
    """A service for the measurement: its endpoint, and how to count its calls."""
    if backend in SERVERS:
        with SERVERS[backend]() as server:
            yield server.get_endpoint(), lambda: server.calls().total()
    elif backend == "c10d":
        # One of the nodes serves it.
        yield f"127.0.0.1:{free_ports(1)[0]}", None
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield str(Path(folder, "rdzv.db")), None


def main() -> None:
    """Measure and print."""
    if sys.argv[1:2] == ["--node"]:
        backend, endpoint, run_id, nodes, share = sys.argv[2:]
        be_nodes(backend, endpoint, run_id, int(nodes), int(share))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["sqlite", "c10d", *SERVERS], default="etcd-v3")
    parser.add_argument("sizes", nargs="*", type=int, default=[2, 8, 32, 128, 256, 1024], help="how many nodes")
    arguments = parser.parse_args()
    print(f"{'nodes':>6} {'gather s':>9} {'again s':>9} {'calls/node':>11}   on {arguments.backend}")
    with service(arguments.backend) as (endpoint, count):
        for nodes in arguments.sizes:
            result = gather(arguments.backend, endpoint, nodes, count)
            calls = "-" if result.calls is None else f"{result.calls:.2f}"
            print(f"{nodes:6} {result.seconds[0]:9.3f} {result.seconds[1]:9.3f} {calls:>11}", flush=True)


if __name__ == "__main__":
    main()
