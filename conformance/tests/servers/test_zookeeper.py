"""What ZooKeeper servers have that others have not; the rest is in `test_lives`."""

import os
from pathlib import Path

import pytest
import trustme

from rdzv_conformance.fixtures import served
from rdzv_conformance.servers import ServiceMissingError, ZooKeeperServer, ZooKeeperTls, require_service


@pytest.fixture(autouse=True)
def zookeeper() -> None:
    require_service(ZooKeeperServer)


server = served(ZooKeeperServer, scope="function")


def test_it_serves_and_tells_about_itself(server: ZooKeeperServer) -> None:
    assert "Mode: standalone" in server.ask("srvr")
    assert (server.sessions(), server.watches(), server.is_leader()) == (0, 0, False)
    before = server.calls().total()
    assert server.calls().total() > before


def test_settings_are_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLASSPATH", "/no/such/place")
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xmx1k")
    with ZooKeeperServer(tick_time=700, settings={"maxSessionTimeout": "12345"}, java_options=["-Dx.y=z"]) as server:
        said = server.ask("conf")
        assert "tickTime=700\n" in said
        assert "maxSessionTimeout=12345\n" in said
        assert "x.y=z" in server.ask("envi") or "-Dx.y=z" in Path(f"/proc/{server.pid}/cmdline").read_text()


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
