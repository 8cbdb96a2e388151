"""A large world stands on pages beside the state: each node reads one, leaders read all, nothing of them stays."""

from dataclasses import replace
from typing import Any

import pytest
from rdzv_core.backend import STATE_KEY
from rdzv_core.errors import RendezvousParameterError, RendezvousStateError, RendezvousTimeoutError
from rdzv_core.keys import escape

from rdzv.engine import join, leave, watch, worlds
from rdzv.engine.effects import (
    AT_ONCE,
    CreateAll,
    Effect,
    Emit,
    Put,
    Read,
    ReadAll,
    Together,
    Wait,
    WaitForChange,
)
from rdzv.engine.node import Node
from rdzv.engine.records import (
    CONTROL,
    PENDING,
    STATUS_KEY,
    Closed,
    Departure,
    LeaderRecord,
    Page,
    Pages,
    Phase,
    RunStatus,
    State,
    decode_state,
    pending_key,
    round_folder,
    store_folder,
    world_folder,
)
from rdzv.engine.register import apply_and_emit, register
from rdzv.engine.registration import NodeState
from rdzv.engine.run_view import RunView

from .coroutines import Harness, Stepper
from .memory import Fault
from .test_lead_coroutine import Leader, take_away, write

PAGES = Pages("folder", 1, 2, "a")
NAMES = tuple(f"node{number}" for number in range(300))


@pytest.fixture
def harness() -> Harness:
    return Harness()


@pytest.fixture
def two_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "PAGE", 2)


def world_of(*names: str, **more: Any) -> State:
    """The state of a first round."""
    return State(0, 1, names, f"{names[0]}.host", 1, 2, max(4, len(names)), **more)


def publish(harness: Harness, state: State) -> State:
    """Publish a state as a leader would; returns it as it stands in the service."""
    written = harness.run(worlds.write_world(state, "1f", lambda: harness.now + 1.0))
    harness.publish(written)
    return written


@pytest.mark.parametrize("size", [1, 2, worlds.PAGE])
def test_a_small_world_stands_in_the_state(harness: Harness, size: int) -> None:
    state = world_of(*NAMES[:size])
    assert publish(harness, state) is state
    assert harness.names() == {STATE_KEY}
    assert (state.size, state.first) == (size, "node0")
    assert harness.run(worlds.read_world(state, harness.now)) is state
    assert harness.run(worlds.read_page(state, "node0", harness.now)) is None


@pytest.mark.parametrize("size", [worlds.PAGE + 1, 300])
def test_a_large_world_stands_on_pages_of_which_a_node_reads_one(harness: Harness, size: int) -> None:
    state = world_of(*NAMES[:size])
    written = publish(harness, state)
    assert (written.world, written.size, written.first) == ((), size, "node0")
    assert len(written.encode()) < 300
    assert decode_state(written.encode()) == written
    for rank, name in enumerate(state.world):
        reading = harness.stepper(worlds.read_page(written, name, harness.now))
        page = reading.end()
        assert [type(effect) for effect in reading.taken] == [Read]
        assert page is not None
        assert page.ranks[name] == rank
        assert len(page.ranks) < 2 * worlds.PAGE
    page = harness.run(worlds.read_page(written, "another", harness.now))
    assert page is not None
    assert "another" not in page.ranks
    assert harness.run(worlds.read_world(written, harness.now)) == state


def write_at_once(harness: Harness, at_once: int) -> list[Effect]:
    """Write a world of 300 on five pages, so many in one step; returns the calls."""
    state = world_of(*NAMES[:300])
    writing = harness.stepper(worlds.write_world(state, "1f", lambda: harness.now + 1.0, at_once=at_once))
    written = writing.end()
    assert harness.run(worlds.read_world(written, harness.now)) == state
    return writing.taken


@pytest.mark.parametrize(
    ("at_once", "calls"), [(1, [Put] * 5), (2, [CreateAll] * 3), (4, [CreateAll] * 2), (128, [CreateAll])]
)
def test_pages_are_written_in_few_requests(harness: Harness, at_once: int, calls: list[type[Effect]]) -> None:
    assert [type(effect) for effect in write_at_once(harness, at_once)] == calls


