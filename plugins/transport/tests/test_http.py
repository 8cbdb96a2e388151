"""Calls to services over HTTP: failover, deadlines, lost replies, and streams."""

import os
import queue
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_transport import (
    Client,
    EndpointError,
    OneCluster,
    Present,
    ProcessLocal,
    Reply,
    ReplyLostError,
    Request,
    Stream,
    StreamEndedError,
    TimedSocket,
    number_of,
)
from rdzv_transport.answer import LONGEST, Answer
from rdzv_transport.sockets import Address, Sockets
from rdzv_transport.stream import Lines

from .makers import closed

STREAM = Request("GET", "/stream", headers={"X": "z"})
ALIVE = Request("GET", "/alive")
GET = Request("GET", "/here?x=1")
PUT = Request("PUT", "/here", b"body", repeatable=False)


class Service:
    """A small HTTP server that answers with what it was asked.

    Attributes:
        asked: Every request line and body.
        connections: Over how many it was asked something.
        status: What it answers.
        silent: While this is set, it says nothing.
        hangs_up: Whether it hangs up instead of answering.
        lines: What it says on a stream, piece by piece; nothing ends the stream.
        ends: Whether it says that the stream has ended.
        streams: How many began.
        told: The header X of the last request.
        cluster: Its own header X.
        over: Whether all streams are to end.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.connections = 0
        self.status = 200
        self.speaks = threading.Event()
        self.speaks.set()
        self.hangs_up = False
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.ends = False
        self.streams = 0
        self.told = ""
        self.cluster = ""
        self.over = False
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                self.is_new = True

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                service.connections += self.is_new
                self.is_new = False
                service.asked.append((self.requestline, body))
                service.told = self.headers["X"]
                service.speaks.wait(10)
                if self.path == "/stream" and service.status == 200:
                    self.stream()
                    return
                self.close_connection = service.hangs_up
                if not service.hangs_up:
                    self.send_response(service.status)
                    self.send_header("X", service.cluster)
                    self.send_header("Content-Length", str(len(self.path)))
                    self.end_headers()
                    self.wfile.write(self.path.encode())

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                service.streams += 1
                self.close_connection = True
                while piece := service.lines.get():
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                if service.ends:
                    self.wfile.write(b"0\r\n\r\n")
                if service.over:
                    service.lines.put(b"")

            do_GET = answer
            do_PUT = answer

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

    def close(self) -> None:
        """End it; clients must have hung up."""
        self.speaks.set()
        self.over = True
        self.lines.put(b"")
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _check(reply: Reply) -> None:
    if reply.status == 401:
        raise EndpointError("it refuses us", applied=False, denied=True)
    if reply.status == 503:
        raise EndpointError("it has no leader", applied=False)
    if reply.status == 403:
        raise RendezvousDeniedError("Echo refused this client.")


def _client(*endpoints: Endpoint, request_timeout: float = 1.0) -> Client:
    return Client("Echo", endpoints, _check, headers={"X": "y"}, request_timeout=request_timeout)


serve = closed(Service)
connect = closed(_client, before="serve")


def _nowhere() -> Endpoint:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        return Endpoint("127.0.0.1", unused.getsockname()[1])


Serve = Callable[[], Service]
Connect = Callable[..., Client]


def test_one_connection_serves_many_calls(serve: Serve, connect: Connect) -> None:
    service = serve()
    client = connect(service.endpoint)
    assert [client.call(GET, 5, lambda reply: reply.body) for _ in range(5)] == [b"/here?x=1"] * 5
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    assert service.asked[-1] == ("PUT /here HTTP/1.1", b"body")
    assert service.connections == 1
    assert client.local_address() == "127.0.0.1"


def test_a_call_that_is_interrupted_leaves_no_connection(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = serve()
    client = connect(service.endpoint)
    client.call(GET, 5, lambda reply: reply.status)
    served, there = service.connections, len(client.sockets._open)
    with monkeypatch.context() as patch:
        patch.setattr(TimedSocket, "send", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            client.call(GET, 5, lambda reply: reply.status)
    assert len(client.sockets._open) == there - 1
    client.call(GET, 5, lambda reply: reply.status)
    assert service.connections == served + 1


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_is_needed_beside_the_first_connection_is_there(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait takes a connection, and a call beside it costs no round trip for another one."""
    service = serve()
    client = connect(service.endpoint)
    client.call(GET, 5, lambda reply: reply.status)

    def fail(*_: object) -> None:
        raise OSError("a connection that was not begun early")

    monkeypatch.setattr(TimedSocket, "connect", fail)
    for _ in range(3):
        client.open_poll(GET, 5, 5, lambda reply: reply.status)
    with pytest.raises(RendezvousConnectionError, match="not begun early"):
        client.call(GET, 5, lambda reply: reply.status)


