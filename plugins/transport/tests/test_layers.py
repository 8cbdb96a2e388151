"""The layers below HTTP: sockets with deadlines, failover, and what is kept of prefixes."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_transport import EndpointError, FailoverClient, Member, Prefixes, ReplyLostError, TimedSocket


def _client(*endpoints: Endpoint, request_timeout: float = 1.0) -> FailoverClient:
    return FailoverClient(
        "Echo",
        endpoints,
        tls=None,
        server_name=None,
        request_timeout=request_timeout,
        scheme="echo://",
        without_tls="tls=no",
    )


def _soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def ends() -> Iterator[tuple[TimedSocket, socket.socket]]:
    """A connected socket, and the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        client = _client(endpoint)
        sock = client.sockets.connect(endpoint, _soon())
        near, _ = listener.accept()
        with near:
            yield sock, near
        client.close()


class TestTimedSocket:
    def test_what_is_there_is_received_and_nothing_else_is_waited_for_longer_than_asked(
        self, ends: tuple[TimedSocket, socket.socket]
    ) -> None:
        sock, near = ends
        assert sock.is_silent()
        began = time.monotonic()
        assert sock.receive(_soon(0.1)) is None
        assert 0.1 <= time.monotonic() - began < 1
        near.sendall(b"abc")
        assert sock.receive(_soon(), most=2) == b"ab"
        assert not sock.is_silent()
        near.close()
        assert sock.receive(_soon()) == b""
        assert not sock.is_silent()

    def test_one_thread_sends_while_another_receives(self, ends: tuple[TimedSocket, socket.socket]) -> None:
        sock, near = ends
        with ThreadPoolExecutor(1) as threads:
            received = threads.submit(sock.receive, _soon())
            sock.send(b"question", _soon())
            assert near.recv(100) == b"question"
            near.sendall(b"answer")
            assert received.result(5) == b"answer"

    def test_a_peer_that_takes_nothing_is_waited_for_until_the_deadline(
        self, ends: tuple[TimedSocket, socket.socket]
    ) -> None:
        sock, _ = ends
        with pytest.raises(TimeoutError):
            sock.send(bytes(1 << 26), _soon(0.2))

    def test_closing_ends_the_thread_that_waits_and_frees_the_socket_after_it(
        self, ends: tuple[TimedSocket, socket.socket]
    ) -> None:
        sock, _ = ends
        with ThreadPoolExecutor(1) as threads:
            received = threads.submit(sock.receive, _soon(30))
            time.sleep(0.05)
            sock.close()
            assert received.result(5) == b""
        assert sock._sock.fileno() == -1
        assert sock.receive(_soon()) == b""
        with pytest.raises(OSError, match="closed"):
            sock.send(b"x", _soon())


class TestFailoverClient:
    ONE, OTHER = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)

    def _failing(self, asked: list[Endpoint], **kind: bool) -> Callable[[Member, float], None]:
        def attempt(member: Member, _deadline: float) -> None:
            asked.append(member.endpoint)
            raise EndpointError("it fails", **({"applied": False} | kind))

        return attempt

    def test_each_endpoint_is_tried_once_and_the_first_that_failed_is_tried_first_again(self) -> None:
        client, asked = _client(self.ONE, self.OTHER), list[Endpoint]()
        with pytest.raises(RendezvousConnectionError, match=r"^Echo could not be used: echo://127\.0\.0\.1:1: it f"):
            client.try_members(self._failing(asked), 5)
        assert asked == [self.ONE, self.OTHER]
        assert [member.endpoint for member in client.members] == [self.ONE, self.OTHER]
        client.demote(client.members[0])
        assert client.try_members(lambda member, _: member.endpoint, 5) == self.OTHER

    def test_what_may_have_been_applied_is_not_attempted_again(self) -> None:
        client, asked = _client(self.ONE, self.OTHER), list[Endpoint]()
        with pytest.raises(ReplyLostError):
            client.try_members(self._failing(asked, applied=True), 5, repeatable=False)
        assert asked == [self.ONE]

    def test_only_a_refusal_by_all_is_one(self) -> None:
        client = _client(self.ONE, self.OTHER)
        with pytest.raises(RendezvousDeniedError, match="cannot be used"):
            client.try_members(self._failing([], denied=True), 5)
        with pytest.raises(RendezvousConnectionError, match="no time was left"):
            client.try_members(self._failing([], denied=True), 0)

    def test_what_only_the_deadline_cut_short_is_forgiven(self) -> None:
        client = _client(self.ONE)
        with client.forgiving(_soon(0)):
            raise RendezvousConnectionError
        for deadline, failure in ((_soon(), RendezvousConnectionError), (_soon(0), RendezvousDeniedError)):
            with pytest.raises(failure), client.forgiving(deadline):
                raise failure
        client.close()
        with pytest.raises(RendezvousConnectionError), client.forgiving(_soon(0)):
            raise RendezvousConnectionError


def test_prefixes_in_use_are_kept_and_of_the_others_those_that_were_used_last() -> None:
    retired: list[list[str]] = []
    prefixes = Prefixes(lambda prefix: [prefix], retired.append, idle=2)
    with prefixes.using("in use") as thing:
        for prefix in ("a", "b", "a", "c", "d"):
            with prefixes.using(prefix) as other:
                assert other == [prefix]
        assert retired == [["b"]]
        with prefixes.using("in use") as again:
            assert again is thing
        prefixes.close()
        assert sorted(retired) == [["a"], ["b"], ["c"], ["d"]]
        assert prefixes.all() == [["in use"]]
    assert retired[-1] is thing
