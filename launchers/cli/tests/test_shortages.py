"""What a machine lacks for a moment ends no node; what it lacks for longer is a failure like any other, in words."""

import errno
import math
import os
import re
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine.tests.memory import MemoryBackend, MemoryService
from rdzv import DynamicRendezvousHandler, RendezvousParameters, RendezvousSettings, shortages
from rdzv.engine import ports
from rdzv_core.errors import RendezvousConnectionError

from rdzv_cli.agent import Agent, AgentOptions, AgentResult, ExitStatus, Restarts
from rdzv_cli.agent.guard import Guard, Streams
from rdzv_cli.command import main


@pytest.fixture(autouse=True)
def pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortages, "_PAUSE", 0.01)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lasts for a moment lasts. Only the waits take time: to start a process takes long on a busy machine."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(shortages, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(shortages, "_PATIENCE", 0.03)


def error_of(number: int) -> OSError:
    """An error of the system."""
    return OSError(number, os.strerror(number))


def run(command: list[str], say: Callable[[str], None] = lambda text: None, **options: Any) -> AgentResult:
    """Run an agent of a run of one node; `options` are those of both."""
    own = {name: options.pop(name) for name in ("join_timeout", "master_port") if name in options}
    params = RendezvousParameters("memory", "", "run", 1, 1, **own)
    node = DynamicRendezvousHandler(RendezvousSettings.from_parameters(params), MemoryBackend(MemoryService()))
    given = AgentOptions(**options)
    return Agent(node, params, command, given, say=say, restarts=Restarts(given.max_restarts)).run()


