"""Waits that share one poll: what it costs, and what becomes of it when a wait or an endpoint ends."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from rdzv_core.backend import Entry, Snapshot
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError

from rdzv_transport import Client, EndpointError, Poll, PollWatch, Reply, Request, Revision, Watches, polls

from .makers import closed

CALL = 5.0
HELD = 0.3


class News:
    """A small HTTP server with one number: ``/now`` tells it, ``/after/N`` too, as soon as it is not N any more.

    Attributes:
        asked: Every path.
        number: What it tells.
        status: What it answers.
        hangs_up: Whether it hangs up instead of answering ``/after``.
        is_eager: Whether it answers ``/after`` at once.
        is_silent: Whether it keeps the answer to ``/now``, until it is not and is released.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.number = 1
        self.status = 200
        self.hangs_up = False
        self.is_eager = False
        self.is_silent = False
        self._over = False
        self._changed = threading.Condition()
        news = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                news.asked.append(self.path)
                if self.path.startswith("/after/"):
                    news.hold(int(self.path.rpartition("/")[2]))
                    if news.hangs_up:
                        self.close_connection = True
                        return
                else:
                    news.keep()
                body = str(news.number).encode()
                self.send_response(news.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                with suppress(OSError):
                    super().handle()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.endpoint = Endpoint("127.0.0.1", self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def change(self, number: int) -> None:
        """Have another number from now on."""
        with self._changed:
            self.number = number
            self._changed.notify_all()

    def hold(self, known: int) -> None:
        """Until there is another number than that."""
        with self._changed:
            self._changed.wait_for(lambda: self.number != known or self._over or self.hangs_up or self.is_eager, 10)

    def keep(self) -> None:
        """As long as it is silent."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not self.is_silent, 10)

    def polls(self) -> int:
        """How many polls it got."""
        return sum(path.startswith("/after/") for path in self.asked)

    def release(self) -> None:
        """Answer every poll, or hang up."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End it; clients must have hung up."""
        self._over = True
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Watcher:
    """A client of such servers that watches.

    Attributes:
        failure: What reading an answer raises once, if anything.
    """

    def __init__(self, *endpoints: Endpoint) -> None:
        self.client = Client("News", endpoints, _check, headers={}, request_timeout=1.0)
        self.failure: BaseException | None = None
        self._watches = Watches(partial(PollWatch, self))

    def wait(self, since: Snapshot, timeout: float = CALL) -> Snapshot:
        return self._watches.wait("p", since, timeout)

    def read_all(self, prefix: str = "p", timeout: float = CALL) -> Snapshot:
        return self.client.call(Request("GET", "/now"), timeout, self._reader(time.monotonic()))

    def close(self) -> None:
        self.client.close()
        self._watches.close()

    def open_reading(self, prefix: str, timeout: float) -> Poll[Snapshot]:
        return self.client.open_poll(Request("GET", "/now"), 0.0, timeout, self._reader(time.monotonic()))

    def open_poll(self, prefix: str, since: Snapshot, timeout: float) -> Poll[Snapshot]:
        request = Request("GET", f"/after/{since.revision.index}")
        return self.client.open_poll(request, HELD, timeout, self._reader(time.monotonic()))

    def _reader(self, asked: float) -> Callable[[Reply], Snapshot]:
        def read(reply: Reply) -> Snapshot:
            failure, self.failure = self.failure, None
            if failure is not None:
                raise failure
            number = int(reply.body)
            return Snapshot({"p": Entry(reply.body, number, 1)}, Revision(number, asked, time.monotonic()))

        return read


def _check(reply: Reply) -> None:
    if reply.status == 503:
        raise EndpointError("it has no leader", applied=False)


serve = closed(News)
watch = closed(Watcher, before="serve")

Serve = Callable[[], News]
Watch = Callable[..., Watcher]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + CALL
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_waiters_share_a_poll_and_one_that_is_given_up_is_gone_on_with(serve: Serve, watch: Watch) -> None:
    news = serve()
    watcher = watch(news.endpoint)
    seen = watcher.read_all()
    for number in range(2, 6):
        # The first has the time to send the poll on a busy machine; the others need none: they go on with it.
        for timeout in (0.5, 0.001, 0.001):
            assert watcher.wait(seen, timeout) is seen
        with ThreadPoolExecutor(8) as pool:
            waits = [pool.submit(watcher.wait, seen) for _ in range(8)]
            _until(lambda: news.asked[-1] == f"/after/{number - 1}")  # noqa: B023
            news.change(number)
            assert {wait.result().entries["p"].value for wait in waits} == {b"%d" % number}
            seen = waits[0].result()
    assert news.polls() == 4
    assert news.asked.count("/now") == 1
    assert len({thread.name for thread in threading.enumerate() if thread.name.startswith("rdzv")}) == 0


def test_a_wait_without_a_snapshot_reads(serve: Serve, watch: Watch) -> None:
    news = serve()
    watcher = watch(news.endpoint)
    assert watcher.wait(Snapshot()).entries["p"].value == b"1"
    # The one that it now knows is news to this caller, too.
    assert watcher.wait(Snapshot()).entries["p"].value == b"1"
    assert news.asked == ["/now"]


def test_a_reading_goes_on_over_waits_that_are_shorter_than_it(serve: Serve, watch: Watch) -> None:
    news = serve()
    news.is_silent = True
    watcher = watch(news.endpoint)
    _until(lambda: bool(watcher.wait(Snapshot(), 0.05) and news.asked))
    for _ in range(2):
        assert watcher.wait(Snapshot(), 0.05).entries == {}
    news.is_silent = False
    news.release()
    assert watcher.wait(Snapshot()).entries["p"].value == b"1"
    assert news.asked == ["/now"]


def test_a_reading_that_is_not_answered_is_made_at_the_next_endpoint(serve: Serve, watch: Watch) -> None:
    silent, other = serve(), serve()
    silent.is_silent = True
    other.number = 2
    watcher = watch(silent.endpoint, other.endpoint)
    # Long enough to connect on a busy machine, and shorter than the time that an endpoint has to answer.
    assert watcher.wait(Snapshot(), 0.5).entries == {}
    # Who knows something that is not old does not make a poll of the reading.
    seen = Snapshot(revision=Revision(1, time.monotonic(), time.monotonic()))
    assert watcher.wait(seen).entries["p"].value == b"2"
    assert (silent.asked, other.asked) == (["/now"], ["/now"])


def test_the_silence_of_the_only_endpoint_is_an_error(serve: Serve, watch: Watch) -> None:
    """Of each wait that is longer than `request_timeout`, also where that is less than twice as long."""
    news = serve()
    news.is_silent = True
    watcher = watch(news.endpoint)
    for _ in range(2):
        with pytest.raises(RendezvousConnectionError, match="no answer in time"):
            watcher.wait(Snapshot(), 1.8)


def test_an_old_snapshot_is_read_anew(serve: Serve, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "_REUSE_WINDOW", 0.0)
    news = serve()
    watcher = watch(news.endpoint)
    seen = watcher.read_all()
    assert watcher.wait(seen, 0.2) is seen
    assert news.asked == ["/now", "/now", "/after/1"]


def test_what_counts_anew_is_news(serve: Serve, watch: Watch) -> None:
    news = serve()
    news.number = 50
    watcher = watch(news.endpoint)
    seen = watcher.read_all()
    news.number = 3
    assert watcher.wait(seen).entries["p"].value == b"3"


def test_a_poll_that_is_not_answered_says_nothing_against_its_endpoint(serve: Serve, watch: Watch) -> None:
    """Silence of more than the time that it may be held is followed by a reading."""
    first, second = serve(), serve()
    watcher = watch(first.endpoint, second.endpoint)
    seen = watcher.read_all()
    assert watcher.wait(seen, HELD + 1.0 + 0.5) is seen
    assert first.asked[:3] == ["/now", "/after/1", "/now"]
    assert second.asked == []


def test_a_poll_whose_endpoint_breaks_is_gone_on_with_at_the_next(serve: Serve, watch: Watch) -> None:
    first, second = serve(), serve()
    watcher = watch(first.endpoint, second.endpoint)
    seen = watcher.read_all()
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(watcher.wait, seen)
        _until(lambda: first.polls() == 1)
        first.hangs_up = True
        first.release()
        _until(lambda: second.polls() == 1)
        second.change(2)
        assert wait.result().entries["p"].value == b"2"
    assert second.asked == ["/now", "/after/1"]


class Broken:
    """A service whose polls break when the time of a wait is over, and whose readings break at once.

    Attributes:
        asked: What it was asked.
        member: Its endpoint.
    """

    def __init__(self) -> None:
        self.client = Client("Polled", (Endpoint("127.0.0.1", 1),), lambda reply: None, headers={})
        self.asked: list[str] = []
        self.member = self.client.members[0]
        self._is_held = False

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        self.asked.append("call")
        return Snapshot({}, Revision(1, time.monotonic(), time.monotonic()))

    def open_reading(self, prefix: str, timeout: float) -> Any:
        self.asked.append("reading")
        self._is_held = False
        return self

    def open_poll(self, prefix: str, since: Snapshot, timeout: float) -> Any:
        self.asked.append("poll")
        self._is_held = True
        return self

    def receive(self, deadline: float) -> None:
        if self._is_held:
            time.sleep(max(0.0, deadline - time.monotonic()))
        raise EndpointError("it broke", applied=True)

    def close(self) -> None:
        """Nothing is open."""


def test_after_a_poll_that_has_broken_the_next_wait_reads() -> None:
    """The service may have lost what it had, and a poll for what is newer than that would hear of nothing. Its only
    endpoint may have ended a connection: it is called once more."""
    service = Broken()
    watch = PollWatch(service, "p")
    seen = service.read_all("p", CALL)
    for _ in range(2):
        assert watch.wait(seen, time.monotonic() + 0.1) is seen
    assert service.asked == ["call", "poll", "reading", "call", "poll"]


def test_a_failure_reaches_the_waiter_and_the_next_wait_goes_on(serve: Serve, watch: Watch) -> None:
    news = serve()
    watcher = watch(news.endpoint)
    seen = watcher.read_all()
    news.status = 503
    news.is_eager = True
    with pytest.raises(RendezvousConnectionError, match="it has no leader"):
        watcher.wait(seen)
    news.status = 200
    news.is_eager = False
    news.change(2)
    assert watcher.wait(seen).entries["p"].value == b"2"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), OSError("odd")], ids=repr)
