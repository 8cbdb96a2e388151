"""Which worlds a run takes, with real nodes on a service in memory."""

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from rdzv_core.errors import RendezvousParameterError, RendezvousTimeoutError

from rdzv.admission import Limits

from .test_rendezvous import Run
from .waiting import wait_until


@pytest.fixture
def run() -> Iterator[Run]:
    """A run on a backend that can do everything."""
    with contextlib.closing(Run("memory")) as run:
        yield run


class TestSettings:
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"group_by": "rack"}, "group_by and group_size belong together"),
            ({"group_size": 2}, "group_by and group_size belong together"),
            ({"group_by": "rack", "group_size": 2}, r"This node has no label 'rack'.*labels=rack=a"),
            ({"node_unit": 0}, r"node_unit \(0\) must be greater than zero"),
            ({"sizes": (0, 2)}, r"size \(0\) must be greater than zero"),
            ({"wanted": -1}, r"wanted \(-1\) must be greater than zero"),
            ({"wanted_timeout": timedelta(0)}, r"wanted_timeout \(0:00:00\) must be positive"),
            ({"grow_delay": timedelta(-1)}, r"grow_delay \(-1 day, 0:00:00\) must not be negative"),
            ({"node_unit": 5}, "No world of 2 to 4 nodes is a multiple of 5"),
        ],
    )
    def test_what_cannot_be_is_refused(self, run: Run, given: dict[str, Any], says: str) -> None:
        with pytest.raises(RendezvousParameterError, match=says):
            run.node(2, 4, **given)

    def test_settings_without_a_rule_have_none(self, run: Run) -> None:
        settings = run.node(2, 4, node_unit=1)._settings
        assert settings.limits == Limits(2, 4)


class TestNodes:
    def test_world_is_a_multiple_of_the_unit(self, run: Run) -> None:
        # Four have to come: on a busy machine more than a last call may lie between two and the next.
        infos = run.join(*run.nodes(5, 4, 6, last_call=2.0, node_unit=2))
        wait_until(lambda: sum(info.done() for info in infos) == 4)
        assert {info.result().world_size for info in infos if info.done()} == {4}
        # The fifth goes on as soon as there is a sixth.
        late = run.node(4, 6, last_call=2.0, node_unit=2)
        infos += run.join(late)
        in_world = [handler for handler, info in zip(run.handlers, infos, strict=True) if info.done()]
        wait_until(lambda: all(handler.num_nodes_waiting() == 2 for handler in in_world))
        assert {info.world_size for info in run.gather(*in_world)} == {6}

    def test_groups_have_contiguous_ranks(self, run: Run) -> None:
        handlers = [
            run.node(2, 4, group_by="rack", group_size=2, labels={"rack": rack}, node_name=f"n{number}-{rack}")
            for number in range(2)
            for rack in "ba"
        ]
        infos = run.gather(*handlers)
        ranks = {handler.view.node_id[:4]: info.rank for handler, info in zip(handlers, infos, strict=True)}
        assert ranks == {"n0-a": 0, "n1-a": 1, "n0-b": 2, "n1-b": 3}

    def test_world_is_not_asked_to_grow_too_often(self, run: Run) -> None:
        delay = timedelta(seconds=1.5)
        members = run.nodes(2, 2, 4, grow_delay=delay)
        run.gather(*members)
        formed = time.monotonic()
        waiting = run.join(*run.nodes(2, 2, 4, grow_delay=delay))
        wait_until(lambda: all(node.view.status is not None and node.view.status.present == 4 for node in members))
        wait_until(lambda: all(node.num_nodes_waiting() == 2 for node in members))
        # The leader has begun to count a little before the world was there.
        assert time.monotonic() - formed > 1.2
        waiting += run.join(*members)
        assert {info.result(15).world_size for info in waiting} == {4}

    def test_loss_is_not_delayed(self, run: Run) -> None:
        members = run.nodes(3, 2, 4, grow_delay=timedelta(hours=1))
        run.gather(*members)
        members.pop().leave("drained")
        wait_until(lambda: all(node.num_nodes_waiting() for node in members))

    def test_another_rule_is_refused_naming_both(self, run: Run) -> None:
        run.gather(*run.nodes(2, 2, 4, node_unit=2))
        with pytest.raises(
            RendezvousParameterError,
            match=r"was started for 2 to 4 nodes, a multiple of 2; this node asks for 2 to 4 nodes, one of 2, 3",
        ):
            run.node(2, 4, sizes=(2, 3)).next_rendezvous()

    @pytest.mark.parametrize(
        ("given", "theirs", "mine"),
        [
            ({"wanted_timeout": timedelta(seconds=60)}, "wanted_timeout=120", "wanted_timeout=60"),
            ({"grow_delay": timedelta(seconds=2.5)}, "grow_delay=0", "grow_delay=2.5"),
            ({"quarantine_after": 0}, "quarantine_after=3", "quarantine_after=0"),
            ({"quarantine_cooldown": timedelta(seconds=9)}, "quarantine_cooldown=60", "quarantine_cooldown=9"),
        ],
    )
    def test_another_policy_is_refused_naming_both(
        self, run: Run, given: dict[str, Any], theirs: str, mine: str
    ) -> None:
        members = run.nodes(2, 2, 4)
        run.gather(*members)
        with pytest.raises(
            RendezvousParameterError,
            match=rf"was started for 2 to 4 nodes, {theirs}; this node asks for 2 to 4 nodes, {mine}\. All nodes",
        ):
            run.node(2, 4, **given).next_rendezvous()
        assert not any(node.num_nodes_waiting() for node in members)

    def test_the_same_policy_is_the_same_run(self, run: Run) -> None:
        policy: dict[str, Any] = {"grow_delay": timedelta(seconds=2.5), "quarantine_after": 2}
        assert {info.world_size for info in run.gather(*run.nodes(2, 2, 2, **policy))} == {2}

    def test_timeout_says_what_the_rule_waits_for(self, run: Run) -> None:
        with pytest.raises(
            RendezvousTimeoutError, match=r"1 of at least 2 nodes is here .*; a world takes 2 or 4 nodes"
        ):
            run.node(2, 5, node_unit=2, join=0.5).next_rendezvous()