def test_pages_of_one_request_are_no_larger_than_a_value_may_be(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [effect.payload for effect in write_at_once(harness, 1) if isinstance(effect, Put)]
    harness.client.delete("rounds", harness.now)
    monkeypatch.setattr(worlds, "MAX_PAYLOAD", sum(map(len, pages[:3])))
    made = [effect for effect in write_at_once(harness, 128) if isinstance(effect, CreateAll)]
    assert [list(effect.payloads.values()) for effect in made] == [pages[:3], pages[3:]]
    harness.client.delete("rounds", harness.now)
    monkeypatch.setattr(worlds, "MAX_PAYLOAD", 1)
    assert [type(effect) for effect in write_at_once(harness, 128)] == [CreateAll] * 5


@pytest.mark.parametrize("fault", [Fault.REPLY_LOST, Fault.DELAYED])
def test_pages_that_are_not_known_to_be_made_are_written_one_by_one(harness: Harness, fault: Fault) -> None:
    harness.backend.fail("create_all", None, fault)
    assert [type(effect) for effect in write_at_once(harness, 2)] == [CreateAll] * 3 + [Put] * 2
    there = dict(harness.memory.entries)
    harness.backend.deliver()
    assert harness.memory.entries == there


def test_pages_are_written_one_by_one_where_the_service_takes_less_than_it_should(harness: Harness) -> None:
    harness.backend.refuse(RendezvousParameterError("etcd does less at once"), "create_all")
    assert [type(effect) for effect in write_at_once(harness, 4)] == [CreateAll] * 2 + [Put] * 5


@pytest.mark.parametrize(("at_once", "lost"), [(1, False), (2, False), (2, True)])
def test_many_pages_do_not_share_a_deadline(harness: Harness, at_once: int, lost: bool) -> None:
    """On a slow network no time would be left for the last of them."""
    state = world_of(*(f"node{number}" for number in range(3000)))
    writing = harness.stepper(worlds.write_world(state, "1f", lambda: harness.now + 1.0, at_once=at_once))
    while writing.effect is not None:
        assert isinstance(writing.effect, Together)
        assert 1 <= len(writing.effect.calls) <= AT_ONCE
        assert {call.deadline for call in writing.effect.calls if isinstance(call, Put | CreateAll)} == {
            harness.now + 1
        }
        harness.now += 0.9
        if lost and isinstance(writing.effect.calls[0], CreateAll):
            writing.send([False for _ in writing.effect.calls])
        else:
            writing.go()
    written = writing.end()
    assert harness.run(worlds.read_world(written, harness.now + 1.0)) == state


def test_the_same_world_shares_its_pages_for_a_few_rounds(harness: Harness) -> None:
    state = world_of(*NAMES)
    written = publish(harness, state)
    pages = written.pages
    assert pages is not None
    for number in range(2, worlds.SHARED + 1):
        writing = harness.stepper(worlds.write_world(replace(state, round=number), "2f", lambda: harness.now, pages))
        assert writing.end() == replace(written, round=number)
        assert [type(effect) for effect in writing.taken] == [ReadAll]
    later = replace(state, round=worlds.SHARED + 1)
    anew = harness.run(worlds.write_world(later, "2f", lambda: harness.now, pages))
    assert anew.pages != pages
    assert harness.run(worlds.read_world(anew, harness.now)) == later


def test_pages_that_a_service_has_lost_are_written_anew(harness: Harness) -> None:
    state = world_of(*NAMES)
    pages = publish(harness, state).pages
    assert pages is not None
    harness.client.delete(worlds.page_key(pages, "node7"), harness.now)
    anew = harness.run(worlds.write_world(replace(state, round=2), "2f", lambda: harness.now, pages))
    assert anew.pages != pages
    assert harness.run(worlds.read_world(anew, harness.now)).world == NAMES


@pytest.mark.parametrize(
    ("folder", "number"),
    [("rounds/12/world/0.ab", 12), ("rounds/x/world", 0), ("folder", 0), (f"rounds/{'9' * 20}", 0)],
)
def test_the_folder_of_pages_tells_their_round(folder: str, number: int) -> None:
    assert Pages(folder, 1, 1, "a").round == number


@pytest.mark.parametrize(("most", "rounds"), [(worlds.PAGE, 2), (worlds.PAGE + 1, worlds.SHARED + 1)])
def test_where_worlds_may_be_large_rounds_are_needed_for_longer(most: int, rounds: int) -> None:
    assert worlds.rounds_needed(replace(world_of("a", "b"), max_nodes=most)) == rounds


@pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 10_000_000), (3, 3)])
def test_pages_as_leaders_write_them(count: int, size: int) -> None:
    assert Pages("folder", count, size, "a").size == size


