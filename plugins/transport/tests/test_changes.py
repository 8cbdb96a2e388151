"""Waits that share one stream of changes: what is merged, and when the prefix is read."""

import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import pytest
from rdzv_core.backend import Entry, Snapshot
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_transport import Change, Changes, ChangeWatch, Client, EndpointError, GapError, Member, Watches, changes
from rdzv_transport.connection import ResponseTimeoutError

CALL = 5.0


@dataclass
class Told(Changes):
    """A stream: what the test lets it tell.

    Attributes:
        known: From which revision on it was asked for.
        tells: What comes next: changes, or an error.
        over: Whether they are the last.
        closed: Whether it was.
    """

    known: int
    tells: "queue.Queue[list[Change] | Exception | None]" = field(default_factory=queue.Queue)
    confirmed: bool = False
    age: float = 10.0
    over: bool = False
    closed: bool = False
    has_login: bool = False

    def receive(self, deadline: float) -> list[Change] | None:
        try:
            told = self.tells.get(timeout=max(0.0, min(deadline - time.monotonic(), CALL)))
        except queue.Empty:
            return []
        if isinstance(told, Exception):
            raise told
        self.confirmed = True
        return told

    def close(self) -> None:
        self.closed = True

    def log_in_again(self) -> bool:
        return self.has_login


@dataclass
class Late:
    """A reading that answers in so many waits, or fails, in the last of them at that moment at the latest."""

    service: "Service"
    waits: int
    fails: type[EndpointError] | None = None
    answer: Snapshot | None = None
    closed: bool = False
    until: float = inf

    @property
    def member(self) -> Member:
        return self.service.client.members[0]

    def receive(self, deadline: float) -> tuple[Snapshot] | None:
        time.sleep(max(0.0, min(deadline, self.until) - time.monotonic()))
        self.waits -= 1
        if self.waits > 0:
            return None
        if self.fails:
            raise self.fails("it said nothing", applied=True)
        return (self.answer or self.service.read_all("p", CALL),)

    def close(self) -> None:
        self.closed = True


class Service:
    """Keys, and every stream that was asked for.

    Attributes:
        entries: What it holds.
        revision: Of that.
        reads: How often it was read.
        timeout: Seconds that its last reading had.
        reading: What is read as a poll; None: nothing is.
    """

    def __init__(self) -> None:
        self.client = Client("Told", (Endpoint("127.0.0.1", 1),), lambda reply: None, headers={})
        self.newest = self.lost = 0
        self.entries: dict[str, Entry] = {}
        self.revision = 1
        self.reads = 0
        self.timeout = CALL
        self.reading: Late | None = None
        self.streams: list[Told] = []
        self.watches = Watches(partial(ChangeWatch, self))

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        self.reads += 1
        self.timeout = timeout
        self.newest = max(self.newest, self.revision)
        return Snapshot(dict(self.entries), self.revision)

    def open_reading(self, prefix: str, timeout: float) -> Any:
        return self.reading

    def changes(self, prefix: str, known: int, timeout: float) -> Told:
        self.streams.append(Told(known))
        return self.streams[-1]

    def put(self, name: str) -> Change:
        """Write a key; what a stream tells of it."""
        self.revision += 1
        self.entries[name] = Entry(b"%d" % self.revision, self.revision, 1)
        return Change(name, self.entries[name], self.revision)

    def wait(self, since: Snapshot, timeout: float = CALL) -> Snapshot:
        return self.watches.wait("p", since, timeout)

    def opened(self, since: Snapshot) -> Told:
        """The stream of a wait that has brought nothing."""
        assert self.wait(since, 0.01) is since
        return self.streams[-1]


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.watches.close()
    service.client.close()
    assert all(stream.closed for stream in service.streams)


