"""The layers below HTTP: sockets with deadlines, failover, and what is kept of prefixes."""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rdzv_core.endpoints import Endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError

from rdzv_transport import EndpointError, FailoverClient, Member, Prefixes, ReplyLostError, TimedSocket
from rdzv_transport.sockets import Address, NotConnectedError


def _client(*endpoints: Endpoint, request_timeout: float = 1.0, early: int = 0) -> FailoverClient:
    return FailoverClient(
        "Echo",
        endpoints,
        tls=None,
        server_name=None,
        request_timeout=request_timeout,
        scheme="echo://",
        without_tls="tls=no",
        early=early,
    )


def _soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def ends() -> Iterator[tuple[TimedSocket, socket.socket]]:
    """A connected socket, and the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        client = _client(endpoint)
        sock = client.connect(client.members[0], _soon())
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


class Slowness:
    """Two members on the test's clock: an attempt at the first takes all the time that it has.

    Attributes:
        client: Gives an attempt a second.
        hung_up: The members whose connections have ended.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = _client(*(Endpoint(f"127.0.0.{number}", 1) for number in (1, 2)))
        for member in self.client.members:
            (member.address,) = self.client.sockets.resolve(member.endpoint, _soon())
        self.hung_up: list[Member] = []
        self.now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(self.client, "hang_up", self.hung_up.append)

    def ask(self, timeout: float, cause: type[Exception] = TimeoutError) -> None:
        """Ask the first member for half of so many seconds; it is asked last then."""
        slow, other = self.client.members

        def attempt(member: Member, deadline: float) -> None:
            if member is slow:
                self.now = deadline
                raise EndpointError("it is slow", applied=True) from cause()

        self.client.try_members(attempt, timeout)
        assert self.client.members == (other, slow)
        assert slow.failed


@pytest.fixture
def slowness(monkeypatch: pytest.MonkeyPatch) -> Slowness:
    return Slowness(monkeypatch)


