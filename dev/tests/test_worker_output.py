"""No line of a worker is lost, and each says whose it is: real agents, real processes, pipes that stall."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest

from .agents import program, wait_until

LINE: Final = b"%d of %d " + 80 * b"x"
"""Of rank and number."""

NUMBERED: Final = """
import os, sys
rank, count, folder = int(os.environ["LOCAL_RANK"]), int(sys.argv[1]), sys.argv[2]
lines = b"".join(b"%d of %d " % (rank, number) + 80 * b"x" + b"\\n" for number in range(count))
os.write(2, b"%d begins\\n" % rank)
while lines:
    lines = lines[os.write(1, lines) :]
open(f"{folder}/written-{rank}", "w").close()
"""
"""Writes so many lines, as many at a time as go into the pipe, and then leaves a mark."""


def command(folder: Path, *arguments: str, processes: int = 2) -> list[str]:
    run = [sys.executable, "-m", "rdzv", "run", "--standalone", f"--endpoint={folder}/db"]
    return [*run, f"--nproc-per-node={processes}", *arguments]


def ends(folder: Path, *arguments: str, processes: int = 2, **more: Any) -> subprocess.CompletedProcess[bytes]:
    line = command(folder, *arguments, processes=processes)
    return subprocess.run(line, capture_output=True, check=False, timeout=60, **more)


@contextmanager
def running(line: list[str], stderr: int | IO[bytes] = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is gone in the end."""
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(rank: int, count: int) -> list[bytes]:
    return [LINE % (rank, number) for number in range(count)]


def test_every_line_of_several_processes_is_whole_and_says_whose_it_is(tmp_path: Path) -> None:
    job = program(tmp_path, NUMBERED)
    done = ends(tmp_path, "--", *job, "3000", str(tmp_path), processes=4)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4 * 3000
    for rank in range(4):
        mark = b"[1:%d] " % rank
        assert [line.removeprefix(mark) for line in lines if line.startswith(mark)] == lines_of(rank, 3000)
        assert mark + b"%d begins" % rank in done.stderr.splitlines()


