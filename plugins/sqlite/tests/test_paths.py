"""Where the database may be, and what is said where it may not."""

import os
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from rdzv_conformance.processes import Link, Processes
from rdzv_core.backend import ANY
from rdzv_core.errors import (
    RendezvousDeniedError,
    RendezvousError,
    RendezvousParameterError,
    RendezvousStateError,
)

from rdzv_sqlite import SqliteBackend
from rdzv_sqlite.paths import default_path, describe

UNPRIVILEGED = 65534


def put_error(path: str | Path) -> RendezvousError:
    """What a put into a database there raises."""
    with closing(SqliteBackend(str(path), "run")) as client, pytest.raises(RendezvousError) as raised:
        client.put("key", b"", expect=ANY, timeout=5)
    return raised.value


@pytest.mark.parametrize("name", ["missing/rdzv.db", "file/rdzv.db", "folder"])
def test_impossible_place(tmp_path: Path, name: str) -> None:
    tmp_path.joinpath("file").touch()
    tmp_path.joinpath("folder").mkdir()
    error = put_error(tmp_path / name)
    assert isinstance(error, RendezvousParameterError)
    assert str(tmp_path / name) in str(error)


@pytest.mark.parametrize("forbidden", ["folder", "file"])
def test_folder_of_another_user(tmp_path: Path, processes: Processes, forbidden: str) -> None:
    path = tmp_path / "rdzv.db"
    with closing(SqliteBackend(str(path), "run")) as client:
        client.put("key", b"", expect=ANY, timeout=5)
    for folder in [tmp_path, *tmp_path.parents[:3]]:
        folder.chmod(0o755)
    tmp_path.chmod(0o555 if forbidden == "folder" else 0o777)
    path.chmod(0o666 if forbidden == "folder" else 0o444)

    def put(link: Link) -> list[object]:
        if os.getuid() == 0:
            os.setuid(UNPRIVILEGED)
        error = put_error(path)
        return [type(error).__name__, str(error)]

    name, message = processes.fork(put).result()
    tmp_path.chmod(0o755)
    assert name == RendezvousDeniedError.__name__
    assert str(path) in message
    assert f"owner ({os.getuid()}) can allow it" in message
    assert [file.name for file in tmp_path.iterdir()] == ["rdzv.db"], "who may not write has left files"


@pytest.mark.skipif(os.getuid() != 0, reason="root may write into every folder, another user not into this one")
def test_a_folder_of_another_user_is_no_database(tmp_path: Path, processes: Processes) -> None:
    for folder in [tmp_path, *tmp_path.parents[:3]]:
        folder.chmod(0o755)

    def put(link: Link) -> list[object]:
        os.setuid(UNPRIVILEGED)
        error = put_error(tmp_path)
        return [type(error).__name__, str(error)]

    name, message = processes.fork(put).result()
    assert name == RendezvousParameterError.__name__
    assert f"'{tmp_path}' is a folder" in message