@pytest.mark.parametrize(("count", "size"), [(0, 1), (2, 1), (1, 10_000_001), (0, 0)])
def test_pages_as_no_leader_writes_them(count: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"no world of {size} members stands on {count} pages"):
        Pages("folder", count, size, "a")


def test_a_page_is_missed_only_where_there_should_be_one() -> None:
    pages = Pages("folder", 1, 1, "a")
    assert not RunView().lacks_page()
    assert not RunView(state=world_of("a", "b")).lacks_page()
    assert RunView(state=replace(world_of("a", "b"), world=(), pages=pages)).lacks_page()
    assert not RunView(state=replace(world_of("a", "b"), world=(), pages=pages), page=Page({})).lacks_page()


@pytest.mark.parametrize("is_paged", [True, False])
def test_no_page_is_written_again_where_none_is_known_or_there_should_be_none(harness: Harness, is_paged: bool) -> None:
    small = world_of("a", "b")
    state, page = (replace(small, world=(), pages=PAGES), None) if is_paged else (small, Page({"a": 0}))
    for known in (state, None):
        restoring = harness.stepper(worlds.restore_page(known, page, "a", harness.now))
        assert restoring.end() is False
        assert restoring.taken == []


@pytest.mark.parametrize("rank", [2, 3])
def test_a_page_with_a_rank_that_no_member_has_is_no_leaders(harness: Harness, rank: int) -> None:
    state = replace(world_of("a", "b"), world=(), pages=PAGES)
    for number in range(PAGES.count):
        harness.put(f"folder/{number}", Page({"a": 0, "b": rank}).encode())
    for reading in (worlds.read_world(state, harness.now), worlds.read_page(state, "b", harness.now)):
        with pytest.raises(RendezvousStateError, match=f"Round 1 has 2 members, and none of rank {rank}."):
            harness.run(reading)


@pytest.mark.parametrize(("world", "is_whole"), [(("a", "b"), True), (("a", "?1"), False), (("?0", "?1"), False)])
def test_a_world_is_whole_when_all_its_members_are_known(world: tuple[str, ...], is_whole: bool) -> None:
    assert worlds.is_whole(world_of(*world)) == is_whole


