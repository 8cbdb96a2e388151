"""Runs on the embedded default: every test has a database of its own."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import rdzv
from rdzv_sqlite import SqliteBackend
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from rdzv_torchrun.rendezvous import TorchrunHandler
from rdzv_torchrun.store import TorchStore

FAST = {"keep_alive_interval": "1", "keep_alive_max_attempt": "20", "last_call_timeout": "0.2", "timeout": 900}


@pytest.fixture
def database(tmp_path: Path) -> str:
    """The endpoint of every node."""
    return str(tmp_path / "rdzv.db")


@pytest.fixture
def node(database: str) -> Iterator[Callable[..., TorchrunHandler]]:
    """Makes nodes as torchrun does, and ends them."""
    with ExitStack() as stack:

        def node(min_nodes: int = 2, max_nodes: int = 2, backend: str = "sqlite", **options: Any) -> TorchrunHandler:
            params = RendezvousParameters(backend, database, "job", min_nodes, max_nodes, **{**FAST, **options})
            handler = get_rendezvous_handler(params)
            assert isinstance(handler, TorchrunHandler)
            stack.callback(handler.shutdown)
            return handler

        yield node


@pytest.fixture
def bare(database: str) -> Iterator[Callable[..., rdzv.DynamicRendezvousHandler]]:
    """Makes nodes of the same run that know nothing of torch, and ends them."""
    with ExitStack() as stack:

        def bare(min_nodes: int = 2, max_nodes: int = 2, **options: Any) -> rdzv.DynamicRendezvousHandler:
            params = rdzv.RendezvousParameters("sqlite", database, "job", min_nodes, max_nodes, **{**FAST, **options})
            handler = rdzv.get_rendezvous_handler(params)
            assert isinstance(handler, rdzv.DynamicRendezvousHandler)
            stack.callback(handler.shutdown)
            return handler

        yield bare


@pytest.fixture
def store(database: str) -> Iterator[TorchStore]:
    """A store on the database."""
    ours = rdzv.KeyValueStore(SqliteBackend(database, "job"))
    yield TorchStore(ours)
    ours.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads, for what waits for others."""
    with ThreadPoolExecutor(8) as pool:
        yield pool