class TestFailoverClient:
    ONE, OTHER = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)

    def _failing(self, asked: list[Endpoint], **kind: bool) -> Callable[[Member, float], None]:
        def attempt(member: Member, _deadline: float) -> None:
            asked.append(member.endpoint)
            raise EndpointError("it fails", **({"applied": False} | kind))

        return attempt

    def test_a_connection_is_begun_early_unless_another_one_is_being_made(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
            alone, busy = (_client(endpoint, early=1) for _ in range(2))
            alone.connect(alone.members[0], _soon())
            assert len(alone.sockets._begun) == 1
            connect = busy.sockets.connect

            def connect_meanwhile(address: Address, host: str, deadline: float) -> TimedSocket:
                monkeypatch.setattr(busy.sockets, "connect", connect)
                busy.connect(busy.members[0], deadline)
                return connect(address, host, deadline)

            monkeypatch.setattr(busy.sockets, "connect", connect_meanwhile)
            for _ in range(2):
                busy.connect(busy.members[0], _soon())
            assert not busy.sockets._begun
            for client in (alone, busy):
                client.close()

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

    @pytest.mark.parametrize(("took", "timeout"), [(0.13, 1.0), (0.0, 1.9)], ids=["it is slow", "it never answered"])
    def test_a_member_that_had_less_time_than_it_needs_keeps_its_connections(
        self, slowness: Slowness, took: float, timeout: float
    ) -> None:
        slowness.client.members[0].took = took
        slowness.ask(timeout)
        assert not slowness.hung_up

    def test_a_member_that_has_answered_no_call_keeps_its_connections_each_time(self, slowness: Slowness) -> None:
        for timeout in (0.2, 1.6):
            slowness.ask(timeout)
            slowness.client._members = slowness.client.members[::-1]
        assert not slowness.hung_up

    @pytest.mark.parametrize(
        ("took", "timeout", "seconds"),
        [(0.0, 0.5, 1.0), (0.01, 0.5, 0.25), (0.01, 0.01, 0.1), (0.2, 0.5, 0.8), (9.0, 0.5, 1.0), (0.01, 60.0, 1.0)],
        ids=["never answered", "its share", "no hiccup", "what it needs", "at most", "a long wait"],
    )
    def test_a_member_has_its_share_to_answer_or_what_it_needs(
        self, slowness: Slowness, took: float, timeout: float, seconds: float
    ) -> None:
        member = slowness.client.members[0]
        member.took = took
        assert slowness.client.time_to_answer(member, timeout) == pytest.approx(seconds)

    def test_the_only_member_has_all_its_time_to_answer(self) -> None:
        client = _client(self.ONE)
        assert client.time_to_answer(client.members[0], 0.01) == client.request_timeout

    def test_a_hiccup_costs_no_connections(self, slowness: Slowness) -> None:
        slowness.ask(0.19)
        assert not slowness.hung_up

    @pytest.mark.parametrize(
        ("took", "timeout", "cause"),
        [(0.001, 0.21, TimeoutError), (0.12, 1.0, TimeoutError), (9.0, 1.0, ConnectionError), (9.0, 2.0, TimeoutError)],
        ids=["no hiccup", "it was quicker", "it is broken", "it had its time"],
    )
    def test_a_member_that_has_failed_loses_its_connections(
        self, slowness: Slowness, took: float, timeout: float, cause: type[Exception]
    ) -> None:
        slow = slowness.client.members[0]
        slow.took = took
        slowness.ask(timeout, cause)
        assert slowness.hung_up == [slow]

    def test_a_member_that_has_become_slow_loses_its_connections_once(self, slowness: Slowness) -> None:
        slow = slowness.client.members[0]
        slow.took = 0.01
        for timeout in (0.4, 0.4, 0.8):
            slowness.ask(timeout)
            slowness.client._members = slowness.client.members[::-1]
        assert slowness.hung_up == [slow]
        assert slow.took == pytest.approx(0.4)

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


class Names:
    """A resolver for the test: which addresses a name has, each at its turn; none: it does not know it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.addresses: list[str] = []
        self.asked = 0
        resolve = socket.getaddrinfo

        def look_up(host: str, port: int, **options: Any) -> list[Any]:
            if options["flags"] == socket.AI_NUMERICHOST:
                return list(resolve(host, port, **options))
            self.asked += 1
            if not self.addresses:
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return [found for address in self.addresses for found in resolve(address, port, **options)]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    return Names(monkeypatch)


class TestOneNameWithSeveralAddresses:
    MANY = Endpoint("many", 7)

    def _attempt(self, works: Sequence[str], asked: list[str]) -> Callable[[Member, float], str]:
        """An attempt that only some addresses do; the others are silent."""

        def attempt(member: Member, _deadline: float) -> str:
            assert member.address
            asked.append(member.address.host)
            if member.address.host not in works:
                raise EndpointError("no answer", applied=False)
            return member.address.host

        return attempt

    def test_they_are_tried_as_endpoints_are(self, names: Names) -> None:
        client, asked = _client(self.MANY), list[str]()
        names.addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.1", "::1"]
        attempt = self._attempt(["127.0.0.2"], asked)
        assert client.try_members(attempt, 5) == client.try_members(attempt, 5) == "127.0.0.2"
        assert asked == ["127.0.0.1", "127.0.0.2", "127.0.0.2"]
        assert names.asked == 1
        assert [str(member) for member in client.members] == [
            "many:7 (127.0.0.2)",
            "many:7 (::1)",
            "many:7 (127.0.0.1)",
        ]
        assert client.patience == 3.0

    def test_each_has_its_time(self, names: Names) -> None:
        client, until = _client(self.MANY, Endpoint("127.0.0.3", 7)), list[float]()
        names.addresses = ["127.0.0.1", "127.0.0.2"]

        def attempt(_member: Member, deadline: float) -> None:
            until.append(deadline - began)
            raise EndpointError("no answer", applied=False)

        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError):
            client.try_members(attempt, 9)
        assert [round(each) for each in until] == [1, 1, 9]

    def test_a_name_is_looked_up_anew_when_all_have_failed(self, names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
        client, asked = _client(self.MANY), list[str]()
        hung_up = list[Member]()
        monkeypatch.setattr(client, "hang_up", hung_up.append)
        names.addresses = ["127.0.0.1", "127.0.0.2"]
        client.try_members(self._attempt(["127.0.0.1"], asked), 5)
        first, second = client.members
        client.demote(first)
        client.try_members(self._attempt(["127.0.0.2"], asked), 5)
        assert names.asked == 1
        assert not second.failed
        names.addresses = ["127.0.0.3", "127.0.0.1"]
        asked.clear()
        with pytest.raises(RendezvousConnectionError):
            client.try_members(self._attempt([], asked), 5)
        # Those that were known, each once; what the name means meanwhile, the next call asks.
        assert asked == ["127.0.0.2", "127.0.0.1"]
        assert client.try_members(self._attempt(["127.0.0.1"], asked), 5) == "127.0.0.1"
        assert asked[2:] == ["127.0.0.3", "127.0.0.1"]
        assert first in client.members
        assert second in hung_up
        assert second not in client.members
        client.demote(second)
        assert second not in client.members

    def test_where_the_resolver_fails_they_are_where_they_were(self, names: Names) -> None:
        client, asked = _client(self.MANY), list[str]()
        with pytest.raises(RendezvousConnectionError, match=r"echo://many:7: not connected: Name or service not known"):
            client.try_members(self._attempt([], asked), 5)
        names.addresses = ["127.0.0.1", "127.0.0.2"]
        with pytest.raises(RendezvousConnectionError, match=r"\(127\.0\.0\.1\): no answer; .*\(127\.0\.0\.2\): no"):
            client.try_members(self._attempt([], asked), 5)
        names.addresses = []
        assert client.try_members(self._attempt(["127.0.0.2"], asked), 5) == "127.0.0.2"
        assert names.asked == 3

    @pytest.mark.parametrize(
        ("addresses", "others", "refused"),
        [
            (["127.0.0.1", "127.0.0.2"], [], True),
            (["127.0.0.2", "127.0.0.1"], [], True),
            (["127.0.0.1"], [], False),
            (["127.0.0.2", "127.0.0.1"], [Endpoint("127.0.0.1", 7)], False),
            (["127.0.0.2", "127.0.0.1"], [Endpoint("127.0.0.2", 7)], True),
        ],
    )
    def test_one_that_takes_no_connection_says_nothing_against_a_refusal_by_the_others(
        self, names: Names, addresses: list[str], others: list[Endpoint], refused: bool
    ) -> None:
        """As of ``localhost``, where a service listens on IPv4 only. Of an endpoint of its own it does."""
        client = _client(self.MANY, *others)
        names.addresses = addresses

        def attempt(member: Member, _deadline: float) -> None:
            assert member.address
            if member.address.host == "127.0.0.1":
                raise NotConnectedError(ConnectionRefusedError(111, "Connection refused"))
            raise EndpointError("it refuses us", applied=False, denied=True)

        with pytest.raises(RendezvousConnectionError) as error:
            client.try_members(attempt, 5)
        assert isinstance(error.value, RendezvousDeniedError) is refused

    @pytest.mark.parametrize(
        ("host", "name"),
        [
            ("node1.example.", "node1.example"),
            ("fe80::1%eth0", "fe80::1"),
            ("10.0.0.7", "10.0.0.7"),
            ("b\u00fccher.example", "xn--bcher-kva.example"),
        ],
    )
    def test_certificates_and_requests_name_it_in_one_way(self, host: str, name: str) -> None:
        assert Member(Endpoint(host, 7)).name == name


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