@pytest.mark.skipif(os.getuid() != 0, reason="only root can leave a file of another user's")
def test_a_log_of_another_user_is_named(tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "rdzv.db"
    with closing(SqliteBackend(str(path), "run")) as client:
        client.put("key", b"", expect=ANY, timeout=5)
    for folder in [tmp_path, *tmp_path.parents[:3]]:
        folder.chmod(0o755)
    tmp_path.chmod(0o777)
    path.chmod(0o666)
    for name in ("rdzv.db-wal", "rdzv.db-shm"):
        (tmp_path / name).touch(0o644)

    def put(link: Link) -> list[object]:
        os.setuid(UNPRIVILEGED)
        error = put_error(path)
        return [type(error).__name__, str(error)]

    name, message = processes.fork(put).result()
    assert name == RendezvousDeniedError.__name__
    assert f"'{path}-wal'" in message
    assert "its owner (0) or root" in message


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be a user of another group")
def test_what_is_kept_beside_it_has_the_group_of_a_database(tmp_path: Path, processes: Processes) -> None:
    path, group = tmp_path / "rdzv.db", 54321
    with closing(SqliteBackend(str(path), "run")) as client:
        client.put("key", b"", expect=ANY, timeout=5)
    for folder in [tmp_path, *tmp_path.parents[:3]]:
        folder.chmod(0o755)
    tmp_path.chmod(0o777)
    os.chown(path, UNPRIVILEGED - 1, group)
    path.chmod(0o660)

    def look(link: Link) -> None:
        os.setgroups([group])
        os.setgid(UNPRIVILEGED)
        os.setuid(UNPRIVILEGED)
        with closing(SqliteBackend(str(path), "run")) as client:
            client.wait("key", client.read_all("key", timeout=5), timeout=0.1)
            link.send("looks")
            link.receive()

    reader = processes.fork(look)
    assert reader.receive() == "looks"
    beside = sorted(tmp_path.glob("rdzv.db?*"))
    assert [file.name.rstrip("0123456789") for file in beside] == ["rdzv.db-shm", "rdzv.db-wal", "rdzv.db.fifo."]
    assert {(file.stat().st_gid, file.stat().st_mode & 0o777) for file in beside} == {(group, 0o660)}
    reader.send("go on")
    reader.result()


@pytest.mark.parametrize("kind", ["a pipe", "a second name"])
def test_what_is_no_file_of_its_own_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rdzv.db"
    if kind == "a pipe":
        os.mkfifo(path)
    else:
        with closing(SqliteBackend(str(path), "run")) as client:
            client.put("key", b"", expect=ANY, timeout=5)
        os.link(path, tmp_path / "other.db")
    error = put_error(path)
    assert isinstance(error, RendezvousStateError)
    assert ("is no database" if kind == "a pipe" else "has 2 names (hard links)") in str(error)


class TestDefault:
    """The place that is used when the user names none."""

    @pytest.fixture(autouse=True)
    def temp_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The system's, for this test."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        return tmp_path

    def test_without_a_temp_folder_only_a_file_that_is_given_can_be_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse() -> str:
            raise FileNotFoundError("No usable temporary directory found")

        monkeypatch.setattr(tempfile, "gettempdir", refuse)
        with pytest.raises(RendezvousParameterError, match=r"no temp folder for a database: No usable.*Give the path"):
            SqliteBackend("", "run")
        assert describe("").startswith("none, for there is no temp folder (a file: ")
        with closing(SqliteBackend(str(tmp_path / "jobs.db"), "run")) as client:
            client.put("key", b"", expect=ANY, timeout=5)

    def test_it_is_made_for_this_user_alone(self) -> None:
        with closing(SqliteBackend("", "run")) as client:
            assert not os.path.exists(os.path.dirname(default_path()))
            client.put("key", b"", expect=ANY, timeout=5)
            assert client.path == default_path()
            assert os.stat(os.path.dirname(default_path())).st_mode & 0o777 == 0o700
        with closing(SqliteBackend(default_path(), "run")) as client:
            assert client.read("key", timeout=5) is not None

    def test_folder_that_others_can_enter_is_refused(self) -> None:
        os.mkdir(os.path.dirname(default_path()))
        os.chmod(os.path.dirname(default_path()), 0o755)
        error = put_error("")
        assert isinstance(error, RendezvousDeniedError)
        assert "endpoint" in str(error)

    def test_folder_of_another_user_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        os.mkdir(os.path.dirname(default_path()), mode=0o700)
        folder = os.path.dirname(default_path())
        owner = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
        os.rename(folder, os.path.dirname(default_path()))
        assert isinstance(put_error(""), RendezvousDeniedError)

    def test_link_is_refused(self, temp_folder: Path) -> None:
        (temp_folder / "elsewhere").mkdir(mode=0o700)
        os.symlink(temp_folder / "elsewhere", os.path.dirname(default_path()))
        assert isinstance(put_error(""), RendezvousDeniedError)
        assert list((temp_folder / "elsewhere").iterdir()) == []
