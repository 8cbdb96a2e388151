"""What an agent has started goes with it, however the agent ends and whatever session it is in."""

import errno
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
from rdzv_cli.agent import guard, workers
from rdzv_cli.agent.checks import Checks, parse_check
from rdzv_cli.agent.guard import Guard
from rdzv_cli.agent.workers import Workers
from rdzv_cli.programs.guard import Ends

from .agents import Agents, program, wait_until

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="no session is found without a list of all processes"
)

STARTS = """
import os, signal
from pathlib import Path
from rdzv_cli.agent.guard import Guard
from rdzv_cli.agent.workers import Workers

keeper = Guard(os.environ)
# The agent has asked for a process, and is gone before it could learn its number.
keeper._receive = lambda patience: wait_until(Path({pid!r}).exists) and os.kill(os.getpid(), signal.SIGKILL)

def wait_until(condition):
    while not condition():
        pass
    return True

Workers(["sh", "-c", "echo $$ > {pid}; exec sleep 600"], [os.environ], keeper)
"""

DETACHED = """
import os, signal, subprocess, sys, time

saves = '''
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("saved", flush=True) or exit())
print("is apart", flush=True)
time.sleep(40)
'''
# Its parent ends: no process waits for it any more.
leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {saves!r}], start_new_session=True)"
subprocess.run([sys.executable, "-c", leaves], start_new_session=True, check=True)
time.sleep(600)
"""

UNKILLABLE = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")


def state(pid: int) -> str:
    """The state of a process, as ps has it; empty: there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def is_zombie(pid: int) -> bool:
    return state(pid) == "Z"


@pytest.fixture
def keeper() -> Iterator[Guard]:
    with closing(Guard(os.environ)) as keeper:
        yield keeper


def test_an_agent_that_is_killed_while_it_starts_a_process_leaves_none(tmp_path: Path) -> None:
    script = textwrap.dedent(STARTS).format(pid=str(tmp_path / "pid"))
    # It has ended when no process has its output any more.
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert (tmp_path / "pid").read_text()


@pytest.mark.soak
@pytest.mark.parametrize("trial", range(25))
def test_an_agent_that_is_killed_at_any_moment_leaves_nothing(local: Agents, trial: int) -> None:
    chance = random.Random(trial)
    works = ["sh", "-c", "echo works; exec sleep 600"]
    node = local.start(*works, nnodes="1", arguments=("--nproc-per-node", "8"))
    # Some of its processes have begun, and the next one may be on its way.
    begun = chance.randrange(1, 8)
    wait_until(lambda: node.said.count("works") >= begun)
    time.sleep(chance.uniform(0.0, 0.03))
    node.process.kill()
    assert node.ends() == -signal.SIGKILL


def test_a_process_has_the_signals_of_its_agent(keeper: Guard, tmp_path: Path) -> None:
    """The guard outlives what a scheduler sends to every process of a job; what it starts inherits nothing of that."""
    look = 'trap "" HUP; "$@"; exec sleep 600'
    shows = [
        sys.executable,
        "-c",
        "import re, sys; open(sys.argv[1], 'w').write(re.search('SigIgn.*', open('/proc/self/status').read())[0])",
    ]
    started = Workers(["sh", "-c", look, "sh", *shows, str(tmp_path / "seen")], [os.environ], keeper)
    direct = [str(tmp_path / "direct")]
    subprocess.run(["sh", "-c", look.replace("; exec sleep 600", ""), "sh", *shows, *direct], check=True)
    wait_until(lambda: (tmp_path / "seen").exists() and (tmp_path / "seen").read_text())
    assert (tmp_path / "seen").read_text() == (tmp_path / "direct").read_text()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGQUIT, signal.SIGXCPU, signal.SIGRTMIN):
        os.kill(keeper._process.pid, number)
    wait_until(lambda: len(keeper.send(0)) == 1)
    started.kill()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="without pidfds no system tells the order of ends")
def test_the_order_of_ends_is_known_however_late_the_guard_looks(keeper: Guard) -> None:
    pids = [keeper.start(["sleep", "600"], os.environ) for _ in range(8)]
    order = random.Random(8).sample(pids, len(pids))
    os.kill(keeper._process.pid, signal.SIGSTOP)
    for pid in order:
        os.kill(pid, signal.SIGKILL)
        wait_until(partial(is_zombie, pid))
    os.kill(keeper._process.pid, signal.SIGCONT)
    wait_until(lambda: all(keeper.code_of(pid) == -signal.SIGKILL for pid in pids))
    assert sorted(pids, key=keeper.place_of) == order


@pytest.mark.parametrize("lacks", ["watches", "descriptors"])
def test_a_process_whose_end_cannot_be_told_is_asked_for(keeper: Guard, lacks: str) -> None:
    class Full:
        def register(self, *_: int) -> None:
            raise OSError(errno.ENOSPC, "no room for another watch")

    ends, pid = Ends(), keeper.start(["true"], os.environ)
    if lacks == "watches":
        ends._ready = Full()  # type: ignore[assignment]
    else:
        ends._room = 0
    ends.watch(pid)
    assert ends.told({pid}) == [pid]


def test_a_number_that_the_system_gives_again_is_that_of_another_process(keeper: Guard) -> None:
    keeper._channel.close()
    keeper._channel, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b'["ended", 7, 1]\n["started", 7]\n')
        assert keeper.code_of(7) is None
        theirs.sendall(b'["ended", 7, 0]\n')
        assert keeper.code_of(7) == 0


@needs_proc
@pytest.mark.parametrize("how", ["killed", "asked"])
def test_what_has_a_session_of_its_own_goes_too(local: Agents, tmp_path: Path, how: str) -> None:
    node = local.start(*program(tmp_path, DETACHED), nnodes="1")
    node.says("is apart")
    if how == "killed":
        node.process.kill()
    else:
        node.process.terminate()
    assert node.ends() == (-signal.SIGKILL if how == "killed" else 128 + signal.SIGTERM)
    assert ("saved" in node.said) == (how == "asked")


def test_a_daemon_may_be_kept(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    daemon = f"import os; os.fork() and exit(); os.setsid(); open({str(pid)!r}, 'w').write(str(os.getpid()))"
    daemon += "; os.execlp('sleep', 'sleep', '600')"
    where = ["--endpoint", str(tmp_path / "db"), "--run-id", "job", "--nnodes", "1", "--keep-detached"]
    job = [
        *where,
        "--",
        "sh",
        "-c",
        f'"$@"; while ! test -s {pid}; do sleep 0.1; done',
        "sh",
        sys.executable,
        "-c",
        daemon,
    ]
    subprocess.run([sys.executable, "-m", "rdzv", "run", *job], check=True, timeout=60)
    kept = int(pid.read_text())
    assert state(kept) == "S"
    os.kill(kept, signal.SIGKILL)


@needs_proc
def test_what_is_adopted_is_reaped(keeper: Guard, tmp_path: Path) -> None:
    abandons = f"for n in 1 2 3; do (sh -c 'echo $$ >> {tmp_path}/pids' &); done; exec sleep 600"
    started = Workers(["sh", "-c", abandons], [os.environ], keeper)
    pids = wait_until(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text().split())
    pids = wait_until(lambda: (found := (tmp_path / "pids").read_text().split()) and len(found) == 3 and found)
    wait_until(lambda: not any(state(int(pid)) for pid in pids))
    (worker,) = started.look()
    assert worker.code is None
    assert started.kill() == ""
    wait_until(lambda: not state(worker.pid))


def test_a_guard_that_is_killed_costs_a_restart(local: Agents, tmp_path: Path) -> None:
    kills = """
