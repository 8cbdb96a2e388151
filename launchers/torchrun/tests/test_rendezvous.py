"""A handler does what torch's agent expects of one, and what rdzv promises beyond."""

import gc
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import rdzv
import torch.distributed as dist
from rdzv_conformance.deadlines import eventually
from torch.distributed.elastic import rendezvous
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo

from rdzv_torchrun.rendezvous import TorchrunHandler

Node = Callable[..., TorchrunHandler]
Bare = Callable[..., rdzv.DynamicRendezvousHandler]

PATIENT = {"last_call_timeout": "60"}
"""The first world is the largest."""


def together(threads: ThreadPoolExecutor, *nodes: Any) -> list[Any]:
    """Let every node join the next round; what they got."""
    return list(threads.map(lambda node: node.next_rendezvous(), nodes))


def bootstrap(*infos: RendezvousInfo) -> RendezvousStoreInfo:
    """Where the workers meet: the same for all."""
    where = infos[0].bootstrap_store_info
    assert where is not None
    assert [info.bootstrap_store_info for info in infos] == [where] * len(infos)
    return where


def worker_store(where: RendezvousStoreInfo) -> Any:
    """What a worker connects to, as torch's init_process_group does with an agent's store."""
    return dist.TCPStore(where.master_addr, where.master_port, is_master=False, timeout=timedelta(seconds=10))  # type: ignore[attr-defined]


def agree(infos: list[RendezvousInfo]) -> None:
    """See that these are the nodes of one world."""
    assert sorted(info.rank for info in infos) == list(range(len(infos)))
    assert {info.world_size for info in infos} == {len(infos)}


def test_two_nodes_get_what_torch_wants(node: Node, threads: ThreadPoolExecutor) -> None:
    nodes = [node(), node()]
    assert all(isinstance(one, rendezvous.RendezvousHandler) for one in nodes)
    assert [(one.get_backend(), one.get_run_id(), one.use_agent_store) for one in nodes] == [
        ("sqlite", "job", True)
    ] * 2
    infos = together(threads, *nodes)
    assert all(type(info) is RendezvousInfo for info in infos)
    agree(infos)
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    worker_store(bootstrap(*infos)).set("from a worker", "value")
    assert [one.num_nodes_waiting() for one in nodes] == [0, 0]
    assert not nodes[0].is_closed()
    nodes[0].set_closed()
    eventually(nodes[1].is_closed, "the other node to know that the run is closed")


def test_every_round_has_an_address_and_a_store_of_its_own(node: Node, threads: ThreadPoolExecutor) -> None:
    nodes = [node(3, 3), node(3, 3), node(3, 3)]
    seen = set()
    for _ in range(3):
        infos = together(threads, *nodes)
        agree(infos)
        where = bootstrap(*infos)
        assert worker_store(where).add("attempt", 1) == 1
        assert infos[0].store.add("attempt", 1) == 1
        seen.add(where.master_port)
        # Rank 0 goes, and another takes its place.
        first = [info.rank for info in infos].index(0)
        nodes[first]._handler.leave("it makes room")
        nodes[first] = node(3, 3)
    assert len(seen) == 3


