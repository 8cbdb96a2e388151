"""How rdzv finds and makes the backend."""

from contextlib import closing
from pathlib import Path

import pytest
from rdzv_core.backend import ANY, Capability
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import load_backend_plugin

from rdzv_sqlite import SqliteBackend, create_backend
from rdzv_sqlite.paths import default_path


def test_it_is_found_by_name() -> None:
    plugin = load_backend_plugin("sqlite")
    assert plugin.create_backend is create_backend
    assert plugin.backend_type is SqliteBackend
    assert plugin.describe_endpoint(plugin.default_endpoint or "").startswith(f"{default_path()} (")


def test_every_capability_is_declared_or_explained() -> None:
    assert SqliteBackend.capabilities | SqliteBackend.unsupported.keys() == set(Capability)
    assert not SqliteBackend.capabilities & SqliteBackend.unsupported.keys()


def test_parameters_make_the_backend(path: Path) -> None:
    # An option that is not the backend's is rdzv's affair.
    params = RendezvousParameters("sqlite", str(path), "job/7", 1, 2, prefix="mine", join_timeout=5)
    backend, store = create_backend(params)
    assert store is None
    with closing(backend):
        assert not path.exists()
        backend.put("greeting", b"hello", expect=ANY, timeout=5)
    with closing(SqliteBackend(str(path), "job/7", prefix="mine")) as same:
        assert same.read_all("greeting", timeout=5).entries
    with closing(SqliteBackend(str(path), "job/7")) as other:
        assert not other.read_all("greeting", timeout=5).entries


def test_runs_do_not_meet(path: Path) -> None:
    with closing(SqliteBackend(str(path), "a")) as a, closing(SqliteBackend(str(path), "a/b")) as b:
        a.put("key", b"", expect=ANY, timeout=5)
        assert b.read("key", timeout=5) is None


@pytest.mark.parametrize(
    "endpoint",
    [
        "localhost:29400", "10.0.0.1:80", "[::1]:80", "host1:2379,host2:2379", "10.0.0.1", "[::1]", "node-1.rack:1",
        "node1,node2:2379", "localhost:", "node1:123456", "::1:29400", "fe80::1%eth0", "[fe80::1%eth0]", "tcp:node1:1",
        "http://node1:29400", "tcp://node1", "https://a:1,https://b:2",
    ],
)  # fmt: skip
def test_the_address_of_a_server_is_no_file(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RendezvousParameterError, match=r"looks like the address of a server.*one machine.*etcd-v3"):
        load_backend_plugin("sqlite").create_backend(RendezvousParameters("sqlite", endpoint, "run", 1, 1))
    assert list(tmp_path.iterdir()) == []
    # The way out that the message gives.
    _usable(f"./{endpoint}")


@pytest.mark.parametrize("endpoint", ["root:hunter2@db1:2379", "root:hunter2@db1", "root:hunter2@10.0.0.1"])
def test_the_login_at_a_server_is_not_shown(endpoint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=r"'\*\*\*@[^']*' looks like the address of a server") as refused:
        _usable(endpoint)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "endpoint",
    ["jobs.db", "./localhost:29400", "a:b", "/tmp/run:1", "v1.2.db", "jobs", "a,b", "/tmp/d/a,b:1", "d/a:1,b", "a@b"],
)
def test_a_file_may_have_any_other_name(endpoint: str) -> None:
    _usable(endpoint)


def _usable(endpoint: str) -> None:
    backend, _ = create_backend(RendezvousParameters("sqlite", endpoint, "run", 1, 1))
    backend.close()


def test_the_endpoint_is_described_by_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = load_backend_plugin("sqlite").describe_endpoint
    monkeypatch.chdir(path.parent)
    assert describe(path.name) == f"{path.resolve()} (a file: it serves the processes of this machine only)"
    assert describe("").startswith(default_path())


def test_a_database_that_is_not_there_is_not_made_unless_wanted(path: Path) -> None:
    params = RendezvousParameters("sqlite", str(path), "run", 1, 1, create="false")
    backend, _ = create_backend(params)
    with closing(backend):
        with pytest.raises(RendezvousParameterError, match=f"no database '{path}'.*create=true"):
            backend.read_all("control", timeout=5)
        assert list(path.parent.iterdir()) == []
        with closing(SqliteBackend(str(path), "run")) as maker:
            maker.put("key", b"", expect=ANY, timeout=5)
        assert backend.read("key", timeout=5) is not None