def test_what_is_in_stream_is_merged_and_nothing_is_read(service: Service) -> None:
    service.put("p/a")
    service.put("p/b/c")
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    stream.tells.put([service.put("p/a"), service.put("p/d"), service.put("other")])
    now = service.wait(since)
    assert now.entries == {name: entry for name, entry in service.entries.items() if name != "other"}
    # A key, and a folder with everything in it; and what came is not told again.
    gone = [Change("p/d", None, 10), Change("p/b", None, 11, below=True), Change("p/a", None, 2)]
    stream.tells.put(gone)
    assert list(service.wait(now).entries) == ["p/a"]
    assert (service.reads, len(service.streams)) == (1, 1)


@pytest.mark.parametrize("is_in_stream", [True, False])
def test_after_long_silence_the_prefix_is_read_and_a_stream_that_missed_something_closed(
    service: Service, is_in_stream: bool
) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    stream.tells.put(None)
    if is_in_stream:
        assert service.wait(since, 0.05) is since
        stream.tells.put([service.put("p/a")])
    else:
        service.put("p/a")
    now = service.wait(since)
    assert now.entries == service.entries
    assert stream.closed == (not is_in_stream)
    service.opened(now).tells.put([service.put("p/b")])
    assert service.wait(now).entries == service.entries
    assert (service.reads, len(service.streams)) == (2, 1 if is_in_stream else 2)


@pytest.mark.parametrize("fails", [EndpointError, None])
def test_a_reading_is_gone_on_with_by_the_next_wait(service: Service, fails: type[EndpointError] | None) -> None:
    """On a slow network a wait may be shorter than a round trip."""
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    late = service.reading = Late(service, 4, fails)
    stream.tells.put(None)
    service.put("p/a")
    for _ in range(3):
        assert service.wait(since, 0.01) is since
    assert service.wait(since, 0.01).entries == service.entries
    assert service.timeout <= (0.01 if fails else CALL), "what the reading took is gone"
    assert (late.closed, late.waits, service.reads) == (True, 0, 2)


def test_the_silence_of_the_only_endpoint_is_an_error_and_the_next_wait_reads_anew(service: Service) -> None:
    """Of a wait that is shorter than the time that an endpoint has to answer, too: it was asked by an earlier one."""
    nothing = Snapshot()
    service.reading = Late(service, 2, ResponseTimeoutError, until=time.monotonic() + 0.05)
    assert service.wait(nothing, 0.01) is nothing
    with pytest.raises(RendezvousConnectionError, match="it said nothing"):
        service.wait(nothing, 1.0)
    service.put("p/a")
    service.reading = Late(service, 1)
    assert service.wait(nothing, 0.01).entries == service.entries


def test_a_reading_that_is_older_than_what_a_caller_has_read_meanwhile_is_only_late(service: Service) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    service.reading = Late(service, 2, answer=since)
    stream.tells.put(None)
    assert service.wait(since, 0.01) is since
    service.put("p/a")
    now = service.read_all("p", CALL)
    assert service.wait(now, 0.01) is now
    stream.tells.put([service.put("p/b")])
    assert service.wait(now).entries == service.entries


def test_a_reading_settles_no_doubt_that_came_after_its_begin(service: Service) -> None:
    service.reading = first = Late(service, 3, answer=Snapshot({}, 1))
    nothing = Snapshot()
    assert service.wait(nothing, 0.01) is nothing
    # A caller brings what is known: the reading that is under way is not needed any more.
    service.put("p/a")
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    service.reading = second = Late(service, 3)
    stream.tells.put(None)
    assert service.wait(since, 0.01) is since
    assert (first.closed, first.waits, second.waits) == (True, 2, 2)
    # What another client has read may be newer than what this reading will show: then there is another one.
    later = Snapshot({"p/z": Entry(b"z", 70, 70)}, 70)
    service.reading = third = Late(service, 2)
    for _ in range(3):
        assert service.wait(later, 0.01) is later
    assert (second.closed, third.waits) == (True, 1)
    assert service.wait(later, 0.01).entries == service.entries
    assert third.closed


