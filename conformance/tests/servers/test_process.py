"""A guarded process never outlives its owner, whatever ends the owner."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.servers import GuardedProcess

SLEEPER = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]

OWNER = """
import os, sys, threading, time
from pathlib import Path
from rdzv_conformance.servers import GuardedProcess

def start():
    process = GuardedProcess(sys.argv[2:], output=2, folder=Path(sys.argv[1]))
    print(process.pid, process._guard.pid, flush=True)

{how}
"""
FROM_MAIN_THREAD = "start()"
FROM_THREAD_THAT_ENDS = "thread = threading.Thread(target=start); thread.start(); thread.join()"


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def owner(how: str, folder: Path) -> tuple[subprocess.Popen[str], int, int]:
    """Start an owner that starts a sleeper; its process, and the pids of the sleeper and the guard."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(how=how), str(folder), *SLEEPER], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    with process.stdout as pipe:
        sleeper, guard = map(int, pipe.readline().split())
    return process, sleeper, guard


@pytest.mark.parametrize("start", [FROM_MAIN_THREAD, FROM_THREAD_THAT_ENDS])
def test_command_dies_with_an_owner_killed_with_9(tmp_path: Path, start: str) -> None:
    folder = tmp_path / "doomed"
    folder.mkdir()
    process, sleeper, guard = owner(f"{start}\ntime.sleep(600)", folder)
    with process:
        assert alive(sleeper)
        process.kill()
    eventually(lambda: not alive(sleeper) and not alive(guard), "the command and its guard to end with their owner")
    assert not folder.exists()


def test_command_dies_with_its_owner_although_a_fork_of_the_owner_lives(tmp_path: Path) -> None:
    process, sleeper, _ = owner("start()\nif os.fork(): time.sleep(600)\ntime.sleep(3)", tmp_path)
    with process:
        process.kill()
    eventually(lambda: not alive(sleeper), "the command to end with its owner", seconds=2)


def test_command_dies_with_an_owner_that_just_exits(tmp_path: Path) -> None:
    process, sleeper, _ = owner(FROM_MAIN_THREAD, tmp_path)
    with process:
        pass
    eventually(lambda: not alive(sleeper), "the command to end with its owner")


def test_command_dies_with_its_guard(tmp_path: Path) -> None:
    process, sleeper, guard = owner("start()\ntime.sleep(600)", tmp_path)
    with process:
        os.kill(guard, signal.SIGKILL)
        eventually(lambda: not alive(sleeper), "the command to end with its guard")
        process.kill()


def test_command_outlives_the_thread_that_started_it() -> None:
    started: list[GuardedProcess] = []
    thread = threading.Thread(target=lambda: started.append(GuardedProcess(SLEEPER, output=subprocess.DEVNULL)))
    thread.start()
    thread.join()
    (process,) = started
    # The kernel would have sent its signal when the thread ended; a round trip of another one proves that it did not.
    process.pause()
    assert process.poll() is None
    process.terminate()
    assert process.poll() == 128 + signal.SIGTERM


def test_exit_code_is_the_commands_own() -> None:
    process = GuardedProcess([sys.executable, "-I", "-S", "-c", "raise SystemExit(7)"], output=subprocess.DEVNULL)
    eventually(lambda: process.poll() is not None, "the command to end")
    assert process.poll() == 7


def test_signals_after_the_end_do_nothing() -> None:
    process = GuardedProcess(SLEEPER, output=subprocess.DEVNULL)
    process.kill()
    process.pause()
    process.resume()
    process.kill()
    process.terminate()
    assert process.poll() == 128 + signal.SIGKILL


def test_program_that_cannot_start_says_so(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        process = GuardedProcess([tmp_path / "nothing"], output=log)
    eventually(lambda: process.poll() is not None, "the command to end")
    assert process.poll() == 127
    assert f"{tmp_path}/nothing could not be started" in (tmp_path / "log").read_text()
