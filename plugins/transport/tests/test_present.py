"""What stands in files is read again when they have changed, and stays what it was when they cannot be used."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from rdzv_core import Option, RendezvousParameterError, parse_options

from rdzv_transport import Present

KNOWN = (Option("password", "text", None, "What.", secret=True),)


def _write(path: Path, content: bytes) -> None:
    """Another file takes its place."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.chmod(0o600)
    os.replace(new, path)


def _secret(**given: object) -> Present[str]:
    return Present.secret(parse_options(given, KNOWN)["password"])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    _write(path, b"old\n")
    return path


@pytest.fixture
def password(file: Path) -> Present[str]:
    """What a backend gets that follows the file."""
    return _secret(password_file=str(file))


def test_another_file_in_its_place_is_read(file: Path, password: Present[str]) -> None:
    assert password() == "old"
    _write(file, b"new\n")
    assert password() == "new"


def test_a_file_that_is_written_to_is_read(file: Path, password: Present[str]) -> None:
    file.write_bytes(b"longer\n")
    assert password() == "longer"


def test_a_link_to_another_folder_is_followed(tmp_path: Path) -> None:
    """So Kubernetes changes a secret."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        _write(tmp_path / name / "password", name.encode())
    (tmp_path / "now").symlink_to("one")
    password = _secret(password_file=tmp_path / "now" / "password")
    assert password() == "one"
    (tmp_path / "then").symlink_to("two")
    os.replace(tmp_path / "then", tmp_path / "now")
    assert password() == "two"


def test_what_did_not_change_is_not_read(file: Path) -> None:
    read: list[bytes] = []

    def make() -> int:
        read.append(file.read_bytes())
        return len(read)

    value = Present([str(file)], make)
    assert [value(), value()] == [1, 1]
    _write(file, b"old\n")
    assert [value(), value()] == [2, 2]


def _remove(path: Path) -> None:
    path.unlink()


def _make_unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _empty(path: Path) -> None:
    _write(path, b"")


def _garble(path: Path) -> None:
    _write(path, b"hunter2\nhunter3")


@pytest.mark.parametrize(
    ("corrupt", "complaint"),
    [
        (_remove, "' cannot be read any more: No such file or directory"),
        (_make_unreadable, "' is no regular file any more"),
        (_make_a_pipe, "' is no regular file any more"),
        (_empty, "' is empty"),
        (_garble, "' has more than one line; a secret is one"),
    ],
)
def test_what_cannot_be_used_leaves_the_old_one_with_one_warning(
    file: Path,
    password: Present[str],
    caplog: pytest.LogCaptureFixture,
    corrupt: Callable[[Path], None],
    complaint: str,
) -> None:
    corrupt(file)
    assert [password(), password()] == ["old", "old"]
    (warning,) = (record.message for record in caplog.records)
    assert f"{file}{complaint}. What was read before stays in force." in warning
    assert "hunter" not in warning
    if file.is_dir():
        file.rmdir()
    _write(file, b"new\n")
    assert password() == "new"
    corrupt(file)
    assert password() == "new"
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2


def test_two_files_change_as_one(tmp_path: Path) -> None:
    """Between the two there is nothing that fits."""
    left, right = tmp_path / "left", tmp_path / "right"

    def fitting() -> bytes:
        if left.read_bytes() != right.read_bytes():
            raise RendezvousParameterError("They do not fit.")
        return left.read_bytes()

    _write(left, b"1")
    _write(right, b"1")
    pair = Present([str(left), str(right)], fitting)
    _write(left, b"2")
    assert pair() == b"1"
    _write(right, b"2")
    assert pair() == b"2"


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(b"hunter2\n",))
    writer.start()
    password = _secret(password_file=fifo)
    writer.join()
    assert [password(), password()] == ["hunter2", "hunter2"]


def test_what_is_made_of_a_value_changes_with_it(
    file: Path, password: Present[str], caplog: pytest.LogCaptureFixture
) -> None:
    def number(text: str) -> int:
        if not text.isdigit():
            raise RendezvousParameterError("No number.")
        return int(text)

    _write(file, b"1")
    made = password.then(number)
    assert made() == 1
    _write(file, b"two")
    assert [made(), made()] == [1, 1]
    assert [record.message for record in caplog.records] == ["No number. What was read before stays in force."]
    _write(file, b"3")
    assert made() == 3


def test_what_is_given_itself_never_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    password = _secret(password="hunter2")
    assert (password(), password.files) == ("hunter2", ())
    assert "hunter2" not in repr(password)
    monkeypatch.setenv("RDZV_PASSWORD", "of the environment")
    assert _secret()() == "of the environment"


def test_a_change_between_the_options_and_the_first_use_is_seen(file: Path) -> None:
    text = parse_options({"password_file": file}, KNOWN)["password"]
    _write(file, b"new")
    assert Present.secret(text)() == "new"
    assert text == "old"