@pytest.mark.parametrize("shared", ["0", "1"])
def test_every_round_is_where_its_own_rank_0_is(
    node: Node, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", shared)
    nodes = {f"127.0.0.{number}": node(3, 3, local_addr=f"127.0.0.{number}") for number in range(1, 4)}
    for number in range(3):
        infos = together(threads, *nodes.values())
        first = dict(zip((info.rank for info in infos), nodes, strict=True))[0]
        assert bootstrap(*infos).master_addr == first
        # It goes, and another takes its place.
        nodes.pop(first)._handler.leave("it makes room")
        nodes[f"127.0.1.{number}"] = node(3, 3, local_addr=f"127.0.1.{number}")


@pytest.mark.parametrize("shared", ["0", "1"])
def test_every_round_may_be_at_the_same_port(
    node: Node, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", shared)
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    first = node(1, 2, master_port=str(port))
    for _ in range(2):
        where = bootstrap(*together(threads, first))
        assert where.master_port == port
        if first.use_agent_store:
            # Each has a store of its own.
            assert worker_store(where).add("attempt", 1) == 1


def test_the_workers_may_serve_their_store_themselves(
    node: Node, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    nodes = [node(), node()]
    where = bootstrap(*together(threads, *nodes))
    assert not any(one.use_agent_store for one in nodes)
    # The port is free for them.
    with socket.create_server((where.master_addr, where.master_port)):
        pass


def test_a_member_that_never_began_is_done_without(node: Node, bare: Bare, threads: ThreadPoolExecutor) -> None:
    nodes, dead = [node(2, 3, **PATIENT), node(2, 3, **PATIENT)], bare(2, 3, **PATIENT)
    waiting = [threads.submit(one.next_rendezvous) for one in nodes]
    assert dead.next_rendezvous().world_size == 3
    with pytest.raises(TimeoutError):
        # torchrun gets no world that a node has not confirmed.
        waiting[0].result(timeout=0.5)
    dead.leave("it was dead all the time")
    infos = [one.result(timeout=30) for one in waiting]
    agree(infos)
    bootstrap(*infos)


def test_who_comes_and_who_goes_is_reported(node: Node, bare: Bare, threads: ThreadPoolExecutor) -> None:
    nodes = [node(2, 3), node(2, 3)]
    together(threads, *nodes)
    late = bare(2, 3)
    joining = threads.submit(late.next_rendezvous)
    for one in nodes:
        eventually(lambda one=one: one.num_nodes_waiting() == 1, "the late node to be noticed")  # type: ignore[misc]
    late.leave("it has changed its mind")
    with pytest.raises(rdzv.RendezvousClosedError):
        joining.result(timeout=30)
    for one in nodes:
        eventually(lambda one=one: one.num_nodes_waiting() == 0, "its leaving to be noticed")  # type: ignore[misc]


class TestErrors:
    def test_a_join_that_takes_too_long(self, node: Node) -> None:
        alone = node(join_timeout="0.5")
        # To start its threads takes a busy machine a while, which is not part of that time.
        assert not alone.is_closed()
        with pytest.raises(rendezvous.RendezvousTimeoutError, match="1 is missing") as caught:
            alone.next_rendezvous()
        assert isinstance(caught.value.__cause__, rdzv.RendezvousTimeoutError)

    def test_a_closed_run(self, node: Node) -> None:
        node().set_closed()
        with pytest.raises(rendezvous.RendezvousClosedError, match="closed by the application"):
            node().next_rendezvous()

    def test_a_run_that_is_closed_ends_its_members(self, node: Node, threads: ThreadPoolExecutor) -> None:
        nodes = [node(), node()]
        together(threads, *nodes)
        nodes[0]._handler.set_closed("no money")
        eventually(nodes[1].is_closed, "the closing")
        with pytest.raises(rendezvous.RendezvousClosedError, match="no money"):
            nodes[1].num_nodes_waiting()

    def test_a_job_that_is_done_ends_no_node(self, node: Node, threads: ThreadPoolExecutor) -> None:
        nodes = [node(), node()]
        together(threads, *nodes)
        assert nodes[0].shutdown()
        eventually(nodes[1].is_closed, "the closing")
        assert nodes[1].num_nodes_waiting() == 0

    def test_a_spare_ends(self, node: Node, threads: ThreadPoolExecutor) -> None:
        spare = ended_spare(node, threads)
        # torch 2.13's launcher then looks into the result that there is not.
        with pytest.raises(SystemExit) as caught:
            launch(spare, lambda: None.is_failed())  # type: ignore[attr-defined]
        assert caught.value.code == 0

    @pytest.mark.parametrize("wrong", ["object().is_failed()", "None.exit_code", "fail()"])
    def test_a_spare_that_ends_hides_no_other_error(self, node: Node, threads: ThreadPoolExecutor, wrong: str) -> None:
        fail = fail_with(AttributeError("is_failed"))
        spare = ended_spare(node, threads)
        with pytest.raises(AttributeError):
            launch(spare, lambda: eval(wrong, {"fail": fail}))

    def test_other_limits_than_the_run_has(self, node: Node, bare: Bare, threads: ThreadPoolExecutor) -> None:
        together(threads, bare(), bare())
        with pytest.raises(ValueError, match="started for 2 nodes"):
            node(3, 3).next_rendezvous()

    def test_a_database_that_is_none(self, node: Node, database: str) -> None:
        Path(database).write_text("not a database")
        with pytest.raises(rendezvous.RendezvousStateError, match="database"):
            node().next_rendezvous()

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"join_timeut": "3"}, "Did you mean 'join_timeout'"),
            ({"join_timeout": "soon"}, "'join_timeout' cannot be 'soon'"),
            ({"backend": "no-such"}, "not registered"),
            ({"backend": "rdzv"}, "--rdzv-conf=plugin=NAME"),
            ({"backend": "rdzv", "plugin": "sqlit"}, "Did you mean 'sqlite'"),
        ],
    )
    def test_what_cannot_be_used(self, node: Node, options: dict[str, str], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            node(**options)


class TestTheEnd:
    def test_a_job_that_is_done_closes_the_run(self, node: Node, threads: ThreadPoolExecutor) -> None:
        nodes = [node(), node()]
        together(threads, *nodes)
        launch(nodes[0], lambda: None)
        eventually(nodes[1].is_closed, "the closing")
        closed = nodes[1]._handler.view.closed
        assert closed is not None
        assert closed.done

    @pytest.mark.parametrize(
        ("failure", "cause"),
        [
            (RuntimeError("out of memory\nwith a long text"), "RuntimeError: out of memory"),
            (
                ChildFailedError("train.py", {4: ProcessFailure(0, 1234, 3, "<N/A>")}),
                "its worker with rank 4 has failed for good, with exit code 3",
            ),
        ],
    )
    def test_a_failure_leaves_the_run_to_the_others(
        self, node: Node, threads: ThreadPoolExecutor, failure: Exception, cause: str
    ) -> None:
        failed, *others = nodes = [node(3, 3), node(3, 3), node(3, 3)]
        together(threads, *nodes)
        with pytest.raises(type(failure)):
            launch(failed, fail_with(failure))
        eventually(lambda: others[0]._broken() is not None, "the loss")
        status = others[0]._handler.view.status
        assert status is not None
        assert [departure.cause for departure in status.departures] == [cause]
        agree(together(threads, *others, node(3, 3)))

    @pytest.mark.parametrize(("least", "outcome"), [(2, "go on without it"), (3, "The 2 others are too few")])
    def test_a_loss_is_logged_once_with_what_comes_of_it(
        self, node: Node, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture, least: int, outcome: str
    ) -> None:
        failed, *others = nodes = [node(least, 3, last_call_timeout="60") for _ in range(3)]
        together(threads, *nodes)
        failed._handler.leave("it is tired")
        for other in others:
            eventually(lambda other=other: other._broken() is not None, "the loss")  # type: ignore[misc]
            other.num_nodes_waiting()
            other.num_nodes_waiting()
        told = [record.getMessage() for record in caplog.records if record.name == "rdzv_torchrun.rendezvous"]
        assert len(told) == 2
        assert all("(it is tired)" in line and outcome in line for line in told)

    def test_who_is_done_while_others_begin_again_only_leaves(self, node: Node, threads: ThreadPoolExecutor) -> None:
        done, *others = nodes = [node(3, 3), node(3, 3), node(3, 3)]
        together(threads, *nodes)
        again = [threads.submit(one.next_rendezvous) for one in (*others, node(3, 3))]
        eventually(lambda: done._broken() is not None, "the others to begin again")
        launch(done, lambda: None)
        agree([one.result(timeout=30) for one in again])

    def test_an_option_closes_whatever_happened(self, node: Node, threads: ThreadPoolExecutor) -> None:
        nodes = [node(on_shutdown="close"), node()]
        together(threads, *nodes)
        with pytest.raises(RuntimeError):
            launch(nodes[0], fail_with(RuntimeError()))
        eventually(nodes[1].is_closed, "the closing")

    def test_an_option_leaves_whatever_happened(self, node: Node, threads: ThreadPoolExecutor) -> None:
        nodes = [node(on_shutdown="leave"), node()]
        together(threads, *nodes)
        launch(nodes[0], lambda: None)
        eventually(lambda: nodes[1]._broken() is not None, "the loss")
        assert not nodes[1].is_closed()

    def test_a_handler_that_is_dropped_leaves(self, node: Node, bare: Bare, threads: ThreadPoolExecutor) -> None:
        other = node(1, 2, **PATIENT)
        dropped = TorchrunHandler(bare(1, 2, **PATIENT), "sqlite")
        together(threads, other, dropped)
        del dropped
        gc.collect()
        eventually(lambda: other._broken() is not None, "its leaving")
        assert "its process has ended" in str(other._broken())


def launch(handler: TorchrunHandler, job: Callable[[], object]) -> None:
    """Do a job as torch's launcher does."""
    try:
        job()
    finally:
        handler.shutdown()


def ended_spare(node: Node, threads: ThreadPoolExecutor) -> TorchrunHandler:
    """A node that was not needed until the job was done."""
    nodes, spare = [node(), node()], node()
    together(threads, *nodes)
    waiting = threads.submit(spare.next_rendezvous)
    eventually(lambda: (n := nodes[0]._handler.view.status) is not None and n.present == 3, "the spare")
    nodes[0].shutdown()
    with pytest.raises(rendezvous.RendezvousGracefulExitError, match="not needed"):
        waiting.result(timeout=30)
    return spare


def fail_with(error: Exception) -> Callable[[], None]:
    """A job that fails."""

    def job() -> None:
        raise error

    return job