def test_what_an_interrupt_has_lost_is_read_again(serve: Serve, watch: Watch, interrupt: BaseException) -> None:
    news = serve()
    watcher = watch(news.endpoint)
    seen = watcher.read_all()
    assert watcher.wait(seen, 0.05) is seen
    watcher.failure = interrupt
    news.change(2)
    with pytest.raises(type(interrupt)):
        watcher.wait(seen)
    assert watcher.wait(seen).entries["p"].value == b"2"
    assert news.asked == ["/now", "/after/1", "/now"]


def test_a_poll_that_brought_nothing_is_not_repeated_at_once(
    serve: Serve, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polls, "PAUSE", 0.1)
    news = serve()
    news.is_eager = True
    watcher = watch(news.endpoint)
    seen = watcher.read_all()
    assert watcher.wait(seen, 1.0) is seen
    assert 2 <= news.polls() <= 11


def test_closing_ends_a_wait(serve: Serve, watch: Watch) -> None:
    news = serve()
    watcher = watch(news.endpoint)
    seen = watcher.read_all()
    with ThreadPoolExecutor(1) as pool:
        wait = pool.submit(watcher.wait, seen, 60)
        _until(lambda: news.polls() == 1)
        watcher.close()
        with pytest.raises(RendezvousConnectionError, match="was closed"):
            wait.result(1)


@pytest.mark.parametrize("timeout", [1e9, float("inf")])
def test_any_timeout_will_do(serve: Serve, watch: Watch, timeout: float) -> None:
    news = serve()
    watcher = watch(news.endpoint)
    seen = watcher.wait(Snapshot(), timeout)
    news.change(2)
    assert watcher.wait(seen, timeout).entries["p"].value == b"2"
