"""The rendezvous itself on this backend: its invariants, with nodes in processes of their own."""

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from rdzv import DynamicRendezvousHandler, RendezvousError, RendezvousSettings, RendezvousTimeout
from rdzv.backend import ANY, STATE_KEY, KeyValueBackend

from ..deadlines import eventually
from ..processes import Link, Processes, Worker
from .base import CALL, Clients, Conformance, Connect

__all__ = ["HandlerConformance"]

_INTERVAL: Final = 0.5
_ATTEMPTS: Final = 3
_FORM: Final = 30.0
"""Seconds within which a world must form on a busy machine, a silent member's time to live included."""

_HOUR: Final = 3600.0


class _Node:
    """The test's end of a node."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def ask(self, question: str, *arguments: Any) -> Any:
        """Ask, and wait for the answer."""
        self.tell(question, *arguments)
        return self.answer()

    def tell(self, question: str, *arguments: Any) -> None:
        """Ask without waiting."""
        self.worker.send([question, *arguments])

    def answer(self) -> Any:
        """The answer to what was asked."""
        return self.worker.receive(_FORM)

    def kill(self) -> None:
        """kill -9."""
        self.worker.kill()


_Nodes = Callable[..., list[_Node]]


class HandlerConformance(Conformance):
    """What the nodes of a run are promised, whatever the service."""

    @pytest.fixture
    def nodes(self, connect: Connect, run_id: str, processes: Processes) -> Iterator[_Nodes]:
        """Makes nodes, each in a process of its own."""
        made: list[_Node] = []

        def make(count: int, low: int = 2, high: int = 4, *, clock: float = 0.0, join: float = _FORM) -> list[_Node]:
            settings = _settings(run_id, low, high, join, connect(run_id))
            new = [
                _Node(processes.fork(lambda link: _live(link, connect(run_id), settings, clock))) for _ in range(count)
            ]
            made.extend(new)
            return new

        yield make
        for node in made:
            node.kill()

    def test_all_nodes_agree(self, nodes: _Nodes) -> None:
        """Invariant 1: one world, size, bootstrap address; ranks from 0, each once; one store."""
        four = nodes(4)
        worlds = _gather(four)
        assert sorted(world["rank"] for world in worlds) == [0, 1, 2, 3], "the ranks are not 0 to 3"
        assert len({str(world["shared"]) for world in worlds}) == 1, f"the nodes disagree: {worlds}"
        assert sorted(node.ask("add") for node in four) == [1, 2, 3, 4], "the nodes do not share one store"

    def test_a_late_node_waits_until_all_make_room(self, nodes: _Nodes) -> None:
        """Invariants 2 and 5: nobody gets a world beside a running one; all are told that somebody waits."""
        old, (late,) = nodes(2, 2, 3), nodes(1, 2, 3)
        first = _gather(old)
        late.tell("join")
        eventually(
            lambda: all(node.ask("waiting") == 1 for node in old), "the members to be told of a late node", _FORM
        )
        assert [node.ask("round") for node in old] == [world["round"] for world in first]
        worlds = [*_gather(old), late.answer()]
        assert {world["size"] for world in worlds} == {3}, "the late node is not in the next world"
        assert [world["rank"] for world in worlds[:2]] == [world["rank"] for world in first], "ranks changed hands"

    def test_a_spare_goes_home_when_the_job_is_done(self, nodes: _Nodes) -> None:
        """Invariant 3: no world is larger than max; who is left over disturbs nobody and is sent home."""
        members, (spare,) = nodes(2, 2, 2), nodes(1, 2, 2)
        _gather(members)
        spare.tell("join")
        eventually(lambda: members[0].ask("nodes") == 3, "the spare to be there", _FORM)
        assert members[0].ask("waiting") == 0, "a spare that cannot be used is announced"
        assert members[0].ask("shutdown")
        assert "GracefulExit" in spare.answer()["error"], "the spare is not sent home in peace"

    def test_the_others_go_on_when_a_member_is_killed(self, nodes: _Nodes) -> None:
        """Invariants 4 and 7: the survivors learn of it and form a new world."""
        members = nodes(3, 2, 3)
        _gather(members)
        members[0].kill()
        rest = members[1:]
        eventually(lambda: all(node.ask("waiting") for node in rest), "the survivors to notice the death", _FORM)
        assert [world["size"] for world in _gather(rest)] == [2, 2]

    def test_gathering_survives_the_death_of_any_node(self, nodes: _Nodes) -> None:
        """Invariant 4: whoever dies while all gather, the leader too, the others get their world."""
        doomed, *rest = nodes(4, 3, 3)
        doomed.tell("join")
        eventually(lambda: rest[0].ask("nodes") == 1, "the first node to be there", _FORM)
        rest[1].tell("join")
        eventually(lambda: rest[0].ask("nodes") == 2, "the second node to be there", _FORM)
        # Before there are three, which would be a world with it.
        doomed.kill()
        for node in (rest[0], rest[2]):
            node.tell("join")
        assert [node.answer()["size"] for node in rest] == [3, 3, 3], "a death while gathering was not survived"

    def test_the_first_reason_of_closing_stands(self, nodes: _Nodes) -> None:
        """Invariant 6: closed stays closed."""
        members, (late,) = nodes(2, 2, 2), nodes(1, 2, 2)
        _gather(members)
        members[0].ask("close", "first")
        members[1].ask("close", "second")
        for node in members:
            eventually(lambda node=node: node.ask("closed") == "first", "the first reason to be known", _FORM)  # type: ignore[misc]
        assert "first" in late.ask("join")["error"], "a closed run lets a node in, or hides the reason"

    def test_leaving_and_giving_up_close_nothing(self, nodes: _Nodes) -> None:
        """Invariant 7: a node that leaves, or whose time runs out, takes nothing from the others."""
        members, (hasty,) = nodes(3, 2, 3), nodes(1, 2, 3, join=1.0)
        _gather(members)
        assert "Timeout" in hasty.ask("join")["error"], "a node whose time ran out is not told so"
        assert members[0].ask("leave", "drained")
        rest = members[1:]
        eventually(
            lambda: all(node.ask("lost") == ["drained"] for node in rest), "the reason of leaving to be known", 5.0
        )
        assert [world["size"] for world in _gather(rest)] == [2, 2]
        assert [node.ask("closed") for node in rest] == [None, None], "one node's leaving closed the run"

    def test_wrong_clocks_change_nothing(self, nodes: _Nodes) -> None:
        """Invariant 8: a wall clock that is hours off is of no importance."""
        members = [*nodes(1, 2, 2, clock=-2 * _HOUR), *nodes(1, 2, 2, clock=_HOUR)]
        assert [world["size"] for world in _gather(members)] == [2, 2]
        calm = time.monotonic() + 2 * _INTERVAL * _ATTEMPTS
        eventually(lambda: time.monotonic() > calm or any(node.ask("waiting") for node in members), "calm", _FORM)
        assert [node.ask("waiting") for node in members] == [0, 0], "a node was given up because of its clock"

    def test_foreign_bytes_are_one_clear_error(self, nodes: _Nodes, clients: Clients) -> None:
        """Invariant 9: what rdzv did not write is refused as such, never executed."""
        (node,) = nodes(1)
        clients().put(STATE_KEY, b"\x80\x04\x95 hostile", expect=ANY, timeout=CALL)
        assert "RendezvousStateError" in node.ask("join")["error"], "hostile bytes are not refused clearly"

    def test_a_member_that_was_paused_comes_back_or_is_told(self, nodes: _Nodes) -> None:
        """Invariants 2 and 10: after a pause beyond its time to live a node is back, or knows that it is not."""
        members = nodes(3, 2, 3)
        _gather(members)
        paused, *rest = members
        paused.worker.pause()
        eventually(lambda: all(node.ask("waiting") for node in rest), "the others to notice the silence", _FORM)
        _gather(rest)
        paused.worker.resume()
        eventually(lambda: paused.ask("waiting"), "the node to learn that it was left behind", _FORM)
        paused.tell("join")
        eventually(lambda: all(node.ask("waiting") for node in rest), "the node that came back to be announced", _FORM)
        assert [world["size"] for world in _gather(rest)] == [3, 3]
        assert paused.answer()["size"] == 3


def _settings(run_id: str, low: int, high: int, join: float, backend: KeyValueBackend) -> RendezvousSettings:
    interval = max(_INTERVAL, backend.min_lease_ttl / _ATTEMPTS)
    backend.close()
    timeout = RendezvousTimeout(timedelta(seconds=join), timedelta(seconds=1))
    return RendezvousSettings(run_id, low, high, timeout, timedelta(seconds=interval), _ATTEMPTS)


def _gather(nodes: list[_Node]) -> list[dict[str, Any]]:
    for node in nodes:
        node.tell("join")
    worlds = [node.answer() for node in nodes]
    assert not [world["error"] for world in worlds if "error" in world], "a node got no world"
    return worlds


def _live(link: Link, backend: KeyValueBackend, settings: RendezvousSettings, clock: float) -> None:
    """The life of a node: it does what the test asks."""
    real = time.time
    time.time = lambda: real() + clock
    handler = DynamicRendezvousHandler(settings, backend)
    life = _Life(handler)
    while True:
        question, *arguments = link.receive(_HOUR)
        link.send(getattr(life, question)(*arguments))


class _Life:
    """What a test may ask of a node."""

    def __init__(self, handler: DynamicRendezvousHandler) -> None:
        self._handler = handler
        self._store: Any = None
        self._round = 0

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
        """How many records there are."""
        return len(self._handler._keys.read_all("nodes", timeout=CALL).entries)

    def lost(self) -> list[str]:
        notice = self._handler.notice
        return [loss.cause for loss in notice.lost] if notice else []

    def close(self, reason: str) -> None:
        self._handler.set_closed(reason)

    def closed(self) -> str | None:
        return self._handler.closed.reason if self._handler.is_closed() and self._handler.closed else None

    def leave(self, reason: str) -> bool:
        return self._handler.leave(reason)

    def shutdown(self) -> bool:
        return self._handler.shutdown()