def test_a_connection_that_was_begun_early_and_has_ended_is_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, closing(Sockets(None, None, "")) as sockets:
        address = Address(socket.AF_INET, listener.getsockname())
        for ends in (False, True):
            sockets.begin(address)
            early, _ = listener.accept()
            if ends:
                early.shutdown(socket.SHUT_RDWR)
            sockets.connect(address, "", time.monotonic() + 5).send(b"x", time.monotonic() + 5)
            with early, listener.accept()[0] if ends else early as taken:
                assert taken.recv(1) == b"x"
        sockets.begin(address)
        early, _ = listener.accept()
        sockets.abandon(address)
        with early:
            assert early.recv(1) == b""
        for _ in range(2):
            # As two threads may that have connected at once: one is enough.
            sockets.begin(address)
        kept, _ = listener.accept()
        second, _ = listener.accept()
        with kept, second:
            assert second.recv(1) == b""
            sockets.connect(address, "", time.monotonic() + 5).send(b"x", time.monotonic() + 5)
            assert kept.recv(1) == b"x"
    with closing(Sockets(None, None, "")) as sockets:
        sockets.begin(address)
        with pytest.raises(EndpointError, match="not connected"):
            sockets.connect(address, "", time.monotonic() + 5)


def test_the_next_endpoint_is_asked_and_the_one_that_failed_is_the_last(serve: Serve, connect: Connect) -> None:
    first, second = serve(), serve()
    client = connect(_nowhere(), first.endpoint, second.endpoint)
    first.status = 503
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    assert (len(first.asked), len(second.asked)) == (1, 2)


def test_what_may_have_been_applied_is_sent_once(serve: Serve, connect: Connect) -> None:
    first, second = serve(), serve()
    first.hangs_up = True
    client = connect(first.endpoint, second.endpoint)
    with pytest.raises(ReplyLostError, match=str(first.endpoint)):
        client.call(PUT, 5, lambda reply: reply.status)
    assert (len(first.asked), len(second.asked)) == (1, 0)


def test_a_refusal_by_all_differs_from_an_outage(serve: Serve, connect: Connect) -> None:
    first, second = serve(), serve()
    first.status = second.status = 401
    with pytest.raises(RendezvousDeniedError, match=r"refuses us.*refuses us"):
        connect(first.endpoint, second.endpoint).call(GET, 5, lambda reply: reply.status)
    with pytest.raises(RendezvousConnectionError, match=r"refuses us.*not connected") as outage:
        connect(first.endpoint, _nowhere()).call(GET, 5, lambda reply: reply.status)
    assert not isinstance(outage.value, RendezvousDeniedError)


def test_something_else_at_every_endpoint_is_named_and_refused(serve: Serve, connect: Connect) -> None:
    first, second = serve().endpoint, serve().endpoint
    with pytest.raises(RendezvousDeniedError, match=r"(.*HTTP 200 and '/here\?x=1'; is it Echo\?){2}"):
        connect(first, second).call(GET, 5, _foreign)
    mended = connect(first)
    mended.call(GET, 5, lambda reply: reply.status)
    for client, timeout, read in (
        (mended, 5.0, _foreign),  # the service was there before
        (connect(first, _nowhere()), 5.0, _foreign),  # it may be at the other one
        (connect(first, second), 0.9, _slow),  # the other one was not asked
    ):
        with pytest.raises(RendezvousConnectionError, match="is it Echo") as passing:
            client.call(GET, timeout, read)
        assert not isinstance(passing.value, RendezvousDeniedError)


