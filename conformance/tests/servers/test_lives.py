"""What holds for every server and cluster: they start, stop, crash, freeze, come back, and leave nothing."""

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]
from kazoo.exceptions import KazooException, NoNodeError  # type: ignore[import-untyped]

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import (
    ConsulClient,
    ConsulCluster,
    ConsulServer,
    EtcdClient,
    EtcdCluster,
    EtcdServer,
    LocalCluster,
    ServiceFailedError,
    ZooKeeperCluster,
    ZooKeeperServer,
    require_service,
)

Server = Any


class ZooKeeperClient:
    """What the other clients can, for ZooKeeper: each call has a session of its own."""

    def __init__(self, url: str, *, timeout: float) -> None:
        self._endpoint = url.removeprefix("http://")
        self._timeout = timeout

    def get(self, key: str) -> bytes | None:
        """The value of one key, or None."""
        with self._connected() as client:
            # Of the others in a cluster, this one may not have heard yet.
            client.sync(f"/{key}")
            try:
                value: bytes = client.get(f"/{key}")[0]
            except NoNodeError:
                return None
            return value

    def put(self, key: str, value: bytes) -> None:
        """Write one key, whatever is there."""
        with self._connected() as client:
            client.ensure_path(f"/{key}")
            client.set(f"/{key}", value)

    @contextmanager
    def _connected(self) -> Iterator[KazooClient]:
        host, _, port = self._endpoint.partition(":")
        # Kazoo does not tell a refused connection from a silent one.
        socket.create_connection((host, int(port)), self._timeout).close()
        client = KazooClient(self._endpoint, self._timeout)
        try:
            client.start(self._timeout)
            yield client
        except client.handler.timeout_exception as error:
            raise TimeoutError(str(error)) from error
        except KazooException as error:
            raise ConnectionError(repr(error)) from error
        finally:
            client.stop()
            client.close()


@dataclass(frozen=True)
class Kind:
    """One of them."""

    server: type[ConsulServer | EtcdServer | ZooKeeperServer]
    cluster: Callable[..., LocalCluster[Any]]
    program: str
    wrong: dict[str, Any]
    """Options with which it does not start,"""
    complaint: str
    """and what its log says then."""
    ready: str
    """What its log says when it starts."""
    client: Callable[..., EtcdClient | ConsulClient | ZooKeeperClient]

    def write(self, server: Server, value: bytes = b"1") -> None:
        """Write something."""
        self.client(f"http://{server.get_endpoint()}", timeout=5).put("a", value)

    def reads(self, server: Server, seconds: float = 5, value: bytes = b"1") -> bool:
        """Whether it serves, and what was written is there."""
        return self.client(f"http://{server.get_endpoint()}", timeout=seconds).get("a") == value


KINDS = {
    "consul": Kind(
        *(ConsulServer, ConsulCluster, "consul", {"settings": {"no_such_setting": 1}}, "code 1(?s:.*)no_such_setting"),
        *("Consul agent running", ConsulClient),
    ),
    "etcd": Kind(
        *(EtcdServer, EtcdCluster, "etcd", {"extra_args": ["--no-such-flag"]}, "code 2(?s:.*)no-such-flag"),
        *("ready to serve client requests", EtcdClient),
    ),
    "zookeeper": Kind(
        *(ZooKeeperServer, ZooKeeperCluster, "java", {"settings": {"tickTime": "soon"}}, "code (?s:.*)soon"),
        *("running in standalone mode", ZooKeeperClient),
    ),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each of them; without its program its tests are skipped."""
    kind: Kind = request.param
    require_service(kind.server)
    return kind


@pytest.fixture
def server(kind: Kind) -> Iterator[Server]:
    """One that serves."""
    with kind.server() as server:
        yield server


def test_it_serves_with_the_names_of_pytorchs_server(kind: Kind, server: Server) -> None:
    assert server.get_host() == "127.0.0.1"
    assert server.get_endpoint() == f"127.0.0.1:{server.get_port()}"
    assert os.readlink(f"/proc/{server.pid}/exe").endswith(kind.program)
    with pytest.raises(RuntimeError, match="was started already"):
        server.start()
    with pytest.raises(RuntimeError, match="Call `start` first"):
        kind.server().kill()


def test_crash_and_restart_keep_port_and_data(kind: Kind, server: Server) -> None:
    kind.write(server)
    server.kill()
    assert not server.is_running()
    with pytest.raises(OSError, match="refused"):
        kind.reads(server)
    server.restart()
    assert kind.reads(server)
    server.terminate()
    assert not server.is_running()
    server.restart()
    assert kind.reads(server)


def test_paused_server_answers_nothing_until_resumed_and_can_be_stopped(kind: Kind, server: Server) -> None:
    kind.write(server)
    server.pause()
    with pytest.raises(TimeoutError):
        kind.reads(server, 0.2)
    assert server.is_running()
    server.resume()
    assert kind.reads(server)
    server.pause()
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5


def test_stop_leaves_nothing_and_a_new_start_is_new(kind: Kind, server: Server) -> None:
    kind.write(server)
    folder, pid, port = server._folder, server.pid, server.get_port()
    server.stop()
    server.stop()
    assert not folder.exists()
    assert not Path(f"/proc/{pid}").exists()
    assert not server.is_running()
    assert server.get_port() == -1
    server.start()
    assert server.get_port() != port
    assert not kind.reads(server)


def test_failure_shows_the_log_and_leaves_nothing(kind: Kind) -> None:
    server = kind.server(**kind.wrong)
    with pytest.raises(ServiceFailedError, match=f"exit {kind.complaint}"):
        server.start(num_retries=1)
    assert not server.is_running()
    assert server._folder is None


def test_data_dir_and_log_of_the_user_are_kept(kind: Kind, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        server = kind.server(tmp_path / "mine")
        server.start(stderr=log)
        kind.write(server)
        server.stop()
    assert kind.ready in (tmp_path / "log").read_text()
    assert any((tmp_path / "mine").iterdir())
    server = kind.server(str(tmp_path / "mine"))
    server.start(stderr=subprocess.DEVNULL)
    assert kind.reads(server)
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5


def test_cluster_survives_its_leaders_death_and_freezing_and_heals(kind: Kind) -> None:
    with kind.cluster(3) as cluster:
        assert len(set(cluster.endpoints)) == 3
        assert cluster.get_endpoint() == ",".join(cluster.endpoints)
        first = cluster.leader()
        kind.write(first)
        first.kill()
        second = cluster.leader()
        assert second is not first
        eventually(lambda: _serves(kind, second), "the new leader to serve")
        assert cluster.calls().total() >= 1
        kind.write(second, b"2")
        first.restart()
        eventually(lambda: _serves(kind, first, b"2"), "the old leader to serve again")
        assert not first.is_leader()
        third = cluster.leader()
        third.pause()
        assert cluster.leader() is not third
        for member in cluster.members[:2]:
            member.kill()
        # A leader steps down once it has not heard of a majority for an election timeout.
        eventually(lambda: not cluster.members[2].is_leader(), "the last member to lead no more")
        with pytest.raises(TimeoutError, match="1 of 3 members run"):
            cluster.leader(timeout=0.2)
        cluster.heal()
        assert cluster.leader() in cluster.members
        pids = [member.pid for member in cluster.members]
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the members to end")


def _serves(kind: Kind, server: Server, value: bytes = b"1") -> bool:
    try:
        return kind.reads(server, value=value)
    except OSError:
        return False
