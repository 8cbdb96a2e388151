"""What the command writes to its standard output, where that cannot be written."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ON_FILE = ["--endpoint", "jobs.db", "--run-id", "job", "--option", "create=true"]
COMMANDS = [
    ["--version"],
    ["--help"],
    ["status", "--help"],
    ["doctor"],
    ["backends"],
    ["backends", "sqlite"],
    ["close", *ON_FILE],
    ["status", *ON_FILE],
    ["status", *ON_FILE, "--json"],
    ["status", *ON_FILE, "--watch"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
class TestOutput:
    def rdzv(self, arguments: list[str], buffered: bool, to: int, folder: Path) -> tuple[int, str]:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        ended = subprocess.run(
            [sys.executable, "-m", "rdzv", *arguments],
            env=env if buffered else {**env, "PYTHONUNBUFFERED": "1"},
            cwd=folder,
            stdout=to,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        return ended.returncode, ended.stderr

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
    def test_that_cannot_be_written_is_one_clear_error(
        self, arguments: list[str], buffered: bool, tmp_path: Path
    ) -> None:
        with open("/dev/full", "wb") as full:
            ended = self.rdzv(arguments, buffered, full.fileno(), tmp_path)
        assert ended == (7, "rdzv: The standard output cannot be written: No space left on device.\n")

    def test_that_is_not_read_any_more_ends_it_quietly(
        self, arguments: list[str], buffered: bool, tmp_path: Path
    ) -> None:
        read, write = os.pipe()
        os.close(read)
        try:
            assert self.rdzv(arguments, buffered, write, tmp_path) == (128 + signal.SIGPIPE, "")
        finally:
            os.close(write)


def run(command: list[str], folder: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, env={**os.environ, **env}, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_closed_output_is_one_clear_error(tmp_path: Path) -> None:
    ended = run(["sh", "-c", '"$0" -m rdzv backends >&-', sys.executable], tmp_path)
    assert (ended.returncode, ended.stderr) == (7, "rdzv: The standard output cannot be written: it is closed.\n")


def test_what_the_encoding_of_the_output_lacks_is_an_escape(tmp_path: Path) -> None:
    close = [sys.executable, "-m", "rdzv", "close", *ON_FILE, "--reason", "größer"]
    ended = run(close, tmp_path, PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "gr\\xf6\\xdfer (by" in ended.stdout