def test_one_process_alone_has_the_streams_of_its_agent(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        line = command(tmp_path, "--", "readlink", "/proc/self/fd/1", processes=1)
        subprocess.run(line, stdout=out, check=True, timeout=60)
    assert (tmp_path / "out").read_text() == f"{tmp_path}/out\n"


@pytest.mark.parametrize(
    ("template", "shown"),
    [("<${rank} of ${role_name}> ", "<0 of default> a\n"), ("", "a\n"), ("$local_rank:${what} $", "0:${what} $a\n")],
)
def test_a_prefix_is_a_template(tmp_path: Path, template: str, shown: str) -> None:
    assert ends(tmp_path, "--prefix", template, "--", "echo", "a", processes=1).stdout.decode() == shown


def test_a_line_without_an_end_and_a_bar_that_is_drawn_anew_are_lines(tmp_path: Path) -> None:
    job = program(tmp_path, r"import os; [os.write(1, part) for part in (b'a\r', b'\nb\r', b'c\rd', b'e\n\n', b'f')]")
    done = ends(tmp_path, "--prefix", "-", "--", *job, processes=1)
    assert done.stdout == b"-a\n-b\n-c\n-de\n-\n-f\n"


def test_a_process_that_is_killed_loses_nothing_that_it_has_written(tmp_path: Path) -> None:
    source = NUMBERED + "os.write(1, b'the last')\nos.kill(os.getpid(), 9)"
    done = ends(tmp_path, "--", *program(tmp_path, source), "2000", str(tmp_path), processes=1)
    marked = ends(tmp_path, "--prefix=", "--", *program(tmp_path, source), "2000", str(tmp_path), processes=1)
    assert done.returncode == marked.returncode == 1
    assert marked.stdout == done.stdout + b"\n"
    assert marked.stdout.splitlines() == [*lines_of(0, 2000), b"the last"]


def test_what_was_written_before_the_agent_was_killed_is_read_after_it(tmp_path: Path) -> None:
    source = NUMBERED + "import time; time.sleep(600)"
    count = 5000
    with running(command(tmp_path, "--prefix=", "--", *program(tmp_path, source), str(count), str(tmp_path))) as agent:
        assert agent.stdout is not None
        for rank in range(2):
            wait_until((tmp_path / f"written-{rank}").exists)
        # More than the reader's pipe holds: the rest is with us.
        agent.kill()
        agent.wait()
        lines = agent.stdout.read().splitlines()
    assert sorted(lines) == sorted(lines_of(0, count) + lines_of(1, count))


def test_a_reader_that_stalls_has_the_process_wait_and_gets_all(tmp_path: Path) -> None:
    count = 40_000
    line = command(tmp_path, "--prefix=", "--", *program(tmp_path, NUMBERED), str(count), str(tmp_path), processes=1)
    with running(line) as agent:
        assert agent.stdout is not None
        first = agent.stdout.readline()
        # It has begun, and stalls: all that anything can hold is a part of it.
        stood = -1
        while stood != (stood := _written_by_children(agent.pid)):
            time.sleep(0.3)
        assert not (tmp_path / "written-0").exists()
        lines = [first, *agent.stdout]
        assert agent.wait(60) == 0
    assert [line.rstrip(b"\n") for line in lines] == lines_of(0, count)


def test_a_job_ends_for_the_others_while_its_output_waits_for_a_reader(tmp_path: Path) -> None:
    """All of that stands in the pipe of the process, which has ended, and more than the reader's pipe holds."""
    line = command(tmp_path, "--run-id=job", "--prefix=", "--", *program(tmp_path, NUMBERED), "5000", str(tmp_path))
    with running(line) as agent:
        assert agent.stdout is not None
        wait_until((tmp_path / "written-0").exists)
        wait_until(lambda: b"the job is done" in _status(tmp_path))
        most = agent.stdout.read(600_000)
        # It has the time of another command to end in, and must not.
        _status(tmp_path)
        assert agent.poll() is None
        assert len((most + agent.stdout.read()).splitlines()) == 2 * 5000
        assert agent.wait(30) == 0


def _status(folder: Path) -> bytes:
    """What the others know of the run ``job``."""
    line = [sys.executable, "-m", "rdzv", "status", f"--endpoint={folder}/db", "--run-id=job"]
    return subprocess.run(line, capture_output=True, check=False).stdout


def _written_by_children(pid: int) -> int:
    """Bytes that the descendants of a process have written."""
    total = 0
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        written = re.search(r"wchar: (\d+)", Path(f"/proc/{child}/io").read_text())
        total += int(written[1] if written else 0) + _written_by_children(int(child))
    return total


def test_an_agent_that_is_signalled_does_not_wait_for_a_reader_that_stalls(tmp_path: Path) -> None:
    source = NUMBERED.replace("while lines", "open(f'{folder}/begun', 'w')\nwhile lines")
    job = program(tmp_path, source)
    with running(command(tmp_path, "--prefix=", "--grace=1", "--", *job, "40000", str(tmp_path), processes=1)) as agent:
        assert agent.stdout is not None
        wait_until((tmp_path / "begun").exists)
        agent.terminate()
        assert agent.wait(30) == 128 + 15
        lines = agent.stdout.read().splitlines()
    *whole, last = lines
    assert whole == lines_of(0, len(whole))
    assert (LINE % (0, len(whole))).startswith(last)


@pytest.mark.parametrize("tee", [True, False])
def test_a_full_disk_under_the_console_loses_nothing_that_a_file_has(tmp_path: Path, tee: bool) -> None:
    job = [*program(tmp_path, NUMBERED), "20000", str(tmp_path)]
    chosen = [f"--log-dir={tmp_path}/logs", "--tee=3"] if tee else ["--prefix="]
    with open("/dev/full", "wb") as full:
        line = command(tmp_path, *chosen, "--", *job, processes=1)
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert b"rdzv: the standard output cannot be written, and gets no more: No space left on device" in done.stderr
    # Without a file, the process learns of it, as if it wrote there itself.
    assert done.returncode == (0 if tee else 1)
    if tee:
        (file,) = tmp_path.glob("logs/*/attempt_1/0/stdout.log")
        assert file.read_bytes().splitlines() == lines_of(0, 20000)


def test_a_file_that_cannot_be_written_leaves_the_console(tmp_path: Path) -> None:
    source = "import os; f = os.environ['TORCHELASTIC_ERROR_FILE']; print(open(f, 'w').name)"
    done = ends(tmp_path, f"--log-dir={tmp_path}/logs", "-t1", "--", *program(tmp_path, source), processes=1)
    assert re.fullmatch(rb"\[1:0\] \S+/attempt_1/0/error.json\n", done.stdout), done
    refused = ends(tmp_path, f"--log-dir={tmp_path}/db", "--tee=3", "--", "true")
    assert refused.returncode == 2
    assert b"--log-dir" in refused.stderr


@pytest.mark.parametrize("at", ["stdout.log", "attempt_2"])
def test_a_file_that_cannot_be_made_is_named(tmp_path: Path, at: str) -> None:
    """In the second round, where the first has worked."""
    source = f"""
import os, pathlib
ours = pathlib.Path(os.environ["TORCHELASTIC_ERROR_FILE"]).parents[2]
if {at!r} == "attempt_2":
    (ours / {at!r}).touch()
else:
    (ours / "attempt_2" / "0" / {at!r}).mkdir(parents=True)
os._exit(1)
"""
    chosen = ["-r1", f"--log-dir={tmp_path}/logs", "--max-restarts=1"]
    done = ends(tmp_path, *chosen, "--", *program(tmp_path, source), processes=1)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.search(rb" cannot be started: .*: /\S*" + at.encode(), last), done.stderr


def test_a_reader_that_goes_is_known_to_the_process(tmp_path: Path) -> None:
    with running(command(tmp_path, "--prefix=", "--", "yes", processes=1)) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"y\n"
        agent.stdout.close()
        assert agent.wait(30) == 1


def test_files_are_those_of_torchrun_and_every_round_has_its_own(tmp_path: Path) -> None:
    source = (
        "import os; rank = os.environ['RANK']; print('out', rank); os.write(2, b'err'); print('on'); exit(int(rank))"
    )
    chosen = ["-r", "1:3", "-t", "0:1", "--max-restarts=1", f"--log-dir={tmp_path}/logs"]
    both = source.replace("exit", "import time; time.sleep(1); exit")
    done = ends(tmp_path, *chosen, "--", *program(tmp_path, both))
    assert done.returncode == 1
    for number in (1, 2):
        (folder,) = tmp_path.glob(f"logs/standalone-*_*/attempt_{number}")
        found = {str(file.relative_to(folder)): file.read_text() for file in folder.glob("*/*")}
        assert found == {"0/stdout.log": "out 0\non\n", "1/stdout.log": "out 1\non\n", "1/stderr.log": "err"}
        assert b"[%d:0] out 0\n" % number in done.stdout
    assert b"out 1" not in done.stdout
    assert re.search(rb"rank 1.* after 1 restart; its last lines: err\n", done.stderr), done.stderr


def test_ranks_that_are_not_shown_are_in_files_alone(tmp_path: Path) -> None:
    job = ["sh", "-c", "echo rank $RANK"]
    done = ends(tmp_path, "--tee=3", f"--log-dir={tmp_path}/logs", "--local-ranks-filter=1", "--", *job)
    assert done.stdout == b"[1:1] rank 1\n"
    assert sorted(file.read_text() for file in tmp_path.glob("logs/*/*/*/stdout.log")) == ["rank 0\n", "rank 1\n"]
    assert ends(tmp_path, "--local-ranks-filter=0", "--prefix=", "--", *job).stdout == b"rank 0\n"


@pytest.mark.parametrize("chosen", [["--prefix="], ["--log-format=json"], ["--redirects=1:1"]])
def test_the_last_lines_of_a_rank_that_is_not_shown_are_known(tmp_path: Path, chosen: list[str]) -> None:
    source = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit('the cause'); time.sleep(600)"
    done = ends(tmp_path, "--local-ranks-filter=0", *chosen, "--", *program(tmp_path, source))
    assert done.stderr.count(b"the cause") == 1
    assert b"; its last lines: the cause" in done.stderr.splitlines()[-1]


def test_the_last_lines_of_what_failed_stand_in_the_last_line(tmp_path: Path) -> None:
    source = "import os, time; os.environ['RANK'] == '1' and 1 / 0; time.sleep(600)"
    done = ends(tmp_path, "--", *program(tmp_path, source))
    last = done.stderr.splitlines()[-1]
    assert b"(rank 1, local rank 1, process " in last
    assert last.endswith(b"after 0 restarts; its last lines: " + last.rpartition(b"lines: ")[2])
    assert last.endswith(b" / ZeroDivisionError: division by zero")


def test_the_process_that_failed_first_is_named(tmp_path: Path) -> None:
    """Others follow at once, as their connections to it break."""
    source = f"""
import os, sys, time
pid = "{tmp_path}/pid"
if os.environ["RANK"] == "1":
    open(pid + ".new", "w").write(str(os.getpid()))
    os.rename(pid + ".new", pid)
    sys.exit("the cause")
while not os.path.exists(pid):
    time.sleep(0.001)
while open(f"/proc/{{open(pid).read()}}/stat").read().rpartition(") ")[2][0] != "Z":
    time.sleep(0.001)
sys.exit("what follows")
"""
    last = ends(tmp_path, "--", *program(tmp_path, source)).stderr.splitlines()[-1]
    assert b"(rank 1, " in last
    assert last.endswith(b"; its last lines: the cause")


@pytest.mark.parametrize("processes", [1, 2])
def test_every_line_is_an_object_that_names_its_place(tmp_path: Path, processes: int) -> None:
    source = r"""
import os, sys
os.write(1, b'a "b" \xff\x1b\r\nsecond')
os.write(2, b"third")
if os.environ["RDZV_ROUND"] == "1":
    sys.exit(3)
"""
    chosen = ["--run-id=job", "--log-format=json", "--max-restarts=1", "--prefix=none", "-v"]
    done = ends(tmp_path, *chosen, "--", *program(tmp_path, source), processes=processes)
    assert done.returncode == 0, done.stderr
    every = [json.loads(line) for line in done.stdout.splitlines() + done.stderr.splitlines()]
    said, ours = [one for one in every if "stream" in one], [one for one in every if "stream" not in one]
    assert {one["run"] for one in every} == {"job"}
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", one["time"]) for one in every)
    (node,) = {one["node"] for one in every}
    assert node
    keys = ("round", "rank", "local_rank", "stream")
    found = [(*(one[key] for key in keys), one["message"]) for one in said if one["round"] == 2]
    assert sorted(found) == [
        (2, rank, rank, *line)
        for rank in range(processes)
        for line in [("stderr", "third"), ("stdout", 'a "b" \\xff\x1b'), ("stdout", "second")]
    ]
    # Of what one was ended with the other, the first round has a part.
    assert {one["round"] for one in said} == {1, 2}
    assert [(one["round"], one["rank"]) for one in ours][:: len(ours) - 1] == [(None, None), (2, 0)]
    assert {one["level"] for one in ours} == {"INFO", "WARNING"}


@pytest.mark.parametrize("wrong", [["--log-dir=/dev/null/x"], ["--backend=none"]])
def test_why_a_run_cannot_begin_is_an_object_too(tmp_path: Path, wrong: list[str]) -> None:
    done = ends(tmp_path, "--run-id=job", "--log-format=json", *wrong, "--", "true")
    (said,) = map(json.loads, done.stderr.splitlines())
    assert (done.returncode, said["run"], said["round"]) == (2, "job", None)


def test_what_outlives_its_agent_by_intent_is_copied_on(tmp_path: Path) -> None:
    waits = "while [ ! -e %s ]; do sleep 0.02; done"
    goes_on = (
        f"setsid sh -c 'touch {tmp_path}/apart; {waits % (tmp_path / 'ended')}; echo later' & "
        # Until it has a session of its own, it goes with its parent.
        f"{waits % (tmp_path / 'apart')}; echo now"
    )
    with running(command(tmp_path, "--prefix=-", "--keep-detached", "--", "sh", "-c", goes_on, processes=1)) as agent:
        assert agent.stdout is not None
        assert agent.wait(30) == 0
        (tmp_path / "ended").touch()
        assert agent.stdout.read() == b"-now\n-later\n"


WRITES_ON: Final = """
import signal
try:
    while True:
        print("y", flush=True)
except BrokenPipeError:
    signal.pause()
"""
"""Passes over that what it writes is not read, as `logging` does."""


@pytest.mark.parametrize("source", [WRITES_ON, "print('y', flush=True); import time; time.sleep(600)"])
def test_a_process_whose_copier_is_killed_fails(tmp_path: Path, source: str) -> None:
    said = tmp_path / "said"
    line = command(tmp_path, "--prefix=", "--", *program(tmp_path, source), processes=1)
    with said.open("wb") as error, running(line, stderr=error) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        os.kill(_copier_of(agent.pid), signal.SIGKILL)
        assert agent.wait(30) == 1
    *_, lost, last = said.read_text().splitlines()
    assert lost.endswith("the copier of this node's output was killed: what it had not written is lost")
    assert re.search(r"the copier of the output of \S+ was killed, after 0 restarts$", last)


def test_a_copier_that_is_killed_when_all_has_ended_costs_no_work(tmp_path: Path) -> None:
    """While its reader stalls: the lines that it had are named as lost, and the job is done."""
    said, job = tmp_path / "said", program(tmp_path, NUMBERED)
    line = command(tmp_path, "--run-id=job", "--prefix=", "--", *job, "5000", str(tmp_path), processes=1)
    with said.open("wb") as error, running(line, stderr=error) as agent:
        wait_until(lambda: b"the job is done" in _status(tmp_path))
        os.kill(_copier_of(agent.pid), signal.SIGKILL)
        assert agent.wait(30) == 0
    assert "was killed: what it had not written is lost" in said.read_text()


def _copier_of(agent: int) -> int:
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    (copier,) = (pid for pid in children if "programs/copier.py" in Path(f"/proc/{pid}/cmdline").read_text())
    return int(copier)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_disturbs_no_other(tmp_path: Path, closed: str) -> None:
    line = command(tmp_path, "--tee=3", f"--log-dir={tmp_path}/logs", "--", "sh", "-c", "echo out; echo err >&2")
    starts = ["sh", "-c", f'exec "$0" "$@" {closed}', *line]
    done = subprocess.run(starts, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(rb"\[1:.*", done.stdout)) == [b"[1:0] out", b"[1:1] out"] * (" >" not in f" {closed}")
    assert sorted(re.findall(rb"\[1:.*", done.stderr)) == [b"[1:0] err", b"[1:1] err"] * ("2>" not in closed)
    found = {str(file.relative_to(file.parents[1])): file.read_text() for file in tmp_path.glob("logs/*/*/*/*")}
    assert found == {f"{rank}/std{name}.log": f"{name}\n" for rank in range(2) for name in ("out", "err")}


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_has_colours_unless_it_is_to_have_none(tmp_path: Path, environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    source = "import os; print(os.environ.get('PYTHONUNBUFFERED'))"
    plain = {**os.environ, "TERM": "xterm"}
    plain.pop("PYTHONUNBUFFERED", None)
    done = subprocess.run(
        command(tmp_path, "--", *program(tmp_path, source)),
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**plain, **environment},
        check=False,
        timeout=60,
    )
    os.close(theirs)
    shown = os.read(ours, 1 << 16).replace(b"\r", b"")
    os.close(ours)
    assert done.returncode == 0
    marks = [b"[1:0] ", b"[1:1] "] if environment else [b"\x1b[36m[1:0] \x1b[0m", b"\x1b[33m[1:1] \x1b[0m"]
    # Python shows each line at once on a terminal, and so it does here.
    assert sorted(shown.splitlines()) == sorted(mark + b"1" for mark in marks)
