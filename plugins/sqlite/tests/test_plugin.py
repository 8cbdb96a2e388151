"""How the core finds and makes the backend."""

from contextlib import closing
from pathlib import Path

from rdzv.backend import ANY, Capability
from rdzv.parameters import RendezvousParameters
from rdzv.plugins import load_backend_plugin

from rdzv_sqlite import SqliteBackend, create_backend
from rdzv_sqlite.place import default_path


def test_it_is_found_by_name() -> None:
    plugin = load_backend_plugin("sqlite")
    assert plugin.name == "sqlite"
    assert plugin.create_backend is create_backend
    assert plugin.backend_type() is SqliteBackend
    assert plugin.default_endpoint == default_path()


def test_every_capability_is_declared_or_explained() -> None:
    assert SqliteBackend.capabilities | SqliteBackend.lacking.keys() == set(Capability)
    assert not SqliteBackend.capabilities & SqliteBackend.lacking.keys()


def test_parameters_make_backend_and_store(path: Path) -> None:
    # An option that is not the backend's is the core's affair.
    params = RendezvousParameters("sqlite", str(path), "job/7", 1, 2, prefix="mine", join_timeout=5)
    backend, store = create_backend(params)
    with closing(backend):
        assert not path.exists()
        store.set("greeting", b"hello")
        assert store.get("greeting") == b"hello"
    with closing(SqliteBackend(str(path), "job/7", prefix="mine")) as same:
        assert same.read_all("store", timeout=5).entries
    with closing(SqliteBackend(str(path), "job/7")) as other:
        assert not other.read_all("store", timeout=5).entries


def test_runs_do_not_meet(path: Path) -> None:
    with closing(SqliteBackend(str(path), "a")) as a, closing(SqliteBackend(str(path), "a/b")) as b:
        a.put("key", b"", expect=ANY, timeout=5)
        assert b.read("key", timeout=5) is None
