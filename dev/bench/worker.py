"""A process full of nodes, which does what `pool.py` orders: ``python -m bench.worker KIND BACKEND``.

It first imports what such nodes need, once. For every line on its input, such as ``{"meet": PATH, "count": 4}``, it
then makes so many copies of itself by a fork; each connects to the socket at PATH, takes orders there, and ends when
its line to `pool.py` does. With ``--load`` it tells instead what the import took.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO, TypeVar

from bench.nodes import TALLY, NewNode, Node, NodeSpec

_T = TypeVar("_T")
_SWITCH_INTERVAL = 1.0
_POLL_INTERVAL = 0.01
"""Seconds between two looks of a node that waits for an event."""


class Worker:
    """One process's nodes; every public method is an order, and what it returns the answer."""

    def __init__(self, kind: Any) -> None:
        self._make: Callable[[NodeSpec], Node] = kind.make
        self._nodes: list[Node] = []
        self._former: list[Node] = []
        # A node's program has a thread before it joins: making one is no part of what a round costs.
        self._threads = ThreadPoolExecutor()

    def make(self, specs: list[dict[str, Any]]) -> int:
        """Make the nodes; those that there were stay, and so does what a process shares."""
        self._former += self._nodes
        self._nodes = [self._node(NodeSpec(**spec)) for spec in specs]
        self._threads = ThreadPoolExecutor(len(specs))
        present = threading.Barrier(len(specs))
        self._each(lambda node: present.wait())
        return len(self._nodes)

    def join(self, at: float) -> dict[str, Any]:
        """Have all nodes join at a moment: when the first called and the last returned, and worlds by size."""
        return self._gathered(self._each(lambda node: _span(node.join), at))

    def call(self) -> float:
        """Have a node join, and do not wait for it: the moment of the call."""
        began = time.monotonic()
        threading.Thread(target=self._nodes[0].join, daemon=True).start()
        return began

    def watch(self, limit: float) -> list[float | None]:
        """Wait until the nodes see a node wait: when each did; None if it did not within `limit` seconds."""
        return self._each(lambda node: _await(node.waiting, limit))

    def come_back(self, limit: float) -> dict[str, Any]:
        """As `join`, of those that have orders to come within `limit` seconds."""

        def come_back(node: Node) -> tuple[float, float, int] | None:
            return _span(node.join) if _await(node.waiting, limit) else None

        return self._gathered([span for span in self._each(come_back) if span])

    def idle(self, seconds: float) -> bool:
        """Let the nodes be members, with a launcher that asks now and then."""
        until = time.monotonic() + seconds

        def ask(node: Node) -> None:
            while (remaining := until - time.monotonic()) > 0:
                node.waiting()
                time.sleep(min(remaining, node.pause))

        self._each(ask)
        return True

    def store(self, seconds: float) -> dict[str, float]:
        """How many times in a second the first node's store does each thing, one after the other."""
        store = self._nodes[0].store()
        store.set("value", b"x" * 64)
        return {
            "set": _rate(lambda: store.set("value", b"x" * 64), seconds),
            "get": _rate(lambda: store.get("value"), seconds),
            "add": _rate(lambda: store.add("count", 1), seconds),
        }

    def tally(self) -> tuple[int, float]:
        """Calls and CPU seconds of the process until now."""
        return TALLY.calls, time.process_time()

    def end(self) -> bool:
        """Release everything."""
        self._each(Node.end)
        return True

    def _node(self, spec: NodeSpec) -> Node:
        return NewNode(lambda: self._make(spec)) if spec.new else self._make(spec)

    def _each(self, work: Callable[[Any], _T], at: float = 0.0) -> list[_T]:
        """Do something with every node, each on a thread of its own, from a moment on."""

        def run(node: Node) -> _T:
            time.sleep(max(0.0, at - time.monotonic()))
            return work(node)

        return list(self._threads.map(run, self._nodes))

    def _gathered(self, spans: list[tuple[float, float, int]]) -> dict[str, Any]:
        return {
            "first": min((first for first, _, _ in spans), default=0.0),
            "last": max((last for _, last, _ in spans), default=0.0),
            "worlds": Counter(size for _, _, size in spans),
        }


def _span(join: Callable[[], int]) -> tuple[float, float, int]:
    began = time.monotonic()
    size = join()
    return began, time.monotonic(), size


def _await(condition: Callable[[], bool], limit: float) -> float | None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_INTERVAL)
    return time.monotonic()


def _rate(work: Callable[[], object], seconds: float) -> float:
    work()
    began, done = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        work()
        done += 1
    return done / (now - began)


def _serve(kind: Any, path: str) -> None:
    """The life of a copy: it takes orders until the line ends, and then ends, whatever hangs."""
    gc.collect()  # touches all memory, so that it is not the first rendezvous that pays for the copying
    gc.freeze()  # nor for a look through all of torch, which takes longer than a rendezvous
    # A process of a hundred nodes has hundreds of threads, which no program has that is one node. Each that waits for
    # the interpreter asks for it once in so many seconds: by default that takes both cores as soon as they are busy.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    line = socket.socket(socket.AF_UNIX)
    line.connect(path)
    stream = line.makefile("rw")
    print(json.dumps(os.getpid()), file=stream, flush=True)
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_work, args=(Worker(kind), orders, stream), daemon=True).start()
    for order in stream:
        orders.put(order)


def _work(worker: Worker, orders: "SimpleQueue[str]", stream: TextIO) -> None:
    while True:
        name, details = json.loads(orders.get())
        try:
            answer = {"answer": getattr(worker, name)(**details)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=stream, flush=True)


def _multiply(kind: Any) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the copies' exit codes are not waited for
    nothing = os.open(os.devnull, os.O_RDWR)
    for text in sys.stdin:
        wanted = json.loads(text)
        for _ in range(wanted["count"]):
            if os.fork() == 0:
                os.dup2(nothing, 0)
                os.dup2(nothing, 1)
                with contextlib.suppress(OSError):
                    _serve(kind, wanted["meet"])
                os._exit(0)


def _memory() -> float:
    """Resident megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _leave_dns_alone() -> None:
    """Look up names in /etc/hosts alone: torch looks up both ends of every connection, and some DNS takes seconds."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).__nss_configure_lookup(b"hosts", b"files")


def main(kind_name: str, backend: str, *options: str) -> None:
    """See above."""
    _leave_dns_alone()
    kind = importlib.import_module(f"bench.nodes.{kind_name}")
    before = _memory()
    began = time.monotonic()
    kind.load(backend)
    loaded = {"seconds": time.monotonic() - began, "before": before, "after": _memory()}
    print(json.dumps(loaded), flush=True)
    if "--load" not in options:
        _multiply(kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
