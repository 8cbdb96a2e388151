"""Real ZooKeeper servers: they start, stop, crash, freeze, come back, and leave nothing."""

import os
import time
from pathlib import Path

import pytest
import trustme

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.fixtures import served
from rdzv_conformance.servers import (
    ServiceFailedError,
    ServiceMissingError,
    ZooKeeperCluster,
    ZooKeeperServer,
    ZooKeeperTls,
    require_service,
)

from .lives import check_stop


@pytest.fixture(autouse=True)
def zookeeper() -> None:
    require_service(ZooKeeperServer)


server = served(ZooKeeperServer, scope="function")


def test_it_serves_and_tells_about_itself(server: ZooKeeperServer) -> None:
    assert server.get_host() == "127.0.0.1"
    assert server.get_endpoint() == f"127.0.0.1:{server.get_port()}"
    assert os.readlink(f"/proc/{server.pid}/exe").endswith("java")
    assert "Mode: standalone" in server.ask("srvr")
    assert (server.sessions(), server.watches(), server.is_leader()) == (0, 0, False)
    before = server.calls().total()
    assert server.calls().total() > before


def test_stop_leaves_nothing_and_a_new_start_is_new(server: ZooKeeperServer) -> None:
    first = server.get_port()
    check_stop(server)
    server.start()
    assert server.get_port() != first


def test_data_dir_of_the_user_is_kept(tmp_path: Path) -> None:
    with ZooKeeperServer(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine" / "version-2").is_dir()


def test_crash_and_restart_keep_the_port(server: ZooKeeperServer) -> None:
    server.kill()
    assert not server.is_running()
    with pytest.raises(OSError, match="refused"):
        server.ask("srvr")
    server.restart()
    assert "Mode: " in server.ask("srvr")


def test_paused_server_answers_nothing_until_resumed_and_can_be_stopped(server: ZooKeeperServer) -> None:
    server.pause()
    with pytest.raises(TimeoutError):
        server.ask("srvr", timeout=0.2)
    assert server.is_running()
    server.resume()
    assert "Mode: " in server.ask("srvr")
    server.pause()
    began = time.monotonic()
    server.stop()
    assert time.monotonic() - began < 5


def test_settings_are_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASSPATH", "/no/such/place")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xmx1k")
    with ZooKeeperServer(tick_time=700, settings={"maxSessionTimeout": "12345"}, java_options=["-Dx.y=z"]) as server:
        said = server.ask("conf")
        assert "tickTime=700\n" in said
        assert "maxSessionTimeout=12345\n" in said
        assert "x.y=z" in server.ask("envi") or "-Dx.y=z" in Path(f"/proc/{server.pid}/cmdline").read_text()


def test_failure_shows_the_log_and_leaves_nothing() -> None:
    server = ZooKeeperServer(settings={"tickTime": "soon"})
    with pytest.raises(ServiceFailedError, match=r"exit code (?s:.*)soon"):
        server.start(num_retries=1)
    assert not server.is_running()
    assert server._folder is None


def test_ensemble_survives_its_leaders_death_and_takes_it_back() -> None:
    with ZooKeeperCluster(3) as cluster:
        assert len(set(cluster.endpoints)) == 3
        assert cluster.get_endpoint() == ",".join(cluster.endpoints)
        first = cluster.leader()
        first.kill()
        second = cluster.leader()
        assert second is not first
        assert cluster.calls().total() > 0
        first.restart()
        assert "Mode: follower" in first.ask("srvr")
        pids = [member.pid for member in cluster.members]
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the members to end")


def test_ensemble_without_majority_has_no_leader() -> None:
    with ZooKeeperCluster(3) as cluster:
        for member in cluster.members[:2]:
            member.kill()
        eventually(lambda: not cluster.members[2].is_leader(), "the last member to lead no more")
        with pytest.raises(TimeoutError, match="1 of 3 members run"):
            cluster.leader(timeout=0.2)
        for member in cluster.members[:2]:
            member.relaunch()
        assert cluster.leader() in cluster.members


def test_tls_has_a_port_of_its_own(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form

    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key = form.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    (tmp_path / "server.pem").write_bytes(pem + issued.cert_chain_pems[0].bytes())
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with ZooKeeperServer(tls=ZooKeeperTls(tmp_path / "server.pem", tmp_path / "ca.pem")) as server:
        assert server.get_port() == server._ports[0]
        assert f"secureClientPort={server.get_port()}\n" in server.ask("conf")


class TestFinding:
    """Where ZooKeeper is looked for."""

    @pytest.fixture
    def home(self, tmp_path: Path) -> Path:
        """An installation that was unpacked somewhere."""
        for name in ("bin/zkServer.sh", "lib/zookeeper-3.9.9.jar"):
            path = tmp_path / "zk" / name
            path.parent.mkdir(parents=True)
            path.touch(mode=0o755)
        return tmp_path / "zk"

    def test_the_variable_names_it(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RDZV_ZOOKEEPER_BINARY", str(home / "bin" / "zkServer.sh"))
        assert ZooKeeperServer.find_binary() == home / "lib"

    def test_it_is_in_path(self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RDZV_ZOOKEEPER_BINARY", raising=False)
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "zkServer.sh").symlink_to(home / "bin" / "zkServer.sh")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        assert ZooKeeperServer.find_binary() == home / "lib"

    def test_what_is_missing_is_said(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RDZV_ZOOKEEPER_BINARY", str(tmp_path / "nothing"))
        with pytest.raises(ServiceMissingError, match=r"RDZV_ZOOKEEPER_BINARY names .*zkServer\.sh"):
            ZooKeeperServer.find_binary()
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(ServiceMissingError, match="needs Java"):
            ZooKeeperServer.find_binary()