@pytest.mark.usefixtures("two_a_page")
class TestNode:
    """What a node makes of a world on pages."""

    @pytest.fixture
    def node(self, harness: Harness) -> Node:
        return harness.registered("a")

    def apply(self, harness: Harness, node: Node) -> Stepper[None]:
        """Let it apply the state that stands there."""
        applying = harness.stepper(apply_and_emit(node, harness.read(STATE_KEY), harness.now + 5.0))
        applying.end()
        return applying

    def test_it_knows_its_rank_by_one_more_call(self, harness: Harness, node: Node) -> None:
        publish(harness, world_of("c", "b", "a"))
        assert [type(effect) for effect in self.apply(harness, node).taken] == [Read, Emit]
        assert node.run.rank == 2
        assert self.apply(harness, node).taken == []

    def test_it_keeps_its_page_when_the_state_alone_changes(self, harness: Harness, node: Node) -> None:
        written = publish(harness, world_of("c", "b", "a"))
        self.apply(harness, node)
        harness.client.delete(round_folder(1), harness.now)
        harness.publish(written)
        assert self.apply(harness, node).taken == []
        assert node.run.rank == 2

    def test_of_a_round_whose_pages_are_gone_it_is_no_member(self, harness: Harness, node: Node) -> None:
        publish(harness, world_of("c", "b", "a"))
        harness.client.delete(round_folder(1), harness.now)
        self.apply(harness, node)
        assert (node.run.rank, node.run.page) == (None, None)

    def test_of_the_same_world_again_it_reads_nothing(self, harness: Harness, node: Node) -> None:
        written = publish(harness, world_of("c", "b", "a"))
        self.apply(harness, node)
        harness.publish(replace(written, round=2))
        assert [type(effect) for effect in self.apply(harness, node).taken] == [Emit]
        assert (node.run.state, node.run.rank) == (replace(written, round=2), 2)

    def test_of_another_world_it_reads_its_page_anew(self, harness: Harness, node: Node) -> None:
        publish(harness, world_of("c", "b", "a"))
        self.apply(harness, node)
        publish(harness, replace(world_of("b", "a", "c"), round=2))
        self.apply(harness, node)
        assert node.run.rank == 1

    def test_a_joining_node_gets_the_state_and_its_rank(self, harness: Harness) -> None:
        node = harness.node()
        coroutine = harness.stepper(join.join(node, "a.host", 1, harness.now + 60.0))
        coroutine.to(WaitForChange)
        written = publish(harness, world_of("c", "b", "a"))
        self.apply(harness, node)
        assert coroutine.end() == (written, 2)

    def test_one_that_comes_back_writes_its_page_again_and_fences(self, harness: Harness, node: Node) -> None:
        publish(harness, world_of("c", "b", "a"))
        self.apply(harness, node)
        epoch = harness.writes(STATE_KEY)
        node.registration.lose_lease()
        harness.client.delete(round_folder(1), harness.now)
        harness.run(register(node, harness.now + 60.0))
        assert node.registration.state is NodeState.REGISTERED
        page = harness.run(worlds.read_page(node.run.state or world_of("a"), "a", harness.now))
        assert page == node.run.page
        assert harness.writes(STATE_KEY) == epoch + 1

    def test_one_whose_page_is_there_writes_nothing(self, harness: Harness, node: Node) -> None:
        publish(harness, world_of("c", "b", "a"))
        self.apply(harness, node)
        epoch = harness.writes(STATE_KEY)
        node.registration.lose_lease()
        harness.run(register(node, harness.now + 60.0))
        assert node.registration.state is NodeState.REGISTERED
        assert harness.writes(STATE_KEY) == epoch

    def test_one_that_finds_everything_lost_writes_its_page_before_the_state(
        self, harness: Harness, node: Node
    ) -> None:
        publish(harness, world_of("c", "b", "a"))
        self.apply(harness, node)
        harness.forget()
        node.registration.lose_lease()
        registering = harness.stepper(register(node, harness.now + 60.0))
        registering.end()
        puts = [effect.key for effect in registering.taken if isinstance(effect, Put)]
        assert puts[-1] == STATE_KEY
        assert puts[-2].startswith(world_folder(1))

    def test_a_state_whose_page_is_gone_is_read_again_before_it_is_believed(self, harness: Harness, node: Node) -> None:
        # A service that forgets everything may do so between the two.
        watching = harness.stepper(watch.watch_loop(node))
        publish(harness, world_of("c", "b", "a"))
        watching.to(Read)
        harness.forget()
        again = watching.go()
        assert isinstance(again, ReadAll)
        assert again.prefix == CONTROL
        watching.to(Wait)
        assert node.run.state is None

    def test_what_is_gone_although_the_state_is_there_is_no_longer_waited_for(
        self, harness: Harness, node: Node
    ) -> None:
        watching = harness.stepper(watch.watch_loop(node))
        written = publish(harness, world_of("c", "b", "a"))
        harness.client.delete(round_folder(1), harness.now)
        watching.to(Emit)
        assert node.run.state == written
        assert node.run.rank is None

    @pytest.mark.parametrize("news", [True, False])
    def test_a_page_that_is_there_later_is_read_when_the_watch_ends(
        self, harness: Harness, node: Node, news: bool
    ) -> None:
        watching = harness.stepper(watch.watch_loop(node))
        written = publish(harness, world_of("c", "b", "a"))
        assert written.pages is not None
        page = harness.read(worlds.page_key(written.pages, "a"))
        assert page is not None
        harness.client.delete(round_folder(1), harness.now)
        watching.to(Emit)
        watching.to(Wait)
        harness.put(worlds.page_key(written.pages, "a"), page.payload)
        if news:
            harness.put(STATUS_KEY, RunStatus(1, Phase.RE_FORMING, 1, 1).encode())
            watching.go()
        else:
            watching.send(watching.effect.since)  # type: ignore[union-attr]
        watching.to(Wait)
        assert node.run.rank == 2

    def test_only_news_are_looked_at(self, harness: Harness, node: Node) -> None:
        watching = harness.stepper(watch.watch_loop(node))

        def looks(payload: Any) -> list[type[Any]]:
            before = len(watching.taken)
            payload()
            watching.go()
            watching.to(Wait)
            return [type(effect) for effect in watching.taken[before:]]

        written = world_of("c", "b", "a")
        assert looks(lambda: publish(harness, written))[:3] == [Wait, Read, Emit]
        first = harness.read(STATE_KEY)
        news = RunStatus(1, Phase.RUNNING, 3, 0).encode()
        assert Read not in (kinds := looks(lambda: harness.put(STATUS_KEY, news)))
        assert ReadAll not in kinds
        closed = replace(decode_state(first.payload), closed=Closed("a", "done", done=True))  # type: ignore[union-attr]
        kinds = looks(lambda: harness.publish(closed))
        assert ReadAll not in kinds
        assert Read not in kinds
        publish(harness, replace(written, round=2))
        self.apply(harness, node)
        older = harness.stepper(apply_and_emit(node, first, harness.now + 5.0))
        older.end()
        assert older.taken == []

    def test_one_that_gives_up_tells_of_the_world_that_runs(self, harness: Harness) -> None:
        for name in "cba":
            write(harness, name)
        publish(harness, world_of("c", "b", "a"))
        node = harness.node("d")
        coroutine = harness.stepper(join.join(node, "d.host", 1, harness.now + 60.0))
        with pytest.raises(RendezvousTimeoutError, match="Round 1 is running with 3 nodes"):
            coroutine.end()
        (read,) = [effect for effect in coroutine.taken if isinstance(effect, ReadAll) and "/world/" in effect.prefix]
        assert read.deadline == harness.now + node.interval / 4

    def test_how_long_a_page_takes_says_nothing_of_the_state(self, harness: Harness, node: Node) -> None:
        publish(harness, world_of("c", "b", "a"))
        applying = harness.stepper(apply_and_emit(node, harness.read(STATE_KEY), harness.now + 5.0))
        seen = harness.now
        harness.now += 3.0
        applying.end()
        assert node.run.seen_at == seen

    @pytest.mark.parametrize("number", [1, 3])
    def test_the_last_one_of_an_open_run_leaves_the_world_that_the_state_names(
        self, harness: Harness, number: int
    ) -> None:
        node = harness.registered("a")
        written = replace(publish(harness, world_of("c", "b", "a")), round=number)
        harness.publish(written)
        for one in range(1, number + 1):
            harness.put(f"{store_folder(one)}/key", b"")
        self.apply(harness, node)
        status = RunStatus(number, Phase.RE_FORMING, 1, 0, tuple(Departure(name, 0, True, "done") for name in "bc"))
        harness.put(STATUS_KEY, status.encode())
        harness.show(node)
        harness.run(leave.leave(node, "done", harness.now + 60.0))
        assert not [name for name in harness.names() if "/store" in name]
        assert harness.run(worlds.read_world(written, harness.now)).world == ("c", "b", "a")

    @pytest.mark.parametrize("number", [1, worlds.SHARED])
    def test_the_last_one_of_a_closed_run_removes_the_pages_too(self, harness: Harness, number: int) -> None:
        node = harness.registered("a")
        closed = world_of("c", "b", "a", closed=Closed("a", "done", done=True))
        harness.publish(replace(publish(harness, closed), round=number))
        self.apply(harness, node)
        harness.run(leave.leave(node, "done", harness.now + 60.0))
        assert harness.names() == {STATE_KEY}

    def test_the_last_one_of_a_closed_run_removes_what_no_leader_has_published(self, harness: Harness) -> None:
        node = harness.registered("a")
        publish(harness, world_of("c", "b", "a", closed=Closed("a", "done", done=True)))
        harness.put(f"{world_folder(2)}/0.abc/0", Page({"a": 0}).encode())
        harness.put(f"{world_folder(2)}/1.abc/0", Page({"a": 0}).encode())
        harness.put(f"{world_folder(2)}/x.abc/0", Page({"a": 0}).encode())
        self.apply(harness, node)
        harness.run(leave.leave(node, "done", harness.now + 60.0))
        # What a later attempt writes is its own.
        assert harness.names() == {STATE_KEY, f"{world_folder(2)}/1.abc/0", f"{world_folder(2)}/x.abc/0"}

    def test_it_removes_what_a_leader_has_written_beyond_a_state_that_was_purged(self, harness: Harness) -> None:
        node = harness.registered("a")
        publish(harness, world_of("c", "b", "a", closed=Closed("a", "done", done=True)))
        harness.put(pending_key(1), LeaderRecord("a", 0, 2, 4).encode())
        harness.put(pending_key(7), LeaderRecord("a", 0, 2, 4).encode())
        harness.put(f"{PENDING}/x", b"")
        for number in (2, 7, 8):
            harness.put(f"{world_folder(number)}/0.abc/0", Page({"a": 0}).encode())
        self.apply(harness, node)
        harness.run(leave.leave(node, "done", harness.now + 60.0))
        # Its pending round has a number that a later attempt reaches.
        left = {STATE_KEY, pending_key(7), f"{PENDING}/x", f"{world_folder(8)}/0.abc/0"}
        assert harness.names() == left

    @pytest.mark.parametrize(("most", "looks"), [(2, 0), (3, 1)])
    def test_only_where_a_world_may_be_large_its_pages_are_looked_for(
        self, harness: Harness, most: int, looks: int
    ) -> None:
        node = harness.registered("a")
        harness.publish(replace(world_of("b", "a", closed=Closed("a", "done", done=True)), max_nodes=most))
        self.apply(harness, node)
        leaving = harness.stepper(leave.leave(node, "done", harness.now + 60.0))
        leaving.end()
        assert sum(isinstance(one, ReadAll) and one.prefix == world_folder(2) for one in leaving.taken) == looks


