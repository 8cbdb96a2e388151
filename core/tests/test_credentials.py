"""Secrets come from an option, a file or a variable, are never shown, and are kept from programs."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rdzv_core import Option, RendezvousParameterError, parse_options
from rdzv_core.options import read_options

KNOWN = (Option("user", "text", None, "Which."), Option("password", "text", None, "What.", secret=True))

Keep = Callable[[bytes], Path]


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    """Writes a file that only its owner may read."""

    def keep(content: bytes) -> Path:
        path = tmp_path / "kept"
        path.write_bytes(content)
        path.chmod(0o600)
        return path

    return keep


@pytest.mark.parametrize("content", [b"hunter2", b"hunter2\n", b"hunter2\r\n"])
def test_a_file_holds_a_secret(keep: Keep, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    assert parse_options({"password_file": str(keep(content))}, KNOWN) == {"user": None, "password": "hunter2"}
    assert caplog.records == []


def test_blanks_belong_to_the_secret_and_one_line_break_does_not(keep: Keep) -> None:
    assert parse_options({"password_file": keep(b" a b \n")}, KNOWN)["password"] == " a b "
    with pytest.raises(RendezvousParameterError, match="more than one line"):
        parse_options({"password_file": keep(b"hunter2\n\n")}, KNOWN)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"hunter2\nhunter3", "more than one line"),
        (b"hunter2" * 20_000, "more than 65536 bytes; it must hold the password alone"),
        (b"hunter2\xff", "not UTF-8 from byte 7 on"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(keep: Keep, content: bytes, complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=f"^The password_file '.*kept'.*{complaint}") as refused:
        parse_options({"password_file": keep(content)}, KNOWN)
    assert "hunter" not in repr(refused.value)
    assert refused.value.__cause__ is None


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(RendezvousParameterError, match=r"password_file '.*none' cannot be read: No such file"):
        parse_options({"password_file": tmp_path / "none"}, KNOWN)
    with pytest.raises(RendezvousParameterError, match="cannot be read: Is a directory"):
        parse_options({"password_file": tmp_path}, KNOWN)


def test_a_file_that_all_may_read_is_warned_of_once(keep: Keep, caplog: pytest.LogCaptureFixture) -> None:
    path = keep(b"hunter2")
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            parse_options({"password_file": path}, KNOWN)
    assert [record.message for record in caplog.records] == [
        f"The password_file '{path}' can be read by every user of this machine. Take that away: chmod 600."
    ]


def test_what_can_be_read_only_once_is_read_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(b"hunter2\n",))
    writer.start()
    assert parse_options({"password_file": fifo}, KNOWN)["password"] == "hunter2"
    writer.join()


def test_a_variable_holds_a_secret_and_the_option_comes_first(keep: Keep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDZV_PASSWORD", "of the environment")
    monkeypatch.setenv("RDZV_USER", "is no secret")
    assert parse_options({}, KNOWN) == {"user": None, "password": "of the environment"}
    assert parse_options({"password": "given"}, KNOWN)["password"] == "given"
    assert parse_options({"password_file": keep(b"kept")}, KNOWN)["password"] == "kept"
    monkeypatch.setenv("RDZV_PASSWORD", "")
    assert parse_options({}, KNOWN)["password"] is None


def test_two_answers_are_refused(keep: Keep) -> None:
    with pytest.raises(RendezvousParameterError, match="'password' and 'password_file' are both given"):
        parse_options({"password": "hunter2", "password_file": keep(b"hunter3")}, KNOWN)


def test_the_option_for_the_file_is_known(keep: Keep) -> None:
    assert read_options({"password_file": keep(b"x")}, KNOWN, owner="b")["password"] == "x"
    with pytest.raises(RendezvousParameterError, match="Did you mean 'password_file'"):
        read_options({"pasword_file": "x"}, KNOWN, owner="b")


def test_no_message_shows_a_secret() -> None:
    with pytest.raises(RendezvousParameterError) as refused:
        Option("pin", "integer", None, "A number.", secret=True).parse("hunter2")
    assert str(refused.value) == "The option 'pin' cannot be what was given: an integer is expected, such as 3."


def test_a_secret_of_a_file_can_be_read_again(keep: Keep) -> None:
    """A backend that does not know it has a text like any other."""
    secret = parse_options(parse_options({"password_file": keep(b"old")}, KNOWN), KNOWN)["password"]
    assert (secret, f"{secret}!", type(secret.again())) == ("old", "old!", type(secret))
    keep(b"new\n")
    assert (secret, secret.again()) == ("old", "new")
    keep(b"")
    with pytest.raises(RendezvousParameterError, match=r"^The password_file '.*kept' is empty\.$"):
        secret.again()
