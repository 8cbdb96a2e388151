"""The nodes of a run, each in a process of its own, that do what a test asks."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest
from rdzv import DynamicRendezvousHandler, RendezvousError, RendezvousSettings, RendezvousTimeout
from rdzv.inspector import RunInspector
from rdzv_core.backend import ANY, STATE_KEY, BackendPlugin, KeyValueBackend
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import registered_backends

from ..deadlines import eventually
from ..intercept import intercepted
from ..processes import Link, Processes, Worker
from .base import CALL, KEY, Conformance, Connect

_INTERVAL: Final = 0.5
"""Seconds between two keep-alives, on services that allow so few."""

_ATTEMPTS: Final = 3
"""So many intervals are the time to live."""

_PROBE: Final = 2.0
"""Seconds within which a service answers that no frozen process locks."""

FORM: Final = 30.0
"""Seconds within which a world must form on a busy machine, a silent member's time to live included."""


class Node:
    """The test's end of a node; what can be asked are the methods of `_RunningNode`.

    Args:
        worker: Its process.
        answers: Whether the service answers another client.
    """

    def __init__(self, worker: Worker, answers: Callable[[], bool]) -> None:
        self.worker = worker
        self._answers = answers

    def ask(self, question: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer."""
        return self.worker.ask(question, *arguments, timeout=FORM)

    def tell(self, question: str, *arguments: Any) -> None:
        """Ask without waiting."""
        self.worker.send([question, *arguments])

    def answer(self) -> Any:
        """The answer to what was asked."""
        return self.worker.receive(FORM)

    def world(self) -> dict[str, Any]:
        """The world that it was asked to join."""
        world: dict[str, Any] = self.answer()
        assert "error" not in world, f"a node got no world: {world['error']}"
        return world

    def refusal(self) -> str:
        """Why it got none."""
        world: dict[str, Any] = self.answer()
        assert "error" in world, f"a node that must get no world got this one: {world}"
        return str(world["error"])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze it (SIGSTOP) while it holds no lock of a service that is files.

        No call is under way then. A wait may be, which looks at the files at times, so another client tries them.
        """
        self.ask("hold")
        deadline = time.monotonic() + FORM
        self.worker.pause()
        while not self._answers():
            assert time.monotonic() < deadline, "the service does not answer while a node is frozen"
            self.worker.resume()
            self.worker.pause()
        yield
        self.worker.resume()
        self.ask("go_on")

    def kill(self) -> None:
        """kill -9."""
        self.worker.kill()


class Nodes:
    """Makes nodes of one run.

    Args:
        processes: Makes their processes.
        connect: Makes their clients.
        run_id: The run.

    Attributes:
        interval: Seconds between two of their keep-alives.
        ttl: Their time to live, in seconds.
    """

    def __init__(self, processes: Processes, connect: Callable[[], KeyValueBackend], run_id: str) -> None:
        self._processes = processes
        self._connect = connect
        self._run_id = run_id
        backend = connect()
        self.interval = max(_INTERVAL, backend.min_lease_ttl / _ATTEMPTS)
        backend.close()
        self.ttl = self.interval * _ATTEMPTS

    def __call__(
        self,
        count: int,
        low: int = 2,
        high: int = 4,
        *,
        clock: float = 0.0,
        join: float = FORM,
        last_call: float = 1.0,
        **more: Any,
    ) -> list[Node]:
        """New nodes.

        Args:
            count: How many.
            low: The smallest world.
            high: The largest.
            clock: How many seconds their clocks are wrong.
            join: How many seconds they wait for a world.
            last_call: How many seconds one that has its minimum waits for more of them.
            more: Further settings.
        """
        timeout = RendezvousTimeout(timedelta(seconds=join), timedelta(seconds=last_call))
        interval = timedelta(seconds=self.interval)
        settings = RendezvousSettings(self._run_id, low, high, timeout, interval, _ATTEMPTS, **more)
        return [
            Node(self._processes.fork(lambda link: _run_node(link, self._connect, settings, clock)), self._answers)
            for _ in range(count)
        ]

    def _answers(self) -> bool:
        """Whether the service lets a new client write."""
        worker = self._processes.fork(lambda _: _write(self._connect()))
        try:
            worker.result(_PROBE)
        except TimeoutError:
            worker.kill()
            return False
        return True


class NodesConformance(Conformance):
    """What the parts with nodes share."""

    @pytest.fixture
    def nodes(self, connect: Connect, run_id: str, processes: Processes) -> Nodes:
        """Makes nodes."""
        return Nodes(processes, lambda: connect(run_id), run_id)


def gather(nodes: list[Node]) -> list[dict[str, Any]]:
    """Have nodes join at once; their worlds."""
    for node in nodes:
        node.tell("join")
    return [node.world() for node in nodes]


def assert_calm(nodes: list[Node], seconds: float, otherwise: str) -> None:
    """Have no node wait for a round for so many seconds; else fail with these words."""
    calm = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > calm or any(node.ask("waiting") for node in nodes), "calm", FORM)
    assert not any(node.ask("waiting") for node in nodes), otherwise


def _write(backend: KeyValueBackend) -> None:
    """Write a key of the suite's own."""
    with closing(backend):
        backend.put(KEY, b"", expect=ANY, timeout=CALL)
        backend.delete(KEY, timeout=CALL)


