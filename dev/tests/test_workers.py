"""No signal reaches a process group that only has the number of a worker which ended long ago."""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from rdzv_cli.agent import workers
from rdzv_cli.agent.guard import Guard
from rdzv_cli.agent.workers import Workers

from .agents import wait_until

REUSE = """
import os, signal, subprocess, sys, time
from pathlib import Path

folder, how = Path(sys.argv[1]), sys.argv[2]

def wait_until(condition, limit=60):
    deadline = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return value

def pid_of(name):
    return int(wait_until(lambda: (folder / name).exists() and (folder / name).read_text()))

def is_there(pid):
    return Path(f"/proc/{pid}").exists()

def take(pid):
    '''A process group of another program, which gets a number that is free again.'''
    for _ in range(100):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        other = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if other.pid == pid:
            return other
        other.kill()
        other.wait()
    raise AssertionError(f"{pid} cannot be had")

def guard():
    processes = (path for path in Path("/proc").iterdir() if path.name.isdigit())
    return next(int(path.name) for path in processes if "programs/guard.py" in (path / "cmdline").read_text())

program = '''
import os, pathlib, time
path = pathlib.Path({folder!r}) / os.environ["LOCAL_RANK"]
path.with_suffix(".new").write_text(str(os.getpid()))
path.with_suffix(".new").rename(path)
if os.environ["LOCAL_RANK"] == "1":
    time.sleep(600)
'''.format(folder=str(folder))
command = [sys.executable, "-m", "rdzv", "run", "--backend=sqlite", f"--endpoint={folder}/db", "--run-id=job"]
command += ["--nnodes=1", "--nproc-per-node=2", "--", sys.executable, "-c", program]
agent = subprocess.Popen(command)
first, second, its_guard = pid_of("0"), pid_of("1"), guard()
wait_until(lambda: not is_there(first))
other = take(first)
if how == "guard":
    agent.kill()
    agent.wait()
    # What the agent leaves behind falls to this process, the first of its namespace.
    os.waitpid(its_guard, 0)
    assert not is_there(second)
else:
    agent.terminate()
    assert agent.wait() == 128 + signal.SIGTERM
    assert not is_there(second)
assert other.poll() is None, f"the agent's {how} has killed another program"
other.kill()
print("the other program lives")
"""

_NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _has_namespaces() -> bool:
    try:
        return subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not _has_namespaces(), reason="needs namespaces of its own, in which it can choose process numbers")
@pytest.mark.parametrize("how", ["signals", "guard"])
def test_a_number_that_is_used_again_is_not_signalled(tmp_path: Path, how: str) -> None:
    script = tmp_path / "reuse.py"
    script.write_text(textwrap.dedent(REUSE))
    command = [*_NAMESPACE, sys.executable, str(script), str(tmp_path), how]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "the other program lives" in ended.stdout, ended.stderr


@pytest.fixture
def keeper() -> Iterator[Guard]:
    with closing(Guard(os.environ)) as keeper:
        yield keeper


@pytest.mark.parametrize("proc", ["/proc", "/nowhere"])
def test_a_group_lives_as_long_as_anything_in_it(
    keeper: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proc: str
) -> None:
    """With /proc, and by ps where there is none."""
    monkeypatch.setattr(workers, "_PROC", Path(proc))
    end = tmp_path / "end"
    child = f"while [ ! -e {end} ]; do sleep 0.02; done"
    started = Workers(["sh", "-c", f"({child}) & exit 3"], [os.environ], keeper)
    try:
        (worker,) = wait_until(lambda: [worker for worker in started.look() if worker.code is not None])
        assert worker.code == 3
        assert not worker.is_over
        started.look()
        assert not worker.is_over
    finally:
        threading.Timer(0.1, end.touch).start()
        started.stop(30)
    assert worker.is_over


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -9 $$", -9), ("exit 0", 0)])
def test_a_worker_says_how_it_ended(keeper: Guard, script: str, code: int) -> None:
    started = Workers(["sh", "-c", script], [os.environ], keeper)
    (worker,) = wait_until(lambda: [worker for worker in started.look() if worker.code is not None])
    assert worker.code == code
    assert worker.is_over
    started.stop(0)
    with pytest.raises(ChildProcessError):
        os.waitpid(worker.pid, 0)


def test_the_list_of_processes_is_asked_for_without_secrets(
    keeper: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    listed = ("sh", "-c", f"env > {seen}; exec {' '.join(workers._PS)}")
    monkeypatch.setattr(workers, "_PROC", tmp_path / "nowhere")
    monkeypatch.setattr(workers, "_PS", listed)
    monkeypatch.setenv("RDZV_PASSWORD", "hunter2")
    started = Workers(["true"], [os.environ], keeper)
    started.stop(30)
    assert "PATH=" in seen.read_text()
    assert "hunter2" not in seen.read_text()


THREAD = """
import ctypes, pathlib, sys, threading, time
end = pathlib.Path(sys.argv[1])

def work():
    while not end.exists():
        time.sleep(0.02)

threading.Thread(target=work).start()
# The main thread ends, and not the process.
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only /proc tells how many threads a process has")
def test_a_group_lives_as_long_as_any_thread_in_it(keeper: Guard, tmp_path: Path) -> None:
    end, pid = tmp_path / "end", tmp_path / "pid"
    child = f'"$@" & echo $! > {pid}; exit 3'
    started = Workers(["sh", "-c", child, "sh", sys.executable, "-c", THREAD, str(end)], [os.environ], keeper)
    try:
        wait_until(lambda: [worker for worker in started.look() if worker.code is not None])
        stat = Path(f"/proc/{int(pid.read_text())}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
        started._forget_groups_that_ended()
        (worker,) = started.look()
        assert not worker.is_over
    finally:
        threading.Timer(0.1, end.touch).start()
        started.stop(30)
    assert worker.is_over
