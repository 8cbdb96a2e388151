"""The backend `etcd` and what PyTorch's first rendezvous was called: deprecated, and the same underneath."""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import rdzv
from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import EtcdServer
from rdzv_core.errors import RendezvousClosedError, RendezvousDeniedError, RendezvousParameterError

from rdzv_etcd_v2 import EtcdRendezvous, EtcdRendezvousHandler, create_rdzv_handler

from .clients import python_etcd, request


def _params(server: EtcdServer, run_id: str, **options: Any) -> rdzv.RendezvousParameters:
    return rdzv.RendezvousParameters("etcd", server.get_endpoint(), run_id, 2, 2, **options)


def _sync_round(make: Callable[[], rdzv.RendezvousHandler]) -> list[rdzv.RendezvousHandler]:
    """Have two nodes meet."""
    with pytest.warns(DeprecationWarning, match="legacy|maintenance"):
        handlers = [make() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda handler: handler.next_rendezvous(), handlers))
    assert sorted((info.rank, info.world_size) for info in infos) == [(0, 2), (1, 2)]
    infos[0].store.set("from", "the other")
    assert infos[1].store.get("from") == b"the other"
    return handlers


def _end(handlers: list[rdzv.RendezvousHandler]) -> None:
    first, second = handlers
    assert first.get_backend() == second.get_backend() == "etcd"
    assert (first.num_nodes_waiting(), first.is_closed()) == (0, False)
    first.set_closed()
    with pytest.raises(RendezvousClosedError):
        second.next_rendezvous()
    assert first.shutdown()
    assert second.shutdown()


def test_the_backend_by_its_legacy_name(shared_etcd: EtcdServer) -> None:
    params = _params(shared_etcd, "by-name", etcd_prefix="legacy", protocol="http")
    _end(_sync_round(lambda: rdzv.get_rendezvous_handler(params)))
    assert request(shared_etcd, "GET", "/legacy/by-name")["node"]["dir"]


@pytest.mark.parametrize("flags", [[], ["-W", "error"]], ids=["as usual", "warnings are errors"])
def test_the_command_says_once_that_the_name_is_deprecated(shared_etcd: EtcdServer, flags: list[str]) -> None:
    run = ["run", "--backend", "etcd", "--endpoint", shared_etcd.get_endpoint(), "--nnodes", "1"]
    program = [sys.executable, *flags, "-m", "rdzv", *run, "--run-id", f"warned{len(flags)}", "--", "true"]
    ended = subprocess.run(program, stderr=subprocess.PIPE, text=True, check=True, timeout=60)
    assert ended.stderr.count("DeprecationWarning: The backend 'etcd' is PyTorch's legacy name; use 'etcd-v2'") == 1


def test_the_legacy_creator(shared_etcd: EtcdServer) -> None:
    params = _params(shared_etcd, "created", timeout=77, last_call_timeout="5")
    handlers = _sync_round(lambda: create_rdzv_handler(params))
    for handler in handlers:
        assert isinstance(handler, EtcdRendezvousHandler)
        assert isinstance(handler, rdzv.DynamicRendezvousHandler)
        assert handler.settings.timeout.join == timedelta(seconds=77)
        assert handler.settings.timeout.last_call == timedelta(seconds=5)
    _end(handlers)
    assert request(shared_etcd, "GET", "/torchelastic/p2p/created")["node"]["dir"]


def test_the_legacy_creator_refuses_what_it_does_not_know(shared_etcd: EtcdServer) -> None:
    with pytest.raises(RendezvousParameterError, match=r"'etcd_prefx'.*'etcd_prefix'"):
        create_rdzv_handler(_params(shared_etcd, "run", etcd_prefx="x"))


def _rendezvous(server: EtcdServer, run_id: Any) -> EtcdRendezvous:
    client = python_etcd.Client("127.0.0.1", server.get_port())
    return EtcdRendezvous(client, "/torchelastic/p2p", run_id, 2, 2, timeout=60, last_call_timeout=1)


def test_the_legacy_handler(shared_etcd: EtcdServer) -> None:
    handlers = _sync_round(lambda: EtcdRendezvousHandler(_rendezvous(shared_etcd, "handled"), "127.0.0.9"))
    assert handlers[0].get_run_id() == "handled"
    _end(handlers)


def test_the_legacy_rendezvous(shared_etcd: EtcdServer) -> None:
    # PyTorch's own tests give a number.
    with pytest.warns(DeprecationWarning, match="maintenance"):
        nodes = [_rendezvous(shared_etcd, 1) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        worlds = list(pool.map(lambda node: node.rendezvous_barrier(), nodes))
    assert sorted(worlds) == [(1, 0, 2), (1, 1, 2)]
    first, second = (node.setup_kv_store(1) for node in nodes)
    first.set("key", "x")
    assert second.get("key") == b"x"
    with pytest.raises(RendezvousParameterError, match="version 2"):
        nodes[0].setup_kv_store(2)
    nodes[0].set_closed()
    eventually(nodes[1].handler().is_closed, "the other one to learn of it")
    for node in nodes:
        node.handler().shutdown()


def test_a_legacy_node_says_what_to_use_where_there_is_no_v2_api() -> None:
    with EtcdServer() as server:
        with pytest.warns(DeprecationWarning, match=r"etcd-v2.*etcd-v3"):
            handler = rdzv.get_rendezvous_handler(_params(server, "run"))
        with pytest.raises(RendezvousDeniedError, match="rdzv-etcd-v3"):
            handler.next_rendezvous()
        handler.shutdown()