import os, signal, time
if os.environ["RDZV_RESTART_COUNT"] == "0":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
print("again")
"""
    node = local.start(*program(tmp_path, kills), nnodes="1", arguments=("--max-restarts", "1"))
    assert node.ends() == 0, node.said
    assert "the guard of this node's processes was killed" in node.said
    assert "again" in node.said


def test_a_guard_that_does_not_answer_holds_no_agent_up(
    keeper: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started = Workers(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], [os.environ], keeper)
    wait_until(lambda: (tmp_path / "pid").exists())
    os.kill(keeper._process.pid, signal.SIGSTOP)
    monkeypatch.setattr(guard, "_LEFT", 0.1)
    started.stop(0)
    assert keeper.is_lost
    assert "the guard of this node's processes does not answer" in caplog.text
    wait_until(lambda: state(started.look()[0].pid) in ("", "Z"))
    with pytest.raises(OSError, match="its guard"):
        Workers(["true"], [os.environ], keeper)


needs_root = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="only root can start what it may not kill afterwards"
)


@needs_root
def test_a_process_that_cannot_be_killed_costs_the_others_nothing(local: Agents, tmp_path: Path) -> None:
    sleeps = ["sh", "-c", "echo began; exec sleep 45"]
    sooner = "from rdzv_cli.agent import workers; workers.KILLED = 0.5"
    grace = ("--grace", "0.5")
    stuck = local.start(*UNKILLABLE, *sleeps, nnodes="1:2", arguments=grace, prelude=sooner, within=WITHOUT_RIGHTS)
    stuck.says("began")
    job = program(tmp_path, "import os, sys, time\ntime.sleep(1)\nsys.exit(os.environ['WORLD_SIZE'] == '2')")
    other = local.start(*job, nnodes="1:2", arguments=("--max-restarts", "1"))
    try:
        assert other.ends() == 0, other.said
        assert stuck.process.wait(30) == 1
        named = re.search(r"cannot be killed: process (\d+) \(sleep\) runs as another user", stuck.said)
        assert named is not None, stuck.said
    finally:
        for pid in re.findall(r"process (\d+) \(sleep\)", stuck.said)[:1]:
            os.kill(int(pid), signal.SIGKILL)


def test_a_check_that_cannot_be_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guard, "send", lambda self, number: [(4711, "nvidia-smi", True)])
    monkeypatch.setattr(workers, "KILLED", 0.1)
    found = Checks([parse_check("true")], 30, os.environ).run()
    stuck = "process 4711 (nvidia-smi) waits in the kernel, as for a disk or a device that hangs"
    assert found == f"not fit: the check 'true' has ended; it cannot be killed: {stuck}"