def _run_node(link: Link, connect: Callable[[], KeyValueBackend], settings: RendezvousSettings, clock: float) -> None:
    """Be a node, which does what the test asks."""
    real = time.time
    time.time = lambda: real() + clock
    link.obey(_RunningNode(settings, connect))


class _RunningNode:
    """What a test may ask of a node."""

    def __init__(self, settings: RendezvousSettings, connect: Callable[[], KeyValueBackend]) -> None:
        self._calls: Counter[str] = Counter()
        self._settings = settings
        self._connect = connect
        self._handler = DynamicRendezvousHandler(settings, intercepted(connect(), self._count))
        self._store: Any = None
        self._round = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._held = False
        self._under_way = 0

    def join(self) -> dict[str, Any]:
        try:
            info = self._handler.next_rendezvous()
        except RendezvousError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        self._store, self._round = info.store, info.round
        shared = [info.world_size, info.round, info.nodes, str(info.bootstrap_store_info)]
        return {"rank": info.rank, "size": info.world_size, "round": info.round, "shared": shared, "pid": os.getpid()}

    def add(self) -> int:
        return int(self._store.add("suite", 1))

    def round(self) -> int:
        return self._round

    def waiting(self) -> int:
        return self._handler.num_nodes_waiting()

    def nodes(self) -> int:
        """How many nodes are there, as an inspector of the run sees it."""
        with _inspector(self._settings, self._connect) as inspector:
            return sum(node.left is None for node in inspector.status(CALL).nodes)

    def leader(self) -> str | None:
        """The id of the node that leads, as an inspector of the run sees it."""
        with _inspector(self._settings, self._connect) as inspector:
            return inspector.status(CALL).leader

    def lost(self) -> list[str]:
        status = self._handler.view.status
        return [departure.cause for departure in status.departures] if status else []

    def drain(self, seconds: float, reason: str) -> None:
        self._handler.drain(seconds, reason)

    def drained(self) -> bool:
        return self._handler.view.is_drained

    def drains(self) -> list[str]:
        """Why nodes drain, as far as this one knows."""
        return [drain.reason for drain in self._handler.view.drains]

    def ready(self) -> None:
        self._handler.ready_to_drain()

    def fail(self, reason: str) -> bool:
        """Report a failure of the program; whether no other was first."""
        return self._handler.report_failure(reason)

    def failures(self) -> list[str]:
        """The first failure of each round that had any, as far as this node knows."""
        return [failure.reason for _, failure in sorted(self._handler.view.failures.items())]

    def quarantined(self) -> list[str]:
        """Which nodes are quarantined, as an inspector of the run sees it."""
        with _inspector(self._settings, self._connect) as inspector:
            return list(inspector.status(CALL).quarantines)

    def pardon(self, name: str) -> None:
        """Lift a quarantine, as an operator does."""
        with _inspector(self._settings, self._connect) as inspector:
            inspector.pardon(name, "the suite", CALL)

    def have_drained(self, name: str, seconds: float) -> int:
        """Have the nodes of a name drain, as an operator does; how many they are."""
        with _inspector(self._settings, self._connect) as inspector:
            return len(inspector.drain(name, seconds, "the operator", CALL))

    def trouble(self) -> str | None:
        """Why the service cannot be reached."""
        return str(self._handler.view.connection_error) if self._handler.view.connection_error else None

    def calls(self) -> dict[str, int]:
        """What rdzv has asked of the backend so far, and how often; a put of the state counts as ``state``."""
        return dict(self._calls)

    def hold(self) -> None:
        """Begin no call any more, and end those that are under way, but for waits."""
        with self._lock:
            self._held = True
            assert self._changed.wait_for(lambda: not self._under_way, FORM), "a call did not end"

    def go_on(self) -> None:
        with self._lock:
            self._held = False
            self._changed.notify_all()

    def _count(self, method: str, call: Callable[[], Any], arguments: tuple[Any, ...]) -> Any:
        self._calls["state" if (method, *arguments[:1]) == ("put", STATE_KEY) else method] += 1
        if method == "wait":
            return call()
        with self._lock:
            self._changed.wait_for(lambda: not self._held)
            self._under_way += 1
        try:
            return call()
        finally:
            with self._lock:
                self._under_way -= 1
                self._changed.notify_all()

    def close(self, reason: str) -> None:
        self._handler.set_closed(reason)

    def give_up(self, reason: str) -> None:
        self._handler.set_closed(reason, gave_up=True)

    def gave_up(self) -> bool:
        return self._handler.is_closed() and self._handler.view.closed is not None and self._handler.view.closed.gave_up

    def closed(self) -> str | None:
        return self._handler.view.closed.reason if self._handler.is_closed() and self._handler.view.closed else None

    def leave(self, reason: str) -> bool:
        return self._handler.leave(reason)

    def shutdown(self) -> bool:
        return self._handler.shutdown()


def _inspector(settings: RendezvousSettings, connect: Callable[[], KeyValueBackend]) -> RunInspector:
    """Looks at the run from outside, over a client of its own."""
    name, backend = "backend-under-test", connect()
    registered_backends[name] = BackendPlugin(name, (), lambda params: (backend, None), type(backend))
    interval = settings.keep_alive_interval.total_seconds()
    options = {"keep_alive_interval": interval, "keep_alive_max_attempt": settings.keep_alive_max_attempt}
    return RunInspector(
        RendezvousParameters(name, "any", settings.run_id, settings.min_nodes, settings.max_nodes, None, **options)
    )