def refuse_threads(monkeypatch: pytest.MonkeyPatch, name: str, times: float) -> list[str]:
    """Have no room for threads whose names begin so, so many times; returns what was refused."""
    start, refused = threading.Thread.start, list[str]()

    def limited(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and len(refused) < times:
            refused.append(name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return refused


def refuse_processes(monkeypatch: pytest.MonkeyPatch, number: int, times: float) -> list[str]:
    """The same for processes that the guard is to start."""
    start, refused = Guard.start, list[str]()

    def limited(guard: Guard, command: list[str], environment: dict[str, str], streams: Streams) -> int:
        if len(refused) < times:
            refused.append(command[0])
            raise error_of(number)
        return start(guard, command, environment, streams)

    monkeypatch.setattr(Guard, "start", limited)
    return refused


def refuse_guards(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have no room for the guard itself."""

    def limited(command: list[str], **more: Any) -> Any:
        raise error_of(number)

    monkeypatch.setattr(subprocess, "Popen", limited)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY])
def test_a_shortage_of_processes_that_passes_ends_no_node(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refuse_processes(monkeypatch, number, 3)
    assert run(["true"]).exit_status is ExitStatus.DONE
    assert len(refused) == 3


@pytest.mark.parametrize("name", ["rdzv-agent", "rdzv-address", "rdzv-watch-", "rdzv-keep-"])
def test_a_shortage_of_threads_that_passes_ends_no_node(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refuse_threads(monkeypatch, name, 3)
    assert run(["true"]).exit_status is ExitStatus.DONE
    assert len(refused) == 3


def test_a_shortage_of_files_that_passes_ends_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = list[int]()

    def limited(*arguments: Any) -> socket.socket:
        if len(refused) < 3:
            refused.append(errno.EMFILE)
            raise error_of(errno.EMFILE)
        return socket.socket(*arguments)

    monkeypatch.setattr(ports, "socket", SimpleNamespace(**{**vars(socket), "socket": limited}))
    assert run(["true"]).exit_status is ExitStatus.DONE
    assert len(refused) == 3


def test_a_program_that_is_away_for_a_moment_ends_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, tries = tmp_path / "program", list[float]()

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 3:
            program.write_text("#!/bin/sh\n")
            program.chmod(stat.S_IRWXU)

    monkeypatch.setattr(shortages, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    assert run([str(program)]).exit_status is ExitStatus.DONE
    assert len(tries) >= 3


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EAGAIN, r"Resource temporarily unavailable \(ulimit -u is \w+, and a container has pids.max\)"),
        (errno.EMFILE, r"Too many open files \(ulimit -n is \w+\)"),
        (errno.EACCES, "Permission denied"),
        (errno.ENOEXEC, r"Exec format error \(its first line names no interpreter, as #!/bin/sh does\)"),
        (errno.ENOENT, r"No such file or directory \(it, or the interpreter that its first line names\)"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_one_that_lasts_is_a_failure_of_the_command(
    number: int, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = refuse_processes(monkeypatch, number, math.inf)
    ending = run(["true"], max_restarts=1)
    assert ending.exit_status is ExitStatus.FAILED
    assert re.fullmatch(f"true cannot be started: {words}, after 1 restart", ending.reason), ending.reason
    assert "; restart 1 of 1" in caplog.text
    # What cannot pass is not tried again.
    assert (len(refused) == 2) == (number in (errno.EACCES, errno.ENOEXEC))


def test_a_signal_ends_the_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = refuse_processes(monkeypatch, errno.EAGAIN, math.inf)

    def end() -> None:
        deadline = time.monotonic() + 30
        while not refused:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end)
    ending.start()
    assert run(["true"]).exit_status is ExitStatus.SIGNALLED
    ending.join()


@pytest.mark.usefixtures("impatient")
def test_no_room_for_the_thread_of_a_call_is_named_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch, "rdzv-agent", math.inf)
    ending = run(["true"])
    assert ending.exit_status is ExitStatus.ERROR
    assert ending.reason == "The thread 'rdzv-agent' cannot start: can't start new thread (ulimit -u, pids.max)."


def test_no_room_for_the_thread_of_a_leader_is_no_timeout_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_threads(monkeypatch, "rdzv-lead-", math.inf)
    ending = run(["true"], join_timeout=1.5)
    assert ending.exit_status is ExitStatus.ERROR
    assert re.search(
        r"1 of at least 1 node is here \(\S+\)\. The last error: The thread 'rdzv-lead-\S+' cannot start: can't start "
        r"new thread \(ulimit -u, pids\.max\)\.$",
        ending.reason,
    ), ending.reason


@pytest.mark.usefixtures("impatient")
def test_a_port_that_is_taken_is_no_outage_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("", 0)) as taken:
        ending = run(["true"], master_port=str(taken.getsockname()[1]))
    assert ending.exit_status is ExitStatus.ERROR
    assert "(master_port) can be taken on this machine: " in ending.reason


def test_a_service_that_does_not_answer_is_no_shortage() -> None:
    error = RendezvousConnectionError("no answer")
    error.__cause__ = error_of(errno.ECONNREFUSED)
    assert ExitStatus.of(error) is ExitStatus.UNREACHABLE
    error.__cause__ = error_of(errno.EMFILE)
    assert ExitStatus.of(error) is ExitStatus.ERROR


def test_no_room_for_the_announcement_of_a_drain_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, said = refuse_threads(monkeypatch, "rdzv-drain", 3), list[str]()
    # The program asks for it, so that there is a world.
    ending = run(["sh", "-c", f"kill -TERM {os.getpid()}; exec sleep 60"], said.append, drain=2.0)
    assert ending.exit_status is ExitStatus.DRAINED
    assert len(refused) == 3
    assert sum(text.startswith("asked to end") for text in said) == 1


@pytest.mark.usefixtures("impatient")
def test_every_error_of_the_system_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse_guards(monkeypatch, errno.EAGAIN)
    where = "--endpoint", str(tmp_path / "db"), "--run-id", "job", "--nnodes", "1"
    assert main(["run", *where, "--", "true"]) == ExitStatus.ERROR.value
    last = capsys.readouterr().err.splitlines()[-1]
    assert "rdzv cannot go on: Resource temporarily unavailable (ulimit -u is " in last
