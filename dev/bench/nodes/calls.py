"""A node without a rendezvous that makes the calls of a node of rdzv on c10d: the floor of what torch's client takes.

It makes the calls that each member makes for a round: it counts itself, writes its record under a condition and appends
it to the log of records, rings, reads who watches, waits for the world, and reads a large world's page. The nodes of a
process share one wait, as rdzv's do, but no connection. The first node reads the log, and writes the world: what a
leader reads and writes besides is left out. Nothing is made sure of, and nothing times out.
"""

import importlib
import threading
import time
from datetime import timedelta
from typing import Final

from . import FloorNode, Node, NodeSpec
from .counting import count_store_calls

__all__ = ["load", "make"]

_MODULE: Final = "torch.distributed"
_PAUSE: Final = 0.01
"""Seconds between two looks of the first node at the records."""
_NOTHING: Final = "nothing"
"""A value that no key has: with it a key is read by one call."""
_RECORD: Final = "x" * 380
_WORLD: Final = "x" * 650
_PAGE: Final = "x" * 2000
"""About what rdzv writes; the record, without what marks each in the log."""
_MARK: Final = "="
_LARGE: Final = 64
"""Nodes up to which the world has no page of its own."""

_heard: dict[str, threading.Event] = {}
"""By key, whether this process has heard that it is there."""
_lock: Final = threading.Lock()


def load(backend: str) -> None:
    """Import torch's stores, and count their calls."""
    assert backend == "c10d"
    count_store_calls(importlib.import_module(_MODULE).Store)


def make(spec: NodeSpec) -> Node:
    """Make a node; it connects at once."""
    return _Node(spec)


class _Node(FloorNode):
    def __init__(self, spec: NodeSpec) -> None:
        host, port = spec.endpoint.split(":")
        store_type = importlib.import_module(_MODULE).TCPStore
        self._store = store_type(host, int(port), is_master=False, timeout=timedelta(seconds=spec.limit))
        self._spec = spec
        self._round = 0
        self._record = ""

    def join(self) -> int:
        self._round += 1
        run, nodes = self._spec.run_id, self._spec.min_nodes
        log, wakeup, world, page = (f"{run}/{kind}/{self._round}" for kind in ("log", "wakeup", "world", "page"))
        # Rounds that follow share the page.
        has_page = nodes > _LARGE and self._round == 1
        if self._round == 1:
            self._store.add(f"{run}/count", 1)
        before, self._record = self._record, f"{_RECORD}{self._round}"
        self._store.compare_set(f"{run}/record/{self._spec.number}", before, self._record)
        self._store.append(log, f"{_MARK}{self._record}")
        if self._round > 1:
            self._store.multi_set([wakeup], ["1"])
        self._store.compare_set(f"{run}/watchers", _NOTHING, _NOTHING)
        if self._spec.number == 0:
            while self._store.compare_set(log, _NOTHING, _NOTHING).count(_MARK.encode()) < nodes:
                time.sleep(_PAUSE)
            if has_page:
                self._store.compare_set(page, "", _PAGE)
            self._store.compare_set(world, "", _WORLD)
        self._await(world)
        if has_page:
            self._store.compare_set(page, _NOTHING, _NOTHING)
        return nodes

    def _await(self, key: str) -> None:
        """Wait until a key is there, as one of this process's nodes at a time does for all of them."""
        with _lock:
            is_first, heard = key not in _heard, _heard.setdefault(key, threading.Event())
        if is_first:
            try:
                self._store.get(key)
            finally:
                heard.set()
        heard.wait()