def _foreign(reply: Reply) -> int:
    return int(reply.body)


def _slow(reply: Reply) -> int:
    time.sleep(1)
    return _foreign(reply)


def test_seconds_are_named_only_where_time_ran_out(serve: Serve, connect: Connect) -> None:
    silent = serve()
    silent.speaks.clear()
    nowhere = _nowhere()
    refused = f"http://{nowhere}: not connected: Connection refused"
    for endpoints, timeout, complaint in (
        ([nowhere], 5, f"^Echo could not be used: {refused}$"),
        ([nowhere, silent.endpoint], 0.3, rf"^Echo did not answer within (0\.[3-9]|[1-9]).* s: {refused}; .*no answer"),
        ([nowhere], 0, "^Echo was not asked: no time was left$"),
    ):
        with pytest.raises(RendezvousConnectionError, match=complaint):
            connect(*endpoints).call(GET, timeout, lambda reply: reply.status)


def test_a_silent_endpoint_costs_no_more_than_the_time(serve: Serve, connect: Connect) -> None:
    silent = serve()
    silent.speaks.clear()
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="no answer"):
        connect(silent.endpoint).call(GET, 0.3, lambda reply: reply.status)
    assert 0.2 < time.monotonic() - began < 1
    helped = connect(silent.endpoint, serve().endpoint, request_timeout=0.2)
    assert helped.call(GET, 5, lambda reply: reply.status) == 200
    assert time.monotonic() - began < 2