def test_a_reading_settles_what_has_come_since_if_it_shows_as_much(service: Service) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    service.reading = Late(service, 2)
    stream.tells.put(None)
    assert service.wait(since, 0.01) is since
    change = service.put("p/a")
    # Another client was first to read it.
    assert service.wait(Snapshot({}, service.revision), 0.01).entries == {"p/a": change.entry}
    assert service.reads == 2


@pytest.mark.parametrize("at", ["receive", "close", "demote", "settle"])
def test_an_interrupt_leaves_no_reading_that_was_answered(
    service: Service, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    first = service.reading = Late(service, 1, EndpointError if at == "demote" else None)
    stream.tells.put(None)
    service.put("p/a")

    def interrupted(*arguments: object) -> None:
        patch.undo()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if at == "settle":
            patch.setattr(stream, "close", interrupted)
        else:
            places = {"receive": (first, "receive"), "close": (first, "close"), "demote": (service.client, "demote")}
            patch.setattr(*places[at], interrupted)
        with pytest.raises(KeyboardInterrupt):
            service.wait(since, 0.01)
    assert first.closed or at == "close"
    service.reading = Late(service, 1)
    assert service.wait(since, 0.01).entries == service.entries
    assert first.waits == (1 if at == "receive" else 0)
    stream.close()


def test_after_a_gap_the_prefix_is_read_and_another_stream_opened(service: Service) -> None:
    since = service.read_all("p", CALL)
    service.opened(since).tells.put(GapError())
    service.put("p/a")
    now = service.wait(since)
    assert now.entries == service.entries
    service.opened(now).tells.put([service.put("p/b")])
    assert service.wait(now).entries == service.entries
    assert [stream.known for stream in service.streams] == [1, 2]
    assert service.streams[0].closed


def test_a_stream_that_is_over_is_followed_by_another_from_there(service: Service) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    stream.over = True
    stream.tells.put([service.put("p/a")])
    now = service.wait(since)
    assert now.entries == service.entries
    service.opened(now).tells.put([service.put("p/b")])
    assert service.wait(now).entries == service.entries
    assert ([stream.known for stream in service.streams], service.reads) == ([1, 2], 1)
    assert stream.closed


@pytest.mark.parametrize("over", [True, False])
def test_a_service_that_ends_each_stream_at_once_is_not_asked_all_the_time(
    service: Service, monkeypatch: pytest.MonkeyPatch, over: bool
) -> None:
    monkeypatch.setattr(changes, "_PAUSE", 0.1)

    def ended(prefix: str, known: int, timeout: float) -> Told:
        stream = Told(known, age=0.0, over=over)
        # It may tell what is known, too.
        stream.tells.put([Change("p/a", None, 1)] if over else GapError())
        service.streams.append(stream)
        return stream

    monkeypatch.setattr(service, "changes", ended)
    since = service.read_all("p", CALL)
    assert service.wait(since, 0.5) is since
    assert 1 <= len(service.streams) <= 6


def test_gaps_without_end_are_met_less_and_less_often(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a balancer one of whose members lags, until that has caught up."""
    pauses: list[float] = []

    def pause(changes: Changes, deadline: float, seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) in (9, 10):
            service.put("p/a")

    def gap(prefix: str, known: int, timeout: float) -> Told:
        stream = Told(known, age=0.0)
        stream.tells.put(GapError())
        return stream

    monkeypatch.setattr(changes, "_pause", pause)
    monkeypatch.setattr(service, "changes", gap)
    now = service.wait(service.read_all("p", CALL))
    assert now.entries == service.entries
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    service.wait(now)
    assert pauses[9:] == [0.02]


def test_a_service_that_has_lost_what_was_known_is_heard_of(service: Service) -> None:
    service.revision = 50
    service.put("p/a")
    since = service.read_all("p", CALL)
    service.opened(since).tells.put(GapError())
    service.revision, service.entries = 2, {}
    now = service.wait(since)
    assert now == Snapshot({}, 2)
    assert service.newest == 2
    service.opened(now).tells.put([service.put("p/b")])
    assert service.wait(now).entries == service.entries


@pytest.mark.parametrize("prefix", ["p", "q", "of no watch yet"])
def test_what_was_known_before_a_loss_is_not_gone_on_from(service: Service, prefix: str) -> None:
    """Another thread may bring it late, when the service has come as far again."""
    service.revision = 69
    service.opened(service.read_all("p", CALL)).tells.put(GapError())
    if prefix == "q":
        service.watches.wait(prefix, service.read_all(prefix, CALL), 0.01)
    service.put(f"{prefix}/a")
    before = service.read_all(prefix, CALL)
    service.revision, service.entries = 2, {}
    assert service.wait(Snapshot({}, 69)) == Snapshot({}, 2)
    service.put(f"{prefix}/b")
    service.revision = 80
    service.read_all("another", CALL)
    assert service.watches.wait(prefix, before, CALL) == Snapshot(service.entries, 80)


def test_a_service_that_has_come_to_the_same_revision_since_it_lost_all_is_heard_of(service: Service) -> None:
    service.put("p/a")
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    stream.tells.put(GapError())
    service.entries = {"p/a": Entry(b"of another history", 2, 1)}
    now = service.wait(since)
    assert (now.entries, now.revision) == (service.entries, since.revision)
    assert stream.closed
    service.opened(now).tells.put([service.put("p/b")])
    assert service.wait(now).entries == service.entries


def test_a_snapshot_that_no_answer_has_named_is_looked_at(service: Service) -> None:
    """Another client may have read it of a service that has lost it since."""
    since = service.read_all("p", CALL)
    service.opened(since)
    later = Snapshot({"p/z": Entry(b"z", 70, 70)}, 70)
    assert service.wait(later).entries == {}
    assert service.reads == 2


@pytest.mark.parametrize("age", [0.1, 10.0])
def test_a_stream_that_breaks_is_opened_again_unless_it_was_just_opened(service: Service, age: float) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    stream.age = age
    stream.tells.put(RendezvousConnectionError("it broke"))
    change = service.put("p/a")
    if age < 1:
        with pytest.raises(RendezvousConnectionError, match="it broke"):
            service.wait(since)
    assert service.wait(since).entries == {"p/a": change.entry}
    assert stream.closed


def test_a_refusal_is_answered_by_one_new_login(service: Service) -> None:
    since = service.read_all("p", CALL)
    refusal = RendezvousDeniedError("who are you?")

    def refused(prefix: str, known: int, timeout: float) -> Told:
        stream = Told(known, has_login=True)
        stream.tells.put(refusal)
        service.streams.append(stream)
        return stream

    service.changes = refused  # type: ignore[method-assign]
    with pytest.raises(RendezvousDeniedError, match="who are you"):
        service.wait(since)
    assert len(service.streams) == 2


def test_many_waiters_share_a_stream_and_closing_ends_their_waits(service: Service) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(service.wait, since) for _ in range(4)]
        stream.tells.put([service.put("p/a")])
        assert all(wait.result(CALL).entries == service.entries for wait in waits)
        last = pool.submit(service.wait, waits[0].result(), 60)
        service.client.close()
        stream.tells.put([])
        with pytest.raises(RendezvousConnectionError, match="was closed"):
            last.result(CALL)
    assert len(service.streams) == 1
    assert not any(thread.name.startswith("rdzv") for thread in threading.enumerate())


def test_what_an_interrupt_has_lost_is_read(service: Service) -> None:
    since = service.read_all("p", CALL)
    stream = service.opened(since)
    stream.tells.put(OSError("an interrupt"))
    service.put("p/a")
    with pytest.raises(OSError, match="an interrupt"):
        service.wait(since)
    assert service.wait(since).entries == service.entries
