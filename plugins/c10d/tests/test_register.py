"""Classes for PyTorch's contract, its own among them, pass the register tests of the suite and serve nodes as they
are."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rdzv import DynamicRendezvousHandler, RendezvousStateError, RendezvousTimeout
from rdzv.engine.failures import KEEP, LEAD, WATCH
from rdzv_conformance import RegisterConformance

from rdzv_c10d.store import stores

INTERVAL = 0.2


class TestTorch(RegisterConformance):
    """`C10dRendezvousBackend` of PyTorch, on a store that is a file."""

    @pytest.fixture
    def connect(self, tmp_path: Path) -> Any:
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

        return lambda run_id: C10dRendezvousBackend(stores().FileStore(str(tmp_path / "store"), -1), run_id)


def blinking(path: Path) -> Any:
    """PyTorch's class, on a store that is a file. While `away` is set it raises PyTorch's errors."""
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

    class Blinking(C10dRendezvousBackend):
        away = False
        met: ClassVar[set[str]] = set()

        def _call_store(self, store_op: str, *args: Any, **kwargs: Any) -> Any:
            if self.away:
                self.met.add(threading.current_thread().name)
                raise RendezvousConnectionError("The connection to the C10d store has failed.")
            return super()._call_store(store_op, *args, **kwargs)

    return Blinking(stores().FileStore(str(path), -1), "run")


class InMemory:
    """As PyTorch's integration tests have one: it writes, and returns None whether it did or not."""

    name = "memory"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state: tuple[bytes, int] | None = None

    def get_state(self) -> tuple[bytes, int] | None:
        with self._lock:
            return self._state

    def set_state(self, state: bytes, token: int | None = None) -> None:
        with self._lock:
            if token == (self._state and self._state[1]):
                self._state = (state, (token or 0) + 1)


def node(backend: Any, low: int) -> DynamicRendezvousHandler:
    """A node, as PyTorch's users make one."""
    return DynamicRendezvousHandler.from_backend(
        "run",
        None,
        backend,
        low,
        4,
        local_addr="127.0.0.1",
        timeout=RendezvousTimeout(last_call=timedelta(seconds=0.2)),
        keep_alive_interval=INTERVAL,
        keep_alive_max_attempt=5,
    )


def test_a_class_that_returns_none_joins_as_in_pytorch() -> None:
    backend = InMemory()
    with ThreadPoolExecutor(3) as pool:
        nodes = [node(backend, 3) for _ in range(3)]
        try:
            worlds = [one.result(30) for one in [pool.submit(each.next_rendezvous) for each in nodes]]
        finally:
            for each in nodes:
                each.leave()
    assert sorted(world.rank for world in worlds) == [0, 1, 2]


def test_nodes_outlive_an_outage_of_which_pytorchs_errors_tell(tmp_path: Path) -> None:
    backends = [blinking(tmp_path / "store") for _ in range(2)]
    old, late = (node(backend, 1) for backend in backends)
    with ThreadPoolExecutor(1) as pool:
        try:
            assert old.next_rendezvous().world_size == 1
            backends[0].away = True
            deadline = time.monotonic() + 30
            loops = {f"rdzv-{loop}-{old.view.node_id}" for loop in (WATCH, KEEP, LEAD)}
            while old.view.connection_error is None or not backends[0].met >= loops:
                assert time.monotonic() < deadline, f"only these have met it: {backends[0].met}"
                time.sleep(0.01)
            backends[0].away = False
            joined = pool.submit(late.next_rendezvous)
            while old.num_nodes_waiting() == 0:
                assert time.monotonic() < deadline, "the node does not see that another one waits"
                time.sleep(0.01)
            assert old.next_rendezvous().world_size == 2
            assert joined.result(30).world_size == 2
        finally:
            for each in (old, late):
                each.leave()


def test_pytorchs_word_for_a_corrupt_state_is_ours(tmp_path: Path) -> None:
    register = blinking(tmp_path / "store")
    # PyTorch cannot decode this.
    stores().FileStore(str(tmp_path / "store"), -1).set("torch.rendezvous.run", "x")
    handler = node(register, 1)
    try:
        with pytest.raises(RendezvousStateError):
            handler.next_rendezvous()
    finally:
        handler.leave()
