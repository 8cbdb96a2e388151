"""torch's event log gets from our handler what torch's own tells it."""

import logging
import os
import socket
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic import events, rendezvous
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.events.api import RdzvEvent
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from rdzv_torchrun.rendezvous import TorchrunHandler

Node = Callable[..., TorchrunHandler]
Said = tuple[str, str, str, bool, bool, bool]


class Log(logging.Handler):
    """Keeps the events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[RdzvEvent] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(RdzvEvent.deserialize(record.getMessage()))

    def of(self, kind: str) -> list[RdzvEvent]:
        """Those of a handler's class; torch tells of other things, too."""
        return [event for event in self.events if event.name.partition(":")[2].startswith(f"{kind}.")]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    """The event log, switched on."""
    log = Log()
    monkeypatch.setitem(handlers._log_handlers, "dynamic_rendezvous", log)
    monkeypatch.setattr(events, "_events_loggers", {})
    yield log
    # torch keeps the logger itself by name.
    for name in list(logging.root.manager.loggerDict):
        logging.getLogger(name).removeHandler(log)


def outline(event: RdzvEvent) -> Said:
    """What of an event is the same for either handler: method, state, how it goes on, and which fields it has."""
    method = event.name.rpartition(".")[2]
    # torch's shutdown and set_closed close by this.
    method = {"_close": "set_closed"}.get(method, method)
    words = ["attempts to join", "has joined", "has closed", "Error"]
    about = next((word for word in words if word in event.message), "")
    return method, event.node_state.name, about, event.rank is not None, bool(event.error_trace), bool(event.run_id)


def live(handler: Any) -> None:
    """What an agent does that joins a world, closes the run, and tries to join again."""
    assert handler.next_rendezvous().rank == 0
    handler.set_closed()
    with pytest.raises(rendezvous.RendezvousClosedError):
        handler.next_rendezvous()


def test_the_events_are_those_of_torchs_own_handler(node: Node, log: Log) -> None:
    params = RendezvousParameters("c10d", "localhost:0", "job", 1, 1, local_addr="127.0.0.1", last_call_timeout=1)
    theirs = get_rendezvous_handler(params)
    live(theirs)
    ours = node(1, 1, local_addr="127.0.0.1")
    live(ours)
    told, expected = log.of("TorchrunHandler"), log.of("DynamicRendezvousHandler")
    assert len(told) == 5
    assert [outline(event) for event in told] == [outline(event) for event in expected]
    for event in (*told, *expected):
        assert (event.hostname, event.pid, event.run_id) == ("127.0.0.1", os.getpid(), "job")
        assert event.local_id is not None
    assert told[0].name == "rendezvous.py:TorchrunHandler.next_rendezvous"
    assert ours._handler.view.node_id in told[1].message
    assert told[1].rank == 0
    assert "RendezvousClosedError" in told[-1].error_trace
    theirs.shutdown()


def test_every_handler_of_a_process_has_a_number_of_its_own(node: Node, log: Log, threads: ThreadPoolExecutor) -> None:
    list(threads.map(lambda one: one.next_rendezvous(), [node(), node()]))
    found = log.of("TorchrunHandler")
    assert len({event.local_id for event in found}) == 2
    # Without an address it is the machine's own name; no resolver is asked for it.
    assert {event.hostname for event in found} == {socket.gethostname()}
    assert {event.rank for event in found} == {None, 0, 1}


def test_an_end_that_was_not_published_is_no_success(node: Node, log: Log, database: str) -> None:
    first = node(1, 1)
    first.next_rendezvous()
    assert first.shutdown()
    second = node(1, 1, attempt="1", close_timeout="0.5", keep_alive_interval="0.5")
    second.next_rendezvous()
    with closing(sqlite3.connect(database, isolation_level=None)) as other:
        # No other can write meanwhile.
        other.execute("BEGIN EXCLUSIVE")
        assert not second.shutdown()
    ends = [event for event in log.of("TorchrunHandler") if event.name.endswith(".shutdown")]
    assert [event.node_state.name for event in ends] == ["SUCCEEDED", "FAILED"]
    assert "has failed to shut down the rendezvous 'job'" in ends[1].message


@pytest.mark.parametrize("method", ["num_nodes_waiting", "is_closed", "set_closed"])
def test_what_fails_is_reported(node: Node, log: Log, database: str, method: str) -> None:
    Path(database).write_text("not a database")
    with pytest.raises(rendezvous.RendezvousError, match="database"):
        getattr(node(1, 1), method)()
    (event,) = log.of("TorchrunHandler")
    assert event.name == f"rendezvous.py:TorchrunHandler.{method}"
    assert (event.node_state.name, "Error" in event.error_trace) == ("FAILED", True)


def test_a_handler_that_cannot_be_made_is_reported(node: Node, log: Log) -> None:
    with pytest.raises(ValueError, match="join_timeout"):
        node(1, 1, join_timeout="soon")
    (event,) = log.events
    assert (event.name, event.node_state.name) == ("rendezvous.py:create_handler", "FAILED")
    assert "join_timeout" in event.message