@pytest.mark.usefixtures("two_a_page")
class TestLeader:
    """How a leader knows the members."""

    def reads(self, lead: Leader) -> int:
        """How often it has read all pages."""
        taken = lead.coroutine.taken
        return sum(isinstance(effect, ReadAll) and "/world/" in effect.prefix for effect in taken)

    def test_it_writes_pages_before_the_state(self, harness: Harness) -> None:
        write(harness, "bcd")
        lead = Leader(harness)
        lead.coroutine.to_write(STATE_KEY)
        pages = [effect.key for effect in lead.coroutine.taken if isinstance(effect, Put) and "/world/" in effect.key]
        assert [key.rpartition("/")[2] for key in pages] == ["0", "1"]
        lead.coroutine.to(Wait)
        state = lead.node.run.state
        assert state is not None
        assert (state.size, state.world, lead.node.run.rank) == (4, (), 0)
        assert harness.run(worlds.read_world(state, harness.now)).world == ("a", "b", "c", "d")

    def test_pages_that_rounds_share_stay_until_they_are_asked_for_no_more(self, harness: Harness) -> None:
        write(harness, "bc", last_round=1)
        written = publish(harness, world_of("a", "b", "c"))
        lead = Leader(harness, state=written)

        def again(*names: str) -> State:
            lead.node.round = lead.node.run.state.round  # type: ignore[union-attr]
            write(harness, (*names, "a"), last_round=lead.node.round)
            lead.coroutine.to_write(STATE_KEY)
            lead.until(60.0)
            assert lead.node.run.state is not None
            return lead.node.run.state

        for number in range(2, worlds.SHARED + 1):
            shared = again("b", "c")
            assert (shared.round, shared.pages) == (number, written.pages)
        assert harness.run(worlds.read_world(shared, harness.now)).world == ("a", "b", "c")
        stores = {number: f"{store_folder(number)}/key" for number in range(1, worlds.SHARED + 1)}
        for key in stores.values():
            harness.put(key, b"")
        take_away(harness, "c")
        other = again("b", "d")
        assert other.pages != written.pages
        # Those of the last of these rounds may ask for its world until two more were formed.
        assert harness.run(worlds.read_world(shared, harness.now)).world == ("a", "b", "c")
        again("b", "d")
        assert [number for number, key in stores.items() if key in harness.names()] == [2, 3, 4]
        assert {name.split("/")[1] for name in harness.names() if "/world/" in name} == {str(other.round)}
        assert harness.run(worlds.read_world(other, harness.now)).world == ("a", "b", "d")

    def test_for_another_world_the_pages_of_the_one_before_are_not_looked_at(self, harness: Harness) -> None:
        write(harness, "bc")
        lead = Leader(harness, state=publish(harness, world_of("a", "b", "c")))
        lead.until(60.0)
        reads, lead.node.round = self.reads(lead), 1
        take_away(harness, "c")
        write(harness, "abd", last_round=1)
        lead.coroutine.to_write(STATE_KEY)
        assert self.reads(lead) == reads

    def test_members_that_could_not_be_read_are_not_those_of_the_round_before(self, harness: Harness) -> None:
        write(harness, "abc")
        lead = Leader(harness, state=publish(harness, world_of("a", "b", "c")))
        lead.until(60.0)
        harness.publish(publish(harness, replace(world_of("a", "b", "d"), round=2)))
        harness.show(lead.node)
        state = lead.node.run.state
        assert state is not None
        assert state.pages is not None
        self.to_pages(lead)
        lead.coroutine.throw(OSError("a bug"))
        assert self.to_pages(lead) == state.pages.folder

    def to_pages(self, lead: Leader) -> str:
        """The pages that it reads next."""
        while not isinstance(read := lead.coroutine.effect, ReadAll) or "/world/" not in read.prefix:
            lead.coroutine.go()
        return read.prefix

    def test_pages_that_cannot_be_read_are_written_anew(self, harness: Harness) -> None:
        state = world_of("a", "b", "c")
        pages = publish(harness, state).pages
        assert pages is not None
        harness.put(worlds.page_key(pages, "a"), b"not ours")
        anew = harness.run(worlds.write_world(replace(state, round=2), "2f", lambda: harness.now, pages))
        assert harness.run(worlds.read_world(anew, harness.now)).world == ("a", "b", "c")

    def test_no_two_tries_write_the_same_pages(self, harness: Harness) -> None:
        write(harness, "bcd")
        lead = Leader(harness)
        lead.coroutine.to_write(STATE_KEY)
        lead.coroutine.throw(OSError("a bug"))
        lead.coroutine.to_write(STATE_KEY)
        keys = [effect.key for effect in lead.coroutine.taken if isinstance(effect, Put) and "/world/" in effect.key]
        assert len(keys) == len(set(keys)) == 4

    def test_it_reads_the_members_once(self, harness: Harness) -> None:
        write(harness, "bc")
        lead = Leader(harness, state=publish(harness, world_of("a", "b", "c")))
        lead.until(60.0)
        assert self.reads(lead) == 1
        take_away(harness, "c")
        lead.until(60.0)
        assert self.reads(lead) == 1
        assert [departure.node for departure in lead.node.run.status.departures] == ["c"]  # type: ignore[union-attr]

    def test_members_that_a_service_has_lost_are_read_until_they_are_known(self, harness: Harness) -> None:
        write(harness, "bc")
        written = publish(harness, world_of("a", "b", "c"))
        assert written.pages is not None
        key = worlds.page_key(written.pages, "c")
        page = harness.read(key)
        assert page is not None
        harness.client.delete(key, harness.now)
        lead = Leader(harness, state=written)
        lead.until(30.0)
        assert self.reads(lead) > 1
        harness.put(key, page.payload)
        lead.until(60.0)
        before = self.reads(lead)
        lead.until(60.0)
        assert self.reads(lead) == before


def test_no_node_is_named_like_an_unknown_member() -> None:
    assert not escape(f"{worlds.UNKNOWN}1").startswith(worlds.UNKNOWN)
