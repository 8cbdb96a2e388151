"""What ``rdzv status`` and ``rdzv close`` say of a run, on a service that lives in this process."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import rdzv
from engine.tests.memory import MemoryBackend
from engine.tests.test_inspector import OUTAGE, UNREADABLE, WHERE, Shared, crash
from engine.tests.test_rendezvous import listening
from engine.tests.waiting import wait_until
from rdzv import EventKind, RendezvousParameterError, RendezvousSettings, RendezvousTimeoutError
from rdzv.engine.handler import with_keys, with_leases
from rdzv.inspector import RunInspector
from rdzv_core import ABSENT
from rdzv_core.envelope import Envelope

from rdzv_cli.command import main


def test_a_node_that_has_left_is_not_here(shared: Shared, capsys: pytest.CaptureFixture[str]) -> None:
    # What it has written when it left stays for a time to live: longer than a busy machine needs for two looks.
    stays, leaves = [shared.node(nodes=2, keep_alive_interval=20.0) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(node.next_rendezvous) for node in (stays, leaves)]:
            future.result(15)
    leaves.leave("drained")
    assert main(["status", *WHERE]) == 0
    said = capsys.readouterr().out
    assert "nodes: 1 here; a world takes 2 nodes" in said
    assert "re-forming" in said.splitlines()[0]
    with RunInspector(shared.params()) as observer:
        assert {node.left for node in observer.status(5.0).nodes} == {None, "drained"}
    stays.leave()


def test_a_member_that_is_gone_is_shown_once(shared: Shared, capsys: pytest.CaptureFixture[str]) -> None:
    stays, leaves, dies = nodes = [shared.node(nodes=3) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        joining = {node: pool.submit(node.next_rendezvous) for node in nodes}
        rank = {node: future.result(15).rank for node, future in joining.items()}
    leaves.leave("drained")
    # Its record goes with its lease: the others must have read it.
    wait_until(lambda: stays.view.status and stays.view.status.departures)
    crash(dies)
    with RunInspector(shared.params()) as observer:

        def seen() -> str | None:
            status = observer.status(5.0)
            ids = [node.id for node in status.nodes] + [node.id for node in status.missing]
            assert sorted(set(ids)) == sorted(ids)
            main(["status", *WHERE])
            said = capsys.readouterr().out
            assert said.count(leaves.view.node_id) == 1, said
            return said if len(status.missing) == 2 else None

        said = wait_until(seen)
    assert f"  rank {rank[leaves]:2}  {leaves.view.node_id}  left: drained\n" in said
    assert f"  rank {rank[dies]:2}  {dies.view.node_id}  missing: its " in said
    before = datetime.now(UTC)
    assert main(["status", *WHERE, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert before - timedelta(milliseconds=1) <= datetime.fromisoformat(told["time"]) <= datetime.now(UTC)
    assert told["time"].endswith("+00:00")
    missing = {node["id"]: node for node in told["missing"]}
    assert missing[leaves.view.node_id] == {
        "id": leaves.view.node_id,
        "rank": rank[leaves],
        "doing": "left: drained",
        "left": "drained",
    }
    assert missing[dies.view.node_id]["left"] is None
    stays.leave()


def test_a_node_of_another_version_is_named_and_the_rest_is_shown(
    shared: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = RendezvousSettings.from_parameters(shared.params())
    backend = with_leases(with_keys(shared.kind(shared.service)), settings)
    record, lease = Envelope(b'{"schema":4}', "new", "1").pack(), backend.open_lease(60.0, timeout=5)
    backend.put("nodes/0/a.1", record, expect=ABSENT, lease=lease, timeout=5)
    named = "  not readable: a.1: The node record in the service was written by another version of rdzv (schema 4, this"
    assert main(["status", *WHERE]) == 7
    first, leader, unread = capsys.readouterr().out.splitlines()
    assert (first, leader) == ("run run: unknown, attempt 0, round 0", "  leader: none")
    assert unread.startswith(named)
    node = shared.node(node_name="b")
    node.next_rendezvous()
    assert main(["status", *WHERE]) == 0
    said = capsys.readouterr().out
    assert said.startswith("run run: running, attempt 0, round 1\n")
    assert node.view.node_id in said
    assert named in said
    node.leave()
    # It has left a trace, so that the run id is the right one.
    assert main(["close", *WHERE]) == 0
    assert "trace" not in capsys.readouterr().out


def test_a_run_whose_nodes_went_before_they_had_a_world_is_unknown(
    shared: Shared, capsys: pytest.CaptureFixture[str]
) -> None:
    gives_up = shared.node(nodes=2, join_timeout=0.5)
    # To start its threads takes a busy machine a while, which is not part of that time.
    assert not gives_up.is_closed()
    with pytest.raises(RendezvousTimeoutError):
        gives_up.next_rendezvous()
    gives_up.leave()
    # Each waits on until its time is over, though its lease is not kept any more.
    dies = [shared.node(min_nodes=2, nodes=3, last_call_timeout=60.0, join_timeout=4.0) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool, RunInspector(shared.params()) as observer:
        for node in dies:
            pool.submit(node.next_rendezvous)
        seen = wait_until(lambda: (now := observer.status(5.0)).phase == "last call" and now)
        assert (seen.waiting, [node.doing for node in seen.nodes]) == (2, ["waiting", "waiting"])
        for node in dies:
            crash(node)
        wait_until(lambda: not observer.status(5.0).nodes)
        assert observer.status(5.0).phase == "unknown"
    assert main(["status", *WHERE]) == 11
    assert capsys.readouterr().out.splitlines()[:2] == [
        "run run: unknown, attempt 0, round 0",
        "  no node is here: none has come yet, all that came went before they had a world, or its id is another",
    ]
    assert main(["status", *WHERE, "--json"]) == 11
    assert json.loads(capsys.readouterr().out)["phase"] == "unknown"


def test_an_abandoned_run_says_why_and_can_be_used_again(shared: Shared, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [shared.node(nodes=2) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        joining = {node: pool.submit(node.next_rendezvous) for node in nodes}
        rank = {node: future.result(15).rank for node, future in joining.items()}
        for number, node in enumerate(nodes):
            node.leave(f"drained {number}")
        assert main(["status", *WHERE]) == 0
        said = capsys.readouterr().out
        assert said.startswith(
            "run run: abandoned, attempt 0, round 1\n  leader: none\n  nodes: 0 here; a world takes "
        )
        for number, node in enumerate(nodes):
            line = rf"^  rank {rank[node]:2}  {node.view.node_id}  .*left: drained {number}$"
            assert re.search(line, said, re.MULTILINE)
        others = [shared.node(nodes=2) for _ in range(2)]
        with listening() as events:
            assert [future.result(15).round for future in [pool.submit(node.next_rendezvous) for node in others]] == [
                2,
                2,
            ]
    # It happened before they came.
    assert EventKind.NODE_LEFT not in {event.kind for event in events}
    with RunInspector(shared.params()) as observer:
        status = observer.status(5.0)
    assert (status.phase, status.missing) == ("running", ())
    for node in others:
        node.leave()


@pytest.mark.parametrize("way_out", ["attempt", "purge"])
def test_an_abandoned_run_refuses_other_limits_and_names_the_ways_out(shared: Shared, way_out: str) -> None:
    node = shared.node()
    node.next_rendezvous()
    node.leave("drained")
    other = shared.node(nodes=2)
    with pytest.raises(RendezvousParameterError) as refused:
        other.next_rendezvous()
    other.leave()
    assert str(refused.value) == (
        "The rendezvous 'run' was started for 1 node; this node asks for 2 nodes. All nodes of a run need the "
        "same limits; to start the run anew with others, use a higher attempt (`rdzv run --attempt 1`), or remove what "
        "its nodes have left behind with `rdzv close --purge`."
    )
    if way_out == "purge":
        assert main(["close", *WHERE, "--purge"]) == 0
    nodes = [shared.node(nodes=2, attempt=int(way_out == "attempt")) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert {future.result(15).world_size for future in [pool.submit(one.next_rendezvous) for one in nodes]} == {2}


def test_watching_goes_on_when_the_service_is_back(
    shared: Shared, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def end_at_closed(self: RunInspector, timeout: float) -> None:
        if shared.service.under("run/control/state"):
            raise KeyboardInterrupt
        wait(self, timeout)

    wait = RunInspector.wait
    monkeypatch.setattr(RunInspector, "wait", end_at_closed)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(main, ["status", *WHERE, "--watch", "--timeout", "10"])
        wait_until(lambda: shared.clients and shared.clients[0].calls["wait"])
        shared.clients[0].fail("wait", *OUTAGE)
        reads = shared.clients[0].calls["read_all"]
        shared.clients[0].disconnect()
        wait_until(lambda: shared.clients[0].calls["read_all"] > reads + 1)
        shared.clients[0].reconnect()
        with RunInspector(shared.params()) as other:
            other.close("the test", "enough", 5.0)
        assert watching.result(30) == 130
    first, second = capsys.readouterr().out.split("\n\n")
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
    assert re.match(rf"{moment} run run: unknown, ", first)
    assert re.match(rf"{moment} run run: closed, .*\n  closed by the test: enough\n", second)


def test_closing_and_purging_have_one_deadline(shared: Shared) -> None:
    node = shared.node()
    node.next_rendezvous()
    # No lease has to end first: the wait for that has a deadline of its own.
    node.leave("it ends")
    shared.deadlines.clear()
    slow = ["control/state"]

    def before(client: MemoryBackend, method: str, key: str) -> None:
        if key in slow:
            slow.remove(key)
            time.sleep(1.0)

    shared.before = before
    assert main(["close", *WHERE, "--purge", "--timeout", "8"]) == 0
    assert not slow
    assert not shared.service.entries
    # What a busy machine adds is less than what the slow call took.
    assert max(shared.deadlines) - min(shared.deadlines) < 0.9


@pytest.mark.parametrize("state", UNREADABLE)
def test_a_run_that_cannot_be_read_is_purged(shared: Shared, state: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with shared.service.changed:
        shared.service.write("run/control/state", state, None)
    assert main(["close", *WHERE]) == 7
    assert "written by" in capsys.readouterr().err or state == b"not ours"
    assert main(["close", *WHERE, "--purge"]) == 0
    assert capsys.readouterr().out == "Every key of the run 'run' is removed.\n"
    assert not shared.service.entries


def test_a_run_can_still_be_looked_at_closed_and_purged(shared: Shared, capsys: pytest.CaptureFixture[str]) -> None:
    node = shared.node()
    node.next_rendezvous().store.set("key", "value")
    assert main(["status", *WHERE]) == 0
    assert f"{node.view.node_id}  127.0.0.1  rdzv {rdzv.__version__}  in the round" in capsys.readouterr().out
    assert main(["status", *WHERE, "--json"]) == 0
    assert [one["version"] for one in json.loads(capsys.readouterr().out)["nodes"]] == [rdzv.__version__]
    crash(node)
    assert main(["close", *WHERE, "--purge"]) == 0
    assert "is removed" in capsys.readouterr().out
    assert not shared.service.entries
