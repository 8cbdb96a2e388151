"""What the command says, on a service that lives in this process."""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
import rdzv
from engine.tests.memory import MemoryBackend, MemoryService
from engine.tests.test_rendezvous import Run
from engine.tests.waiting import wait_until
from rdzv import DynamicRendezvousHandler, RendezvousParameters, registered_backends
from rdzv_core import BackendPlugin
from rdzv_core.errors import RendezvousDeniedError
from rdzv_core.text import printable

from rdzv_cli import common, log, run, wait_line
from rdzv_cli.agent.devices import processes
from rdzv_cli.command import main
from rdzv_cli.values import signal_name, signal_number

RUN = ["--backend", "memory", "--run-id", "job", "--nnodes", "1"]
COMMANDS = "run, status, close, drain, pardon, backends, doctor or completion"
RUN_ID = "red\x1b[31m\n" + 5000 * "x"
LONG = 38 * "9" + "..." + 38 * "9"
SHOWN = r"red\x1b[31m\n" + 25 * "x" + "..." + 38 * "x"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend of the name ``memory``, whose service outlives its clients."""
    service = MemoryService()

    def create(params: RendezvousParameters) -> tuple[MemoryBackend, None]:
        return MemoryBackend(service, params.run_id), None

    monkeypatch.setitem(registered_backends, "memory", BackendPlugin("For tests.", (), create, MemoryBackend, ""))


@pytest.mark.usefixtures("memory")
def test_any_run_id_is_shown_on_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--backend", "memory", "--run-id", RUN_ID)
    assert main(["close", *where]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"The run '{SHOWN}' is closed: no reason given (by the operator (")
    nothing = f"No node has left a trace under the run id '{SHOWN}': is it the right one?"
    assert second == f"{nothing} `rdzv close --purge` takes this back."
    assert main(["status", *where]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"run {SHOWN}: closed, attempt 0, round 0"
    assert re.fullmatch(r"  closed by the operator \(.*\): no reason given", second)
    assert main(["run", *where, "--nnodes", "1", "--", "true"]) == 4
    first, second = capsys.readouterr().err.splitlines()
    assert f": run '{SHOWN}', backend memory, " in first
    assert f": The rendezvous '{SHOWN}' was closed by the operator (" in second
    assert second.endswith("To run it again, use a higher attempt (`rdzv run --attempt 1`) or another run id.")
    # With a purge, nothing is left to be taken back.
    assert main(["close", *where, "--purge"]) == main(["close", *where, "--purge"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [nothing, f"Every key of the run '{SHOWN}' is removed."]


LINE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} rdzv\[(alpha\.[0-9a-f]+)\]: "


def test_a_traceback_has_a_prefix_on_every_line(capfd: pytest.CaptureFixture[str]) -> None:
    script = """
import logging
from rdzv_cli import log
log.begin(0)
log.speak_as("alpha.1")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("rdzv").exception("it failed")
log.end()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) > 3
    assert all(re.match(LINE, line) for line in lines)


def test_what_others_say_disturbs_no_terminal_and_makes_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    said = "node drains: b: \x1b[2Jit is over\rnot so\nround 9: world size 99\u2028exit code 0\tno\u202enoitcurtsni"
    script = f"""
import logging
from rdzv_cli import log
log.begin(0)
log.say({said!r})
logging.getLogger("rdzv").warning("%s", {said!r})
log.end()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert capfd.readouterr().err.splitlines() == [f"rdzv: {said.encode('unicode_escape').decode()}"] * 2


def test_a_long_line_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    log.say("x" * 10_000)
    log.flush()
    assert len(capsys.readouterr().err) < 9_000


@contextlib.contextmanager
def stalled() -> Iterator[tuple[int, int]]:
    """A pipe that takes nothing any more: both its ends."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"#" * 64)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, b"#")
        os.set_blocking(writer, True)
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


