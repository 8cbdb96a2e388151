"""Whether a node is fit, as checks of all kinds find it."""

import argparse
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from rdzv_cli.agent import Checks
from rdzv_cli.agent import checks as module
from rdzv_cli.agent.checks import parse_check


def run(*texts: str, timeout: float = 30.0) -> str:
    """Why this machine is not fit; empty: it is."""
    return Checks([parse_check(text) for text in texts], timeout, os.environ).run() or ""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What answers as ``nvidia-smi``."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\necho 'GPU 0: H100 (UUID: GPU-1)'; echo 'GPU 1: H100 (UUID: GPU-2)'\n")
    path.chmod(0o755)
    return path


def test_a_command_line_decides_by_its_exit_code() -> None:
    assert run("true", "test 1 -lt 2 && exit 0") == ""
    assert run("true", "echo one >&2; exit 3", "echo never") == (
        "not fit: the check 'echo one >&2; exit 3' failed with exit code 3: one"
    )
    assert run("kill -9 $$") == "not fit: the check 'kill -9 $$' failed with signal SIGKILL"


def test_the_last_lines_say_why() -> None:
    failure = run("seq 1 100000; echo; exit 1")
    assert failure.endswith("failed with exit code 1: 99998 / 99999 / 100000")
    assert run(r"printf '\377\n'; exit 1").endswith(": \N{REPLACEMENT CHARACTER}")


def test_a_check_that_hangs_is_killed_with_what_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    failure = run(f"trap '' TERM; echo stuck; sleep 600 & echo $! > {tmp_path}/pid; wait", timeout=0.5)
    assert "did not end within 0.5 s, and was killed: stuck" in failure
    assert time.monotonic() - began < 10
    _gone(int((tmp_path / "pid").read_text()))


def test_a_check_that_fills_the_disk_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 1 << 20)
    assert "wrote more than 1 MiB, and was killed: mad / mad / mad" in run("yes mad", timeout=600)


def test_what_a_check_leaves_behind_is_killed(tmp_path: Path) -> None:
    assert run(f"sleep 600 & echo $! > {tmp_path}/pid") == ""
    _gone(int((tmp_path / "pid").read_text()))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no session is found without a list of processes")
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_daemon_of_a_check_is_killed_or_kept(tmp_path: Path, is_kept: bool) -> None:
    daemon = "import os; os.fork() and exit(); os.setsid(); open('pid', 'w').write(str(os.getpid()))"
    daemon = f"{sys.executable} -c \"{daemon}; os.execlp('sleep', 'sleep', '600')\""
    check = parse_check(f"cd {tmp_path}; {daemon}; while ! test -s pid; do sleep 0.02; done")
    assert Checks([check], 30, os.environ, is_kept).run() is None
    pid = int((tmp_path / "pid").read_text())
    if is_kept:
        assert "Z" not in Path(f"/proc/{pid}/stat").read_text().split()
        os.kill(pid, signal.SIGKILL)
    _gone(pid)


def _gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_agent_that_ends_waits_for_no_check() -> None:
    began = time.monotonic()
    assert Checks([parse_check("sleep 600")], 600, os.environ).run(lambda: True) is None
    assert time.monotonic() - began < 30


def test_a_check_that_cannot_be_started_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no room for another process")

    monkeypatch.setattr(module, "Workers", refuse)
    assert run("true") == "not fit: the check 'true' cannot be made: no room for another process"


def test_a_launcher_that_ignores_the_end_of_children_hides_no_failure() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run("exit 4").endswith("exit code 4")
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_disk(tmp_path: Path) -> None:
    assert run(f"disk:{tmp_path}:1", f"disk:{tmp_path}:0.5K") == ""
    assert re.search(r"exit code 1: [\d.]+[KMGT] free in .*, 900000T needed$", run(f"disk:{tmp_path}:900000T"))
    assert "No such file or directory" in run(f"disk:{tmp_path}/none:1G")


def test_port() -> None:
    with socket.create_server(("", 0)) as server:
        number = server.getsockname()[1]
        assert "Address already in use" in run(f"port:{number}")
        # A connection that has just ended is no obstacle.
        with socket.create_connection(("127.0.0.1", number)):
            server.accept()[0].close()
    assert run("port", f"port:{number}") == ""


def test_host() -> None:
    with socket.create_server(("", 0)) as server:
        number = server.getsockname()[1]
        assert run(f"host:localhost:{number}") == ""
    assert "refused" in run(f"host:127.0.0.1:{number}")
    assert run("host:no-such-host.invalid:80", timeout=5)


@pytest.mark.usefixtures("smi")
def test_gpus_that_answer() -> None:
    assert run("gpu") == ""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "NVIDIA-SMI has failed"),
        ("echo 'GPU 0: H100 (UUID: GPU-1)'; echo 'GPU 1 is lost'; exit 15", "GPU 1 is lost / 1 GPUs answer"),
        ("true", "0 GPUs answer; /dev has"),
        ("sleep 600", "did not end within 2 s"),
    ],
)
def test_a_gpu_that_does_not_answer(smi: Path, script: str, why: str) -> None:
    smi.write_text(f"#!/bin/sh\n{script}\n")
    assert why in run("gpu", timeout=2)


def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "is not installed; /dev has 0 of them" in run("gpu")


@pytest.mark.parametrize("text", ["PORT=2:3 ./check", "DISK=/a:/b df", "./host:22", "hosts.sh a:b", "true :"])
def test_a_command_line_may_have_colons(text: str) -> None:
    assert parse_check(text).command == ("/bin/sh", "-c", text)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("disk", "disk:PATH:SIZE"),
        ("disk:/x", "disk:PATH:SIZE"),
        ("disk:/x:many", "disk:PATH:SIZE"),
        ("disk::1G", "disk:PATH:SIZE"),
        ("port:0", "port:NUMBER"),
        ("port:70000", "port:NUMBER"),
        ("port:http", "port:NUMBER"),
        ("gpu:0", "gpu"),
        ("host:x", "host:NAME:PORT"),
        ("host:a:b:1", "host:NAME:PORT"),
        (" ", "an empty text is no check"),
    ],
)
def test_a_check_that_is_written_otherwise_is_named_with_its_form(text: str, form: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=form):
        parse_check(text)
