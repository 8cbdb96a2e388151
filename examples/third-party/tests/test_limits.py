"""What the README says of this backend alone."""

import time
from pathlib import Path

import pytest
from rdzv import get_rendezvous_handler
from rdzv_conformance.processes import Link, Processes
from rdzv_core import (
    ABSENT,
    ANY,
    PutOutcome,
    RendezvousConnectionError,
    RendezvousParameterError,
    RendezvousParameters,
    RendezvousStateError,
)

from rdzv_directory import DirectoryBackend
from rdzv_directory.lock import locked
from rdzv_directory.plugin import BACKEND


def test_a_directory_that_is_not_there_is_named_and_not_made(
    tmp_path: Path,
) -> None:
    place = tmp_path / "not mounted"
    with pytest.raises(RendezvousConnectionError, match="not mounted"):
        DirectoryBackend(str(place), "job").put(
            "key", b"", expect=ANY, timeout=1
        )
    assert not place.exists()


@pytest.mark.parametrize("name", ["not mounted", "file"])
def test_an_endpoint_that_is_no_directory_is_refused_at_once(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    params = RendezvousParameters(
        "directory", str(tmp_path / name), "job", 1, 1
    )
    with pytest.raises(
        RendezvousParameterError,
        match=f"{name}' is not there: make or mount it",
    ):
        BACKEND.create_backend(params)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_an_endpoint_one_is_shown() -> None:
    with pytest.raises(
        RendezvousParameterError,
        match="needs an endpoint, such as /var/lib/job, and none was given",
    ):
        get_rendezvous_handler(
            RendezvousParameters("directory", "", "job", 1, 1)
        )


def test_a_key_that_is_longer_than_a_name_of_a_file_has_a_folder_which_stays(
    tmp_path: Path,
) -> None:
    client, key = DirectoryBackend(str(tmp_path), "job"), "k" * 256
    client.put(key, b"x", expect=ABSENT, timeout=1)
    assert client.read_all(key, timeout=1).entries.keys() == {key}
    client.delete(key, timeout=1)
    assert client.read_all(key, timeout=1).entries == {}
    (folder,) = tmp_path.glob("*/keys/*")
    assert list(folder.iterdir()) == []


def test_what_cannot_be_listed_is_not_taken_for_empty(tmp_path: Path) -> None:
    client = DirectoryBackend(str(tmp_path), "job")
    client.put("key", b"x", expect=ABSENT, timeout=1)
    (keys,) = tmp_path.glob("*/keys")
    keys.rename(keys.with_name("moved"))
    keys.touch()
    with pytest.raises(
        RendezvousConnectionError, match=r"cannot be used: .*Not a directory"
    ):
        client.read_all("key", timeout=1)


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    client = DirectoryBackend(str(tmp_path), "job")
    client.put("key", b"x", expect=ABSENT, timeout=1)
    (file,) = tmp_path.glob("*/keys/key")
    file.write_bytes(b"not ours")
    with pytest.raises(RendezvousStateError, match="not ours"):
        client.read("key", timeout=1)


def test_who_is_stopped_while_writing_holds_up_writers_but_no_reader(
    tmp_path: Path,
) -> None:
    client = DirectoryBackend(str(tmp_path), "job")
    client.put("key", b"x", expect=ABSENT, timeout=1)
    (lock,) = tmp_path.glob("*/lock")

    def hold(link: Link) -> None:
        with locked(lock, 1):
            link.send()
            link.receive()

    with Processes() as processes:
        holder = processes.fork(hold)
        holder.receive()
        holder.pause()
        began = time.monotonic()
        with pytest.raises(RendezvousConnectionError, match="locked"):
            client.put("key", b"y", expect=ANY, timeout=0.3)
        assert 0.3 <= time.monotonic() - began < 2
        assert client.read_all("key", timeout=1).entries["key"].value == b"x"
        holder.kill()
        assert (
            client.put("key", b"y", expect=ANY, timeout=1).outcome
            is PutOutcome.APPLIED
        )