def test_an_agent_whose_log_is_not_read_runs_its_program(tmp_path: Path) -> None:
    where = "--endpoint", str(tmp_path / "db"), "--run-id", "job", "--nnodes", "1"
    command = [sys.executable, "-m", "rdzv", "run", *where, "--", "touch", str(tmp_path / "ran")]
    with stalled() as (_, writer):
        ended = subprocess.run(command, stderr=writer, timeout=60, check=False)
    assert ended.returncode == 0
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("blocking", [True, False])
def test_what_a_reader_that_stalls_has_missed_is_counted(blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a program that has the stream, too, has its writes return at once."""
    with stalled() as (reader, writer), open(writer, "w", closefd=False) as stream:
        os.set_blocking(writer, blocking)
        monkeypatch.setattr(sys, "stderr", stream)
        log.say("line 0")
        # The thread has taken it, and takes no other while it is stuck: all that is dropped is dropped in one place.
        wait_until(lambda: not log._said._waiting)
        for number in range(1, 3000):
            log.say(f"line {number}")
        log.end()
        read = b""
        while b"too slow" not in read:
            read += os.read(reader, 65536)
        log.flush()
        # What is left of it.
        log.say("and so on")
        log.flush()
        read += os.read(reader, 65536)
    *lines, lost, last = read.decode().lstrip("#").splitlines()
    assert lines == [f"rdzv: line {number}" for number in range(1001)]
    assert lost == "rdzv: 1999 messages are not here: the reader of this log was too slow"
    assert last == "rdzv: and so on"


def test_the_version_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rdzv {rdzv.__version__}\n"
    assert rdzv.__version__ == version("rdzv")


def test_a_node_says_which_processes_do_not_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal, too, where they write as well: the line is not taken away."""
    monkeypatch.setattr(wait_line, "can_redraw", lambda: True)
    handler = DynamicRendezvousHandler.from_backend("run", None, MemoryBackend(), 1, 1)
    progress = run._Progress(handler, 30.0)
    for seconds, left in [(1.0, [0, 1]), (2.0, [0, 1]), (3.0, [1]), (12.0, [1]), (2.0, [])]:
        progress.ending(seconds, left)
    log.flush()
    assert capsys.readouterr().err.splitlines() == [
        "rdzv: waiting for local ranks 0, 1 to end, 2 s of 30 s (--grace)",
        "rdzv: waiting for local rank 1 to end, 12 s of 30 s (--grace)",
        "rdzv: waiting for what the command has started to end, 2 s of 30 s (--grace)",
    ]


@pytest.mark.usefixtures("memory")
def test_an_agent_that_waits_for_its_command_to_end_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_line, "FIRST", 0.0)
    # It ends its agent, and takes no notice of being asked to end.
    program = "trap '' TERM; kill -TERM $PPID_OF_AGENT; exec sleep 600"
    monkeypatch.setenv("PPID_OF_AGENT", str(os.getpid()))
    assert main(["run", *RUN, "--grace", "0.5", "--", "sh", "-c", program]) == 128 + signal.SIGTERM
    assert "waiting for local rank 0 to end, 0 s of 0.5 s (--grace)" in capsys.readouterr().err


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("option", "named"),
    [("--local-ranks-filter=0,7", "7"), ("--tee=0:3,5:3", "5"), ("--redirects=2:3,9:1", "2, 9")],
)
def test_local_ranks_that_are_not_there_are_named(
    option: str, named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", *RUN, "--nproc-per-node", "2", f"--log-dir={tmp_path}", option, "--", "true"]) == 0
    said = capsys.readouterr().err
    assert f"this node has no local rank {named}, as --local-ranks-filter, --tee or --redirects names it: " in said
    assert "they are 0 to 1\n" in said


def test_a_waiting_node_reports_a_silent_service(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = MemoryBackend()
    handler = DynamicRendezvousHandler.from_backend("run", None, backend, 1, 1, keep_alive_interval=0.1)
    progress = run._Progress(handler)
    monkeypatch.setattr(wait_line, "EVERY", 0.0)

    def waits(seconds: float) -> str:
        progress.waiting(seconds)
        log.flush()
        return capsys.readouterr().err.rstrip()

    try:
        silent = "rdzv: waiting for 1 node (no call to the service has succeeded for 12 s: no error yet), 12 s of 600 s"
        assert waits(12.0) == silent
        handler.next_rendezvous()
        assert "answered" not in waits(12.0)
        backend.disconnect("it is away")
        deadline = time.monotonic() + 10
        while handler.view.connection_error is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        silent = r"\(no call to the service has succeeded for \d s, .* without this node: it is away\), 12 s of 600 s$"
        assert re.search(silent, waits(12.0))
        # On a terminal, a line that wraps could not be taken away again.
        monkeypatch.setattr(progress._line, "is_in_place", True)
        monkeypatch.setenv("COLUMNS", "60")
        shown = waits(12.0).removeprefix("\r\x1b[K")
        assert shown.startswith("rdzv: waiting")
        assert shown.endswith("12 s of 600 s")
        assert len(shown) < 60
        log.clear()
    finally:
        backend.reconnect()
        handler.leave()


@pytest.mark.parametrize(
    ("refused", "was_in", "limit"), [("read_all", False, 30), ("put", False, 30), ("put", True, 40)]
)
def test_a_node_that_is_refused_reports_why_and_for_how_long_it_tries(
    refused: str, was_in: bool, limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = MemoryBackend()
    timeout = rdzv.RendezvousTimeout(refused=timedelta(seconds=40))
    handler = DynamicRendezvousHandler.from_backend(
        "run", None, backend, 1, 1, timeout=timeout, keep_alive_interval=0.1
    )
    progress = run._Progress(handler)
    if was_in:
        assert handler.next_rendezvous().round == 1
    backend.refuse(RendezvousDeniedError("wrong password"), refused)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(handler.next_rendezvous)
        try:
            wait_until(lambda: handler.view.connection_error is not None)
            progress.waiting(4.0)
            log.flush()
            line = "rdzv: waiting for 1 node (the service refuses this node: wrong password), refused for "
            assert re.search(rf"^{re.escape(line)}\d+ s of {limit} s\n\Z", capsys.readouterr().err, re.MULTILINE)
            backend.accept()
            assert joining.result(10).world_size == 1
        finally:
            handler.leave()


def test_a_wait_is_reported_soon_and_then_once_in_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    handler = DynamicRendezvousHandler.from_backend("run", None, MemoryBackend(), 1, 1)
    progress = run._Progress(handler)

    def told(until: int) -> list[float]:
        for tick in range(20 * until):
            progress.waiting(tick / 20)
        log.flush()
        return [float(line.rpartition(", ")[2].split()[0]) for line in capsys.readouterr().err.splitlines()]

    assert told(50) == [2, 12, 22, 32, 42]
    # The next wait begins anew.
    assert told(15) == [2, 12]


@pytest.mark.parametrize(("join", "told"), [(300.0, r"alone for \d s of 60 s"), (30.0, "7 s of 30 s")])
def test_a_waiting_node_reports_the_timeout_that_ends_the_wait(
    join: float, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_line, "EVERY", 0.0)
    with contextlib.closing(Run("memory")) as world:
        stays, *leave = nodes = world.nodes(3, 3, 3, join=join)
        progress = run._Progress(stays)

        def waits(seconds: float) -> str:
            progress.waiting(seconds)
            log.flush()
            return capsys.readouterr().err.rstrip()

        world.gather(*nodes)
        for node in leave:
            node.leave("drained")
        world.join(stays)
        wait_until(lambda: stays.view.alone is not None)
        here = r"re-forming, 1 here, 2 more needed; gone: \S+ \(rank \d\), \S+ \(rank \d\)"
        assert re.fullmatch(rf"rdzv: waiting for 3 nodes \({here}\), {told}", waits(7.0))
        # Another one is too few for a world.
        world.join(world.node(3, 3))
        wait_until(lambda: stays.view.alone is None)
        assert waits(7.0).endswith(f", 7 s of {join:.0f} s")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        # What is only looked at is started by no line of torchrun's.
        (["status", "--rdzv-id", "x"], "rdzv status: error: there is no option --rdzv-id; did you mean --run-id?"),
        (
            ["run", "--nproc=2", "--", "x"],
            "rdzv run: error: there is no option --nproc; did you mean --nproc-per-node?",
        ),
        (["run", "--runid=x"], "rdzv run: error: there is no option --runid; did you mean --run-id?"),
        (["run", *RUN, "--log-format", "xml", "--", "true"], "'xml' is not one of text, json"),
        (["run", *RUN, "--tee", "4", "--", "true"], "'4' names no streams; write 0 (none), 1 (standard output), "),
        (["run", *RUN, "--local-ranks-filter", "0;1", "--", "true"], "'0;1' are no local ranks; write them as in 0,1"),
        (["run", "--join-timeout", "5"], "no option --join-timeout; did you mean --option join_timeout=VALUE?"),
        (["run", "--labels=a=1"], "no option --labels; did you mean --option labels=VALUE?"),
        (["run", "--last_call_timeout=5"], "there is no option --last_call_timeout; did you mean --option last_call_"),
        (["run", "--timeout=5"], "there is no option --timeout; did you mean --option join_timeout=VALUE?"),
        # A run that is only looked at joins nothing.
        (["status", "--node-name", "x"], "rdzv status: error: there is no option --node-name."),
        (["status", "--runid=x"], "rdzv status: error: there is no option --runid; did you mean --run-id?"),
        (["run", *RUN, "--epochs", "3", "x.py"], "no option --epochs. Options of CMD come after it."),
        (
            ["run", *RUN, "python", "x.py", "--epochs", "3"],
            "there is no file 'python' for Python; another program goes after --, as in: rdzv run ... -- python train",
        ),
        (["run", *RUN], "rdzv run: error: give the program to start, as in: rdzv run ... -- python train.py"),
        (["status", "--run-id", "x", "--"], "rdzv status: error: unrecognized arguments: --"),
        (["run", *RUN, "--"], "rdzv run: error: give the program to start, as in: "),
        (["run", *RUN, "-x"], "rdzv run: error: unrecognized arguments: -x Write -- first."),
        (["run", *RUN, "-x", "--", "true"], "rdzv run: error: unrecognized arguments: -x"),
        (
            ["run", *RUN, "timeout", "5", "--", "true"],
            "rdzv run: error: there is no file 'timeout' for Python; another program goes after --, as in: rdzv run",
        ),
        (
            ["run", *RUN, "--nproc-per-node", "two", "--", "true"],
            "'two' is neither a number from 1 to 999999999 nor one of auto",
        ),
        (
            ["run", *RUN, "--nproc-per-node", "0", "--", "true"],
            "'0' is neither a number from 1 to 999999999 nor one of auto",
        ),
        (["run", *RUN, "--nproc-per-node", "gpu", "--", "true"], "no NVIDIA GPU is found"),
        (["run", *RUN, "--max-restarts", "-1", "--", "true"], "'-1' is no whole number from 0 to 999999999"),
        (["run", *RUN, "--attempt", "x", "--", "true"], "'x' is no whole number from 0 to 999999999"),
        (
            ["run", *RUN, "--nproc-per-node", 5000 * "9", "--", "true"],
            f"{LONG}' is neither a number from 1 to 999999999",
        ),
        (["run", *RUN, "--max-restarts", 5000 * "9", "--", "true"], f"{LONG}' is no whole number from 0 to 999999999"),
        (["run", *RUN, "--grace", 5000 * "9", "--", "true"], f"{LONG}' is not from 0 to 1000000000 seconds"),
        (["run", *RUN, "--grace", "soon", "--", "true"], "'soon' is no number of seconds, such as 2.5"),
        (["run", *RUN, "--drain", "soon", "--", "true"], "'soon' is no number of seconds, such as 2.5, or auto"),
        (
            ["run", *RUN, "--hang-timeout", "0", "--", "true"],
            "'0' is no time at all; give a number of seconds, such as 2.5",
        ),
        (["run", *RUN, "--check-cooldown", "-1", "--", "true"], "'-1' is not from 0 to 1000000000 seconds"),
        (
            ["run", *RUN, "--on-drain", "USR3", "--", "true"],
            "no signal that a program can handle, such as SIGUSR1;",
        ),
        (
            ["run", *RUN, "--on-drain", "SIGKILL", "--", "true"],
            "'SIGKILL' is no signal that a program can handle: the system ends or stops it then; give another, such as",
        ),
        (["run", *RUN, "--on-drain", "9", "--", "true"], "'9' is no signal that a program can handle, such as SIGUSR1"),
        (
            ["run", *RUN, "--on-drain", "10", "--", "true"],
            "'10' is no signal that a program can handle, such as SIGUSR1; did you mean SIGUSR1?",
        ),
        (["run", *RUN, "--signals-to-handle", "SIGTERM,", "--", "true"], "'' is no signal that a program can handle"),
        (
            ["run", *RUN, "--signals-to-handle", "TERM,chld", "--", "true"],
            "SIGCHLD does not ask a process to end, as SIGTERM does",
        ),
        (["run", *RUN, "--check", "disk:/x", "--", "true"], "'disk:/x' is no check; write disk:PATH:SIZE, such as "),
    ],
)
def test_an_argument_that_cannot_be_used_is_named_first_and_the_help_of_its_command_after_it(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error, help_is_in = capsys.readouterr().err.splitlines()
    assert error.startswith(f"rdzv {arguments[0]}: error: ")
    assert complaint in error
    assert "invalid" not in error
    assert help_is_in == f"see rdzv {arguments[0]} --help"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], f"give a command: {COMMANDS}."),
        (["stauts", "--run-id", "x"], "there is no command 'stauts'; did you mean status?"),
        (["help"], f"there is no command 'help'; give {COMMANDS}."),
        (["--run-id", "x", "status"], "there is no option --run-id. Options of a command come after it."),
        (["--verison"], "there is no option --verison; did you mean --version?"),
    ],
)
def test_a_command_that_does_not_exist_is_named_with_the_nearest(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["rdzv", *arguments])
    for given in (arguments, None):
        with pytest.raises(SystemExit) as ended:
            main(given)
        assert ended.value.code == 2
        assert capsys.readouterr().err == f"rdzv: error: {complaint}\nsee rdzv --help\n"


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--option", "attempt=3", "--option", "geheim"],
            "such as join_timeout=60; what --option number 2 gives is not",
        ),
        (["--option", "=geheim"], "such as join_timeout=60; what --option number 1 gives is not of that form."),
        (["--nnodes", "0"], "--nnodes is '0'; MIN:MAX, such as 2:4, or one number is expected, with 1 <= MIN <= MAX."),
        (["--nnodes", "3:2"], "--nnodes is '3:2'; MIN:MAX, such as 2:4, or one number is expected, with 1 <= MIN"),
        (["--option", "attempt=3", "--attempt", "2"], "--option attempt=3 and --attempt 2 contradict each other"),
        (["--option", "attempt=3", "--option", "attempt=2"], "--option gives attempt twice, with different values"),
        (["--nnodes", 5000 * "9"], f"--nnodes is '{LONG}'; MIN:MAX"),
        (
            ["--option", "master_port=7", "--master-port", "8"],
            "--option master_port=7 and --master-port 8 contradict each other",
        ),
        (["--master-port", "http"], "The option 'master_port' cannot be 'http': a port or a range of them, from 1 to"),
        (["--local-addr", "203.0.113.5"], "The local_addr '203.0.113.5' is no address of this machine; it has "),
        (["--local-addr", "203.0.113.0/24"], "This machine has no address in the network '203.0.113.0/24' that others"),
        (["--local-addr", "256.1.1.1"], "The local_addr '256.1.1.1' is no address of a machine"),
        (["--local-addr", "10.0.0.1:80"], "The local_addr '10.0.0.1:80' is no address of a machine"),
        (["--local-addr", "0.0.0.0"], "The local_addr '0.0.0.0' is no address of a machine"),
        (
            ["--drain", "60", "--signals-to-handle", "SIGINT,SIGUSR2"],
            "--drain begins at SIGTERM or SIGUSR1, and --signals-to-handle names neither, so that they would end the",
        ),
        (["--option", "endpoint=x"], "'endpoint' belongs neither in --option nor in RDZV_OPTIONS: give --endpoint."),
        (["--option", "run_id=x"], "'run_id' belongs neither in --option nor in RDZV_OPTIONS: give --run-id."),
        (["--option", "max_nodes=2"], "'max_nodes' belongs neither in --option nor in RDZV_OPTIONS: give --nnodes."),
        (["--option", "nnodes=2"], "'nnodes' belongs neither in --option nor in RDZV_OPTIONS: give --nnodes."),
        (["--option", "endpont=x"], "knows no option 'endpont'. Did you mean 'endpoint'?"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *RUN, *arguments, "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
    assert "geheim" not in line


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ([], "127.0.0.7"),
        (["--local-addr", "lo"], "127.0.0.1"),
        (["--local-addr", "127.0.0.0/8"], "127.0.0.1"),
        (["--local-addr", "203.0.113.5", "--option", "behind_nat=yes"], "203.0.113.5"),
    ],
)
def test_rank_0_is_where_the_environment_or_the_command_line_says(
    arguments: list[str], where: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDZV_LOCAL_ADDR", "127.0.0.7")
    assert main(["run", *RUN, *arguments, "--", "sh", "-c", "echo $MASTER_ADDR"]) == 0
    assert capfd.readouterr().out == f"{where}\n"


@pytest.mark.usefixtures("memory")
def test_rank_0_has_a_port_of_the_range(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *RUN, "--master-port", "1025-19999", "--", "sh", "-c", "echo $MASTER_PORT"]) == 0
    assert 1025 <= int(capfd.readouterr().out) <= 19999