def test_an_address_of_a_name_that_is_silent_does_not_hide_the_others(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, resolve = serve(), socket.getaddrinfo
    port = service.endpoint.port

    def look_up(host: str, port: int, **options: Any) -> list[Any]:
        addresses = ["127.0.0.2", "127.0.0.1"] if host == "many" and not options["flags"] else [host]
        return [found for address in addresses for found in resolve(address, port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    # It takes connections, and answers nothing.
    with socket.create_server(("127.0.0.2", port)):
        client = connect(Endpoint("many", port), request_timeout=0.2)
        for _ in range(3):
            assert client.call(GET, 5, lambda reply: reply.status) == 200
    assert service.connections == 1
    assert [str(member) for member in client.members] == [f"many:{port} (127.0.0.1)", f"many:{port} (127.0.0.2)"]


def test_an_answer_that_is_cut_is_a_broken_connection(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def cut() -> None:
            listener.settimeout(5)
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

        cutting = pool.submit(cut)
        with pytest.raises(RendezvousConnectionError, match=r"connection broke: .*in the middle of an answer") as error:
            connect(Endpoint("127.0.0.1", listener.getsockname()[1])).call(GET, 1.0, lambda reply: reply.body.decode())
        assert not isinstance(error.value, RendezvousDeniedError)
        cutting.result(5)


@contextmanager
def _dripping(piece: bytes, answer: bytes = b"") -> Iterator[Endpoint]:
    """An endpoint that answers, and goes on with the same piece twenty times a second until its client hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def drip() -> None:
        with listener.accept()[0] as peer, suppress(OSError):
            peer.sendall(answer)
            while not select.select([peer], [], [], 0.05)[0] or peer.recv(1 << 16):
                peer.sendall(piece)

    with closing(listener), ThreadPoolExecutor(1) as pool:
        pool.submit(drip)
        yield Endpoint(*listener.getsockname())


@pytest.mark.parametrize(
    ("piece", "answer"),
    [
        pytest.param(b"H", b"", id="the status line"),
        pytest.param(b"A: b\r\n", b"HTTP/1.1 200 OK\r\n", id="the head"),
        pytest.param(b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", id="the body"),
        pytest.param(b"1\r\nx\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", id="chunks"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", b"", id="continue"),
    ],
)
def test_an_endpoint_that_drips_costs_no_more_than_the_time(
    serve: Serve, connect: Connect, piece: bytes, answer: bytes
) -> None:
    service = serve()
    with _dripping(piece, answer) as endpoint:
        client = connect(endpoint, service.endpoint, request_timeout=0.5)
        began = time.monotonic()
        assert client.call(GET, 5.0, lambda reply: reply.status) == 200
        assert 0.4 < time.monotonic() - began < 3.0
    assert len(service.asked) == 1


def test_closing_ends_what_is_in_progress(serve: Serve, connect: Connect) -> None:
    service = serve()
    service.speaks.clear()
    client = connect(service.endpoint)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.call, GET, 60, lambda reply: reply.status)
        while not service.asked:
            time.sleep(0.01)
        client.close()
        with pytest.raises(RendezvousConnectionError, match="was closed"):
            call.result(1)
    with pytest.raises(RendezvousConnectionError, match="was closed"):
        client.call(GET, 5, lambda reply: reply.status)


def _open(client: Client, alive: Request = ALIVE) -> Stream[bytes]:
    return client.open_stream(STREAM, 5, lambda reply: reply.body, alive)


def _lines(stream: Stream[bytes], deadline: float) -> list[bytes]:
    """The next lines; the head of the answer may come before them."""
    while not (lines := stream.receive(deadline)) and time.monotonic() < deadline:
        pass
    return lines


def _receive_all(stream: Stream[bytes], seconds: float, received: list[bytes]) -> None:
    """Until it breaks, by waits of so many seconds."""
    for _ in range(100):
        received += stream.receive(_soon(seconds))


def _soon(seconds: float = 5) -> float:
    return time.monotonic() + seconds


def test_a_stream_gives_lines_as_they_come_and_a_wait_can_be_taken_up_again(serve: Serve, connect: Connect) -> None:
    service = serve()
    client = connect(service.endpoint)
    stream = _open(client)
    assert stream.receive(_soon(0.05)) == []
    service.lines.put(b"1\n2")
    assert _lines(stream, _soon()) == [b"1"]
    assert stream.receive(_soon(0.05)) == []
    assert stream.receive(0) == []
    service.lines.put(b"2\n")
    assert stream.receive(_soon()) == [b"22"]
    assert service.told == "z"
    # Calls go on beside it.
    assert client.call(GET, 5, lambda reply: reply.status) == 200
    service.lines.put(b"3\n4\n")
    service.lines.put(b"")
    received: list[bytes] = []
    complaint = f"^Echo could not be used: http://{service.endpoint}: the connection ended$"
    with pytest.raises(RendezvousConnectionError, match=complaint):
        _receive_all(stream, 5, received)
    assert received == [b"3", b"4"]
    stream.close()
    stream.close()
    assert len(client.sockets._open) == 1


def test_a_stream_ends_with_its_client_and_the_calls_that_wait_for_it(serve: Serve, connect: Connect) -> None:
    service = serve()
    client = connect(service.endpoint)
    stream = _open(client)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(_lines, stream, _soon(60))
        while not service.streams:
            time.sleep(0.01)
        client.close()
        with pytest.raises(RendezvousConnectionError, match="ended"):
            received.result(1)
    stream.close()
    assert not client.sockets._open
    with pytest.raises(RendezvousConnectionError, match="was closed"):
        _open(client)


def test_a_stream_leaves_an_endpoint_that_fails_a_call(serve: Serve, connect: Connect) -> None:
    first, second = serve(), serve()
    client = connect(first.endpoint, second.endpoint)
    stream = _open(client)
    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(_lines, stream, _soon(60))
        while not first.streams:
            time.sleep(0.01)
        first.status = 503
        assert client.call(GET, 5, lambda reply: reply.status) == 200
        with pytest.raises(RendezvousConnectionError, match="ended"):
            received.result(1)
    stream.close()
    second.lines.put(b"here\n")
    with closing(_open(client)) as moved:
        assert _lines(moved, _soon()) == [b"here"]


def test_a_stream_that_breaks_makes_its_endpoint_the_last(serve: Serve, connect: Connect) -> None:
    first, second = serve(), serve()
    client = connect(first.endpoint, second.endpoint)
    first.lines.put(b"")
    with closing(_open(client)) as stream, pytest.raises(RendezvousConnectionError, match="ended"):
        _lines(stream, _soon())
    assert client.call(GET, 5, lambda reply: reply.status) == 200
    assert (len(first.asked), len(second.asked)) == (1, 1)


@pytest.mark.parametrize("may_end", [True, False])
def test_a_stream_that_its_service_ends_says_nothing_against_its_endpoint_if_it_may(
    serve: Serve, connect: Connect, may_end: bool
) -> None:
    first, second = serve(), serve()
    client = connect(first.endpoint, second.endpoint)
    first.ends = True
    with closing(client.open_stream(STREAM, 5, lambda reply: reply.body, ALIVE, may_end=may_end)) as stream:
        first.lines.put(b"1\n")
        first.lines.put(b"")
        assert _lines(stream, _soon()) == [b"1"]
        assert stream.headers
        with pytest.raises(StreamEndedError if may_end else RendezvousConnectionError):
            _lines(stream, _soon())
    assert client.call(GET, 5, lambda reply: reply.status) == 200
    assert len(second.asked) == (0 if may_end else 1)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (KeyError("x"), RendezvousDeniedError, "did not answer as Echo does"),
        (RendezvousDeniedError("no"), RendezvousDeniedError, "^no$"),
    ],
)
def test_what_the_head_of_a_stream_says_may_be_refused(
    serve: Serve, connect: Connect, error: Exception, kind: type[Exception], says: str
) -> None:
    service = serve()

    def begin(reply: Reply) -> None:
        assert (reply.status, reply.body) == (200, b"")
        raise error

    with closing(connect(service.endpoint).open_stream(STREAM, 5, lambda _: b"", ALIVE, begin=begin)) as stream:
        with pytest.raises(kind, match=says):
            stream.receive(_soon())
        service.lines.put(b"")


def test_an_endpoint_that_is_silent_on_a_stream_is_asked_whether_it_lives(serve: Serve, connect: Connect) -> None:
    service = serve()
    with closing(_open(connect(service.endpoint, request_timeout=0.2))) as stream:
        service.lines.put(b"1\n")
        assert _lines(stream, _soon()) == [b"1"]
        assert stream.receive(_soon(0.3)) == []
        assert len(service.asked) == 1
        assert stream.receive(_soon()) == []
        assert [line for line, _ in service.asked] == ["GET /stream HTTP/1.1", "GET /alive HTTP/1.1"]
        service.speaks.clear()
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match=r"no answer within 0\.2 s"):
            stream.receive(_soon())
        assert 0.2 < time.monotonic() - began < 2


def test_silence_adds_up_over_waits_that_are_too_short_for_an_answer(serve: Serve, connect: Connect) -> None:
    service = serve()
    service.speaks.clear()
    with closing(_open(connect(service.endpoint, request_timeout=0.2))) as stream:
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match="no answer"):
            _receive_all(stream, 0.05, [])
        assert 0.4 < time.monotonic() - began < 2


def test_a_stream_is_refused_or_answered_by_something_else(serve: Serve, connect: Connect) -> None:
    service, other = serve(), serve()
    for status, complaint in ((401, "refuses us"), (404, "HTTP 404 and '/stream'; is it Echo")):
        service.status = other.status = status
        with closing(_foreign_stream(connect(service.endpoint))) as stream:
            with pytest.raises(RendezvousDeniedError, match=complaint):
                stream.receive(_soon())
            began = time.monotonic()
            with pytest.raises(RendezvousDeniedError, match=complaint):
                stream.receive(_soon())
            assert time.monotonic() - began < 0.5
        with closing(_foreign_stream(connect(service.endpoint, other.endpoint))) as stream:
            with pytest.raises(RendezvousConnectionError, match=complaint) as passing:
                stream.receive(_soon())
            assert not isinstance(passing.value, RendezvousDeniedError)


def _foreign_stream(client: Client) -> Stream[int]:
    return client.open_stream(STREAM, 5, _foreign, ALIVE)


def test_a_stream_that_is_not_answered_cannot_be_opened(connect: Connect) -> None:
    with pytest.raises(RendezvousConnectionError, match="not connected: Connection refused"):
        _open(connect(_nowhere(), _nowhere()))


def test_any_timeout_will_do(serve: Serve, connect: Connect) -> None:
    for timeout in (1e9, float("inf")):
        service = serve()
        client = connect(service.endpoint, request_timeout=timeout)
        assert client.call(GET, timeout, lambda reply: reply.status) == 200
        with closing(client.open_stream(STREAM, timeout, lambda reply: reply.body, ALIVE)) as stream:
            service.lines.put(b"1\n")
            assert _lines(stream, timeout) == [b"1"]
            service.lines.put(b"")


_HEAD = b"HTTP/1.1 200 OK\r\nDate: today\r\nTransfer-Encoding: Chunked\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_how_the_bytes_are_cut(size: int) -> None:
    # Three chunks: a line and a half, the other half, an empty line and a line that nothing ends; then the last chunk.
    chunks = b'a;ext=1\r\n{"a":1}\n{"\r\n' + b'5\r\nb":2}\r\n' + b'9\r\n\n\n{"c":3}\r\n' + b"0\r\n\r\n"
    data = b"HTTP/1.1 100 Continue\r\n\r\n" + _HEAD + chunks
    lines = Lines()
    found = [line for start in range(0, len(data), size) for line in lines.feed(data[start : start + size])]
    assert lines.answer.status == 200
    assert found == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
    assert (bytes(lines.answer.rest), lines.ended) == (b"", "the answer ended")


def test_a_body_without_chunks_is_read_as_well() -> None:
    lines = Lines()
    assert lines.feed(b"HTTP/1.0 200 OK\r\n\r\n1\n2") == [b"1"]
    assert lines.feed(b"3\n") == [b"23"]
    assert not lines.ended
    assert lines.feed(b"4\n5") == [b"4"]
    assert lines.answer.rest == b"5"


def test_a_body_of_a_known_length_ends_with_its_last_line() -> None:
    lines = Lines()
    assert lines.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n1\n") == [b"1"]
    assert lines.feed(b"2\n3 and what follows it") == [b"2", b"3"]
    assert lines.ended == "the answer ended"


def test_the_body_of_an_error_is_kept_whole() -> None:
    lines = Lines()
    assert lines.feed(b"HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\n\r\nNot") == []
    assert (lines.answer.status, bytes(lines.answer.rest), lines.ended) == (404, b"Not", "")
    assert lines.feed(b" Found\n") == []
    assert (lines.answer.status, bytes(lines.answer.rest), lines.ended) == (404, b"Not Found\n", "the answer ended")


@pytest.mark.parametrize(
    ("data", "body", "lasts"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: Close\r\n\r\n{}", b"{}", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"{}", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\nConnection: Keep-Alive\r\n\r\n{}", b"{}", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 200 OK\r\n", b"{}", False),
        (_HEAD + b"2\r\n{}\r\n0\r\n\r\n", b"{}", True),
        (_HEAD + b"2\r\n{}\r\n0\r\nGrpc-Status: 0\r\n\r\n", b"{}", True),
        (_HEAD + b"2\r\n{}\r\n0\r\n\r\nHTTP/1.1", b"{}", False),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_an_answer_says_whether_another_request_may_follow(data: bytes, body: bytes, lasts: bool, size: int) -> None:
    answer = Answer()
    for start in range(0, len(data), size):
        answer.feed(data[start : start + size])
    assert (answer.ended, bytes(answer.rest), answer.is_persistent) == ("the answer ended", body, lasts)


def test_an_answer_of_unknown_length_ends_with_its_connection() -> None:
    answer = Answer()
    answer.feed(b"HTTP/1.1 200 OK\r\nX-Etcd-Index:  7 \r\n\r\n{}")
    assert answer.ended == ""
    answer.end()
    assert (answer.ended, bytes(answer.rest), answer.is_persistent) == ("the answer ended", b"{}", False)
    assert answer.headers == {"x-etcd-index": "7"}


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 ok\r\n\r\n",
        b"HTTP/1.1 -12\r\n\r\n",
        b"HTTP/1.1 200\r\nContent-Length: -5\r\n\r\n123456",
        b"HTTP/1.1 200\r\nContent-Length: 9999999999\r\n\r\n{}",
        _HEAD + b"zz\r\n{}\r\n",
        _HEAD + b"-1\r\n{}\r\n",
        _HEAD + b"-6\r\n{}\r\n",
        _HEAD + b"f0000000\r\n{}\r\n",
        _HEAD + b"f" * 100_000,
        b"HTTP/1.1\r\n\r\n",
        b"x" * 100_000,
    ],
)
def test_what_is_not_http_ends_the_answer(data: bytes) -> None:
    lines = Lines()
    assert lines.feed(data) == []
    assert re.search(r"broke: .*(expected|invalid)", lines.ended)


def test_lines_before_what_is_not_http_are_given_and_a_cut_one_is_not() -> None:
    lines = Lines()
    assert lines.feed(_HEAD + b'a\r\n{"a":1}\n{"\r\nzz\r\n') == [b'{"a":1}']
    assert lines.ended.startswith("the connection broke: ")


def test_a_line_that_never_ends_costs_neither_memory_nor_time() -> None:
    piece = b"%x\r\n%s\r\n" % (1 << 16, b"x" * (1 << 16))
    lines = Lines()
    lines.feed(_HEAD)
    pieces = 0
    while not lines.ended:
        assert lines.feed(piece) == []
        pieces += 1
    assert pieces == 1025  # 64 MiB
    assert "without the end of a line" in lines.ended


def test_a_child_gets_one_of_its_own() -> None:
    abandoned: list[object] = []
    closed: list[object] = []
    owned = ProcessLocal(object, abandoned.append, closed.append, "This")
    ours = owned.get()
    assert owned.get() is ours
    child = os.fork()
    if not child:
        os._exit(0 if owned.get() is not ours and abandoned == [ours] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    owned.close()
    owned.close()
    assert closed == [ours]
    assert abandoned == []
    with pytest.raises(RendezvousConnectionError, match=r"^This was closed\.$"):
        owned.get()
    assert closed == [ours], "one was made after the end, only to be closed"


def test_one_that_is_made_while_it_is_closed_is_closed_too() -> None:
    closed: list[object] = []

    def make() -> object:
        owned.close()
        return "late"

    owned = ProcessLocal(make, closed.append, closed.append, "This")
    with pytest.raises(RendezvousConnectionError, match=r"^This was closed\.$"):
        owned.get()
    assert closed == ["late"]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file with a secret that a service is shown."""
    path = tmp_path / "secret"
    path.write_text("old")
    return path


@pytest.fixture
def logged_in(serve: Serve, secret: Path) -> Iterator[tuple[Service, Client]]:
    service = serve()
    login = Present([str(secret)], lambda: {"X": secret.read_text()})
    with closing(Client("Echo", [service.endpoint], _check, headers={}, login=login)) as client:
        yield service, client


def test_a_secret_that_has_changed_goes_over_a_new_connection(logged_in: tuple[Service, Client], secret: Path) -> None:
    service, client = logged_in
    for content, connections in (("old", 1), ("old", 1), ("newer", 2), ("newer", 2)):
        secret.write_text(content)
        client.call(GET, 5, lambda reply: reply.status)
        assert (service.told, service.connections) == (content, connections)


def test_a_refusal_of_a_secret_that_has_changed_is_none(logged_in: tuple[Service, Client], secret: Path) -> None:
    service, client = logged_in
    service.status = 403
    with pytest.raises(RendezvousDeniedError):
        client.call(GET, 5, lambda reply: reply.status)
    service.speaks.clear()
    poll = client.open_poll(GET, 5, 5, lambda reply: reply.status)
    while len(service.asked) < 2:
        time.sleep(0.01)
    secret.write_text("newer")
    service.speaks.set()
    with pytest.raises(EndpointError, match="our files held before they changed: Echo refused") as refused:
        poll.receive(_soon())
    assert (refused.value.denied, refused.value.applied) == (False, False)
    with pytest.raises(RendezvousDeniedError):
        client.call(GET, 5, lambda reply: reply.status)
    assert service.told == "newer"


def test_what_has_come_of_a_poll_is_not_late_because_it_is_taken_up_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdzv_transport.poll._GRACE", 5.0)
    body = b"x" * (1 << 20)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        # It is late at once.
        with closing(Client("Echo", (endpoint,), lambda reply: None, headers={}, request_timeout=0.0)) as client:
            poll = client.open_poll(GET, 0.0, 5, lambda reply: len(reply.body))
            with listener.accept()[0] as asked:
                asked.recv(1 << 16)
                sent = pool.submit(asked.sendall, answer)
                assert poll.receive(time.monotonic()) == (len(body),)
                sent.result(5)


@pytest.fixture
def two_clusters(serve: Serve) -> Iterator[tuple[Service, Service, Client]]:
    first, second = serve(), serve()
    first.cluster, second.cluster = "1", "2"
    cluster = OneCluster(ALIVE, lambda reply: reply.headers["x"] or None)
    endpoints = [first.endpoint, second.endpoint]
    with closing(Client("Echo", endpoints, _check, headers={}, cluster=cluster, request_timeout=1.0)) as client:
        yield first, second, client


def test_another_cluster_is_asked_who_it_is_and_nothing_else(two_clusters: tuple[Service, Service, Client]) -> None:
    first, second, client = two_clusters
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    first.hangs_up = True
    for _ in range(2):
        with pytest.raises(RendezvousConnectionError, match=r"another cluster \(2\) than .* first \(1\)") as refused:
            client.call(GET, 5, lambda reply: reply.status)
        assert not isinstance(refused.value, RendezvousDeniedError)
    assert {line for line, _ in second.asked} == {"GET /alive HTTP/1.1"}
    first.hangs_up = False
    del first.asked[:]
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    # After it has failed it is asked once.
    assert [line.partition(" ")[0] for line, _ in first.asked] == ["GET", "PUT", "PUT"]


def test_an_endpoint_that_comes_back_as_another_cluster_is_written_nothing(
    two_clusters: tuple[Service, Service, Client],
) -> None:
    first, second, client = two_clusters
    second.cluster = "1"
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    for sock in list(client.sockets._open):
        sock.close()
    first.cluster = "2"
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    assert [line.partition(" ")[0] for line, _ in first.asked] == ["PUT", "GET"]
    assert [line.partition(" ")[0] for line, _ in second.asked] == ["GET", "PUT"]


def test_an_endpoint_that_changes_its_cluster_is_refused(two_clusters: tuple[Service, Service, Client]) -> None:
    first, second, client = two_clusters
    second.cluster = "1"
    assert client.call(GET, 5, lambda reply: reply.status) == 200
    first.cluster = "2"
    # Nothing was applied in our cluster, so it is sent to the other endpoint.
    assert client.call(PUT, 5, lambda reply: reply.status) == 200
    assert second.asked[-1] == ("PUT /here HTTP/1.1", b"body")
    first.cluster = ""
    second.hangs_up = True
    assert client.call(GET, 5, lambda reply: reply.status) == 200  # who tells nothing is believed


def test_who_hangs_up_on_tls_may_not_speak_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:

        def reset() -> None:
            near, _ = listener.accept()
            near.recv(1)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.close()

        hung_up = threads.submit(reset)
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        client = Client("Echo", [endpoint], _check, headers={}, tls=Present.fixed(ssl.create_default_context()))
        with pytest.raises(RendezvousConnectionError, match=r"TLS failed: .*reset.*; if .* protocol=http$"):
            client.call(GET, 5.0, lambda reply: reply.body)
        hung_up.result()
        client.close()


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
        (_HEAD, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        (_HEAD + b"0\r\n", b"A: b\r\n" * 4096),
    ],
)
def test_an_answer_that_does_not_end_is_given_up(head: bytes, piece: bytes) -> None:
    answer, given = Answer(), 0
    answer.feed(head)
    while not answer.ended and given < 2 * LONGEST:
        answer.feed(piece)
        given += len(piece)
    assert "invalid" in answer.ended
    assert given <= LONGEST + 2 * len(piece)


@pytest.mark.parametrize("value", [-1, 2**64, "9" * 20, "9" * 4301, "x", None, 1e999, float("nan"), []])
def test_what_no_service_counts_to_is_no_number(value: object) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        number_of(value)


def test_numbers_of_a_service() -> None:
    assert [number_of(value) for value in (0, "7", 2**64 - 1)] == [0, 7, 2**64 - 1]
