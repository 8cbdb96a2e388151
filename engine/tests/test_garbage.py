"""What is garbage, as tables: what stands in the service, and what is to be removed, in which order."""

from typing import Any

import pytest
from rdzv_core.backend import Entry, Snapshot
from rdzv_core.envelope import Envelope

from rdzv.engine import garbage, worlds
from rdzv.engine.client import DecodedSnapshot
from rdzv.engine.notices import drain_key, failure_key, quarantine_key
from rdzv.engine.records import (
    LEADER_KEY,
    STATUS_KEY,
    LeaderRecord,
    Pages,
    State,
    pending_key,
    round_folder,
    store_folder,
    world_folder,
)
from rdzv.settings import ROUNDS_KEPT

LARGE = worlds.PAGE + 1


def state(round: int, attempt: int = 1, max_nodes: int = 4, **more: Any) -> State:
    """The state of a round."""
    return State(attempt, round, ("a", "b"), "a.host", 1, 2, max_nodes, **more)


def seen(*keys: str, **attempts: int) -> DecodedSnapshot:
    """A snapshot of these keys, and of the pending rounds ``r7=0``, each with the attempt before it."""
    values = dict.fromkeys(keys, b"[]")
    for name, attempt in attempts.items():
        values[pending_key(int(name[1:]))] = LeaderRecord("x", attempt, 2, 4).encode()
    entries = {key: Entry(Envelope.wrap(value, writer="x").pack(), 1, 1) for key, value in values.items()}
    return DecodedSnapshot(Snapshot(entries))


class TestPendingRounds:
    def test_one_names_the_attempt_before_and_goes_last(self) -> None:
        control = seen(r4=0, r5=1, r6=1)
        found = garbage.of_pending_rounds(control, state(5), 5)
        assert found == ["nodes/0", "heartbeats/0", pending_key(4), pending_key(5)]

    def test_of_attempts_without_a_state_the_latest_go_too(self) -> None:
        found = garbage.of_pending_rounds(seen(r4=0), state(5, attempt=2), 5)
        assert found == ["nodes/0", "heartbeats/0", "nodes/1", "heartbeats/1", pending_key(4)]
        of_many = garbage.of_pending_rounds(seen(r4=0), state(5, attempt=1000), 5)
        nodes = [f"nodes/{attempt}" for attempt in (0, *range(1000 - garbage.SWEPT, 1000))]
        assert [key for key in of_many if key.startswith("nodes/")] == nodes

    def test_one_that_cannot_be_read_names_nothing(self) -> None:
        assert garbage.of_pending_rounds(seen(pending_key(4)), state(5), 5) == [pending_key(4)]

    def test_other_keys_stay(self) -> None:
        assert garbage.of_pending_rounds(seen(STATUS_KEY, "control/pending/x"), state(5), 5) == []


class TestWhileTheRunGoesOn:
    @pytest.mark.parametrize(
        ("number", "swept", "rounds"),
        [
            (1, 0, []),
            (2, 0, []),
            (3, 0, [1]),
            (5, 0, [1, 2, 3]),
            (5, 2, [3]),
            (5, 3, []),
            (30, 0, [*range(21, 29)]),
            (30, 25, [26, 27, 28]),
            # After a purge the numbers begin anew.
            (3, 7, []),
        ],
    )
    def test_rounds_go_once_no_node_needs_them(self, number: int, swept: int, rounds: list[int]) -> None:
        assert list(garbage.old_rounds(state(number), swept)) == rounds

    @pytest.mark.parametrize(("number", "swept", "now"), [(1, 7, 0), (3, 7, 1), (30, 7, 20), (30, 25, 25)])
    def test_it_says_from_where_it_goes_on(self, number: int, swept: int, now: int) -> None:
        assert garbage.old_rounds(state(number), swept).start - 1 == now

    def test_the_pages_of_a_large_world_stay_for_longer(self) -> None:
        assert list(garbage.old_rounds(state(8, max_nodes=LARGE), 0)) == [1, 2, 3]

    def test_notices(self) -> None:
        control = seen(*map(failure_key, (1, 2, 3)), "control/failures/last", drain_key("b"), drain_key("c"))
        found = garbage.of_notices(control, state(ROUNDS_KEPT + 2), ["b"])
        assert found == [failure_key(1), failure_key(2), drain_key("b")]