@pytest.mark.usefixtures("memory")
def test_a_program_that_cannot_be_started_is_named_before_the_run_is_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    for name in ("no-such-program", "./nowhere", "program", "./program", str(program), str(tmp_path), ""):
        assert main(["run", *RUN, "--", name]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith(f"cannot start '{printable(name)}': there is no such program, or it is not executable")
    program.chmod(0o755)
    assert main(["run", *RUN, "--", "./program"]) == 0


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    "arguments",
    [("a", "--", "b", "--", "c"), ("--",), ("--", "--"), ("a", "--"), ("rdzv", "run", "-v", "--", "sh", "-c", "x"), ()],
)
def test_the_program_gets_all_that_stands_behind_the_first_separator(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    written = tmp_path / "arguments"
    tells = ["sh", "-c", f'for each; do echo "$each" >> {written}; done; touch {written}', "sh"]
    assert main(["run", *RUN, "--", *tells, *arguments]) == 0
    assert written.read_text().splitlines() == [*arguments]


@pytest.mark.usefixtures("memory")
def test_a_job_that_ends_well_says_so_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = "test -e failed || { touch failed; exit 1; }"
    assert main(["run", *RUN, "--max-restarts", "1", "--", "sh", "-c", program]) == 0
    *others, last = capsys.readouterr().err.splitlines()
    assert re.search(r" rdzv\[.+\]: done after \d+\.\d s: 1 node has finished, in round 2$", last)
    assert not any("done" in line for line in others)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(("command", "code"), [("status", 11), ("close", 0)])
def test_a_run_id_in_the_environment_is_used_and_named(
    command: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDZV_BACKEND", "memory")
    monkeypatch.setenv("RDZV_RUN_ID", "job-7")
    assert main([command]) == code
    assert "job-7" in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(("missing", "name"), [("--run-id", "RDZV_RUN_ID"), ("--nnodes", "RDZV_NNODES")])
def test_a_variable_that_is_empty_counts_as_not_given(
    missing: str, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RDZV_BACKEND", "RDZV_RUN_ID", "RDZV_NNODES"):
        monkeypatch.setenv(variable, "")
    given = {"--run-id": "job", "--nnodes": "1"}
    del given[missing]
    with pytest.raises(SystemExit):
        main(["run", *next(iter(given.items())), "--", "true"])
    alone = "; or, for this machine alone, --standalone"
    assert f"the following arguments are required: {missing} (or {name}){alone}\n" in capsys.readouterr().err


def test_a_run_of_several_nodes_that_has_no_name_is_not_sent_to_a_machine_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--nnodes", "2", "--", "true"])
    assert "the following arguments are required: --run-id (or RDZV_RUN_ID)\n" in capsys.readouterr().err
    assert main(["status", "--run-id", "job", "--endpoint", "nope.db"]) == 2
    assert "There is no database" in capsys.readouterr().err


def test_a_number_of_nodes_is_named_as_it_was_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDZV_NNODES", "x")
    assert main(["run", "--run-id", "job", "--", "true"]) == 2
    assert capsys.readouterr().err.startswith("rdzv: RDZV_NNODES is 'x'; ")
    assert main(["run", "--run-id", "job", "--nnodes", "y", "--", "true"]) == 2
    assert capsys.readouterr().err.startswith("rdzv: --nnodes is 'y'; ")


def test_what_is_wrong_from_the_beginning_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "db"
    wrong.write_text("a text\n" * 200)
    assert main(["run", "--endpoint", str(wrong), "--run-id", "job", "--nnodes", "1", "--", "true"]) == 7
    assert capsys.readouterr().err.count("is corrupt or no database of rdzv") == 1


class SharedBackend(MemoryBackend):
    """A service that has clients on several machines."""

    @property
    def local_address(self) -> str:
        return "192.0.2.1"


class TestDefaultBackend:
    """Which backend a command has that names none."""

    SHARED = BackendPlugin(
        "one that machines share", (), lambda params: (MemoryBackend(MemoryService()), None), SharedBackend
    )
    LOCAL = replace(SHARED, backend_type=MemoryBackend)

    def params(self, monkeypatch: pytest.MonkeyPatch, installed: dict[str, BackendPlugin], nodes: int) -> str:
        """The backend of ``rdzv run`` where these are installed."""
        monkeypatch.delenv("RDZV_BACKEND", raising=False)
        monkeypatch.setattr(common, "installed_backends", lambda: dict.fromkeys(installed))
        for name, plugin in installed.items():
            monkeypatch.setitem(registered_backends, name, plugin)
        arguments = argparse.Namespace(backend=None, endpoint="", run_id="job", option=[])
        return common.parameters(arguments, 1, nodes, environ={}).backend

    @pytest.mark.parametrize(
        ("installed", "nodes", "backend"),
        [
            ({"acme": SHARED}, 1, "acme"),
            ({"acme": SHARED}, 4, "acme"),
            ({"acme": LOCAL}, 1, "acme"),
            ({"acme": SHARED, "sqlite": LOCAL}, 1, "sqlite"),
            # It says on the first line of each node that it serves this machine only.
            ({"sqlite": LOCAL}, 4, "sqlite"),
        ],
    )
    def test_it_is_the_only_one_or_sqlite(
        self, installed: dict[str, BackendPlugin], nodes: int, backend: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.params(monkeypatch, installed, nodes) == backend

    @pytest.mark.parametrize(
        ("installed", "says"),
        [
            (
                {"acme": LOCAL},
                r"^The only backend that is installed, acme, serves the processes of one machine, and 4 ",
            ),
            ({"a": SHARED, "b": SHARED}, r"^Several backends are installed \(a, b\): say which one by --backend"),
        ],
    )
    def test_none_is_chosen_that_may_be_meant_or_not(
        self, installed: dict[str, BackendPlugin], says: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(rdzv.RendezvousParameterError, match=says):
            self.params(monkeypatch, installed, 4)


@pytest.mark.usefixtures("memory")
def test_an_old_attempt_is_refused_with_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *RUN, "--option", "attempt=3", "--attempt", "3", "--", "true"]) == 0
    assert main(["run", *RUN, "--", "true"]) == 4
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith(
            "is at attempt 3; this node belongs to attempt 0. Start it with attempt 3 to join that one, "
            "with a higher one to supersede it, or under another run id."
        )
    )


@pytest.mark.parametrize("text", ["SIGUSR1", "usr1", "sigusr1"])
def test_a_signal_is_given_by_its_name(text: str) -> None:
    assert signal_number(text) == signal.SIGUSR1


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="this system has no real-time signals")
def test_every_signal_has_a_name_by_which_it_can_be_given() -> None:
    assert (signal_name(signal.SIGRTMIN), signal_name(signal.SIGRTMIN + 6)) == ("SIGRTMIN", "SIGRTMIN+6")
    handled = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    assert [signal_number(signal_name(number)) for number in handled] == [*handled]


class TestProcessesPerNode:
    @pytest.fixture
    def smi(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A machine with three GPUs, one of which is shared out."""
        command = tmp_path / "nvidia-smi"
        gpus = [f"GPU {number}: NVIDIA A100 (UUID: GPU-{number})" for number in range(3)]
        listed = "\n".join([*gpus, "  MIG 1g.5gb Device 0: (UUID: MIG-1)"])
        command.write_text(f"#!/bin/sh\ncat <<'END'\n{listed}\nEND\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def test_may_be_a_number_or_that_of_the_cpus(self) -> None:
        assert processes("12") == 12
        assert 1 <= processes("cpu") <= len(os.sched_getaffinity(0))

    @pytest.mark.usefixtures("smi")
    @pytest.mark.parametrize(
        ("visible", "count"),
        [
            (None, 3),
            ("0,2", 2),
            (f"0,{5000 * '9'},1", 1),
            ("0,7,1", 1),
            ("GPU-1, GPU-2", 2),
            ("0,-1,1", 1),
            ("MIG-1", 1),
            ("0,1,2,GPU-1", 3),
        ],
    )
    def test_may_be_that_of_the_gpus(self, visible: str | None, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert processes("gpu") == processes("auto") == count

    def test_the_driver_sees_no_secret(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        command, seen = tmp_path / "nvidia-smi", tmp_path / "seen"
        command.write_text(f"#!/bin/sh\nenv > {seen}\necho GPU 0: NVIDIA A100\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        monkeypatch.setenv("RDZV_PASSWORD", "hunter2")
        monkeypatch.setenv("RDZV_OPTIONS", "token=hunter3")
        assert processes("gpu") == 1
        assert "CUDA_VISIBLE_DEVICES=0" in seen.read_text()
        assert "hunter" not in seen.read_text()

    @pytest.mark.usefixtures("smi")
    @pytest.mark.parametrize("visible", ["", "-1", "none"])
    def test_is_that_of_the_cpus_where_no_gpu_is_to_be_seen(
        self, visible: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert processes("auto") == processes("cpu")
        with pytest.raises(ArgumentTypeError, match=r"no NVIDIA GPU is found.*give a number, or cpu"):
            processes("gpu")

    def test_a_driver_that_fails_has_no_gpus(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        command = tmp_path / "nvidia-smi"
        command.write_text("#!/bin/sh\nexit 9\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert processes("auto") == processes("cpu")


def test_ctrl_c_while_the_command_is_imported_ends_it_quietly() -> None:
    interrupted = """
import sys
from importlib.metadata import entry_points

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "rdzv":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
(script,) = entry_points(group="console_scripts", name="rdzv")
sys.exit(script.load()())
"""
    ended = subprocess.run([sys.executable, "-c", interrupted], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.usefixtures("memory")
def test_too_few_restarts_to_give_up_are_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    for restarts in ("1", "2"):
        given = ["--give-up-after", "3", "--max-restarts", restarts]
        assert main(["run", *RUN, "--attempt", restarts, *given, "--", "true"]) == 0
    (line,) = [line for line in caplog.messages if "give-up" in line]
    assert line.startswith("--give-up-after 3 takes --max-restarts 2 or more, and it is 1: a node that fails")


@pytest.mark.usefixtures("memory")
def test_of_a_service_without_an_endpoint_the_backend_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--backend", "memory"])
    assert "\nservice (memory):\n" in capsys.readouterr().out
    assert main(["run", *RUN, "--", "true"]) == 0
    assert "run 'job', backend memory, 1 node, node " in capsys.readouterr().err