class TestTheLastNode:
    @pytest.mark.parametrize(
        ("number", "rounds"), [(1, [store_folder(1)]), (5, [*map(round_folder, (3, 4)), store_folder(5)])]
    )
    def test_of_an_open_run_leaves_the_world(self, number: int, rounds: list[str]) -> None:
        assert garbage.of_ended_round(state(number)) == rounds

    def test_of_an_open_run_leaves_the_pages_of_an_earlier_round(self) -> None:
        pages = Pages(f"{world_folder(4)}/1.x", 1, 2, "a")
        found = garbage.of_ended_round(state(6, max_nodes=LARGE, pages=pages))
        assert found == [*map(round_folder, (1, 2, 3)), store_folder(4), *map(round_folder, (5, 6))]

    def test_of_a_closed_attempt_leaves_the_state(self) -> None:
        pending = seen(r1=1, r2=0, r3=1, r4=1)
        found = garbage.of_closed_attempt(state(2), 1, pending, ["rounds/3/world/1.x"])
        assert found == [
            *map(round_folder, (1, 2)),
            "rounds/3/world/1.x",
            LEADER_KEY,
            STATUS_KEY,
            "nodes/1",
            "heartbeats/1",
            pending_key(1),
            "nodes/0",
            "heartbeats/0",
            pending_key(2),
            pending_key(3),
        ]

    def test_of_an_attempt_that_a_closed_one_superseded_removes_both(self) -> None:
        found = garbage.of_closed_attempt(state(1, attempt=3), 2, seen(), [])
        assert found[-4:] == ["nodes/2", "heartbeats/2", "nodes/3", "heartbeats/3"]

    @pytest.mark.parametrize(("most", "rounds"), [(worlds.PAGE, []), (LARGE, [3, 7])])
    def test_looks_for_pages_of_further_rounds_where_worlds_are_large(self, most: int, rounds: list[int]) -> None:
        pending = seen("control/pending/x", r1=1, r2=1, r7=1)
        assert garbage.unpublished_rounds(state(2, max_nodes=most), pending) == rounds

    def test_leaves_the_pages_of_the_next_attempt(self) -> None:
        folder = world_folder(3)
        pages = seen(*(f"{folder}/{name}" for name in ("0.x/0", "1.y/0", "1.y/1", "2.z/0", "what/0")))
        found = garbage.unpublished_pages(state(2), 3, pages)
        assert sorted(found) == [f"{folder}/0.x", f"{folder}/1.y"]

    def test_of_a_closed_run_removes_notices_but_no_quarantine(self) -> None:
        control = seen(drain_key("b"), failure_key(1), quarantine_key("b"), STATUS_KEY)
        assert garbage.of_closed_notices(control) == [drain_key("b"), failure_key(1)]


class TestPurge:
    def test_folders_of_later_numbers_stay(self) -> None:
        snapshot = seen("rounds/2/store/a", "rounds/3/store/a", "rounds/3/world/0", "rounds/4/store/a", "rounds/x/y")
        assert garbage.folders_until(snapshot, 3) == ["rounds/2", "rounds/3", "rounds/x"]

    def test_folders_of_the_first_attempt(self) -> None:
        assert garbage.folders_until(seen("nodes/0/a", "nodes/1/a", "nodes/x/a"), 0) == ["nodes/0", "nodes/x"]

    def test_what_stands_at_the_prefix_itself_goes_with_the_last_folder(self) -> None:
        assert garbage.folders_until(seen("nodes", "nodes/0/a", "nodes/1/a"), 0) == ["nodes/0"]
        assert garbage.folders_until(seen("nodes", "nodes/", "nodes/1/a"), 1) == ["nodes", "nodes/", "nodes/1"]

    def test_beside_the_state_the_pending_rounds_of_the_next_attempt_stay(self) -> None:
        notices = [drain_key("b"), failure_key(1), quarantine_key("b")]
        control = seen("control/state", "control/pending/x", *notices, LEADER_KEY, r2=1, r3=1, r4=2)
        old = ["control/pending/x", pending_key(2), pending_key(3)]
        assert garbage.beside_state(control, state(2)) == [*old, *notices, STATUS_KEY, LEADER_KEY]
