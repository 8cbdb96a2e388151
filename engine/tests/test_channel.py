"""What an agent and its process tell each other over a file."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdzv import RendezvousParameterError
from rdzv.channel import AgentEnd, ProcessEnd, Report


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentEnd]:
    end = AgentEnd(tmp_path / "0")
    yield end
    end.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def process(agent: AgentEnd, monkeypatch: pytest.MonkeyPatch) -> ProcessEnd:
    """The other end; the tests themselves offer no stacks."""
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    return ProcessEnd(str(agent.path))


def test_the_agent_sees_each_call_and_its_step(agent: AgentEnd, process: ProcessEnd) -> None:
    assert agent.report() == Report()
    for step in (7, 7, -1, 2**63 - 1):
        process.progress(step)
        assert agent.report().step == step
    assert agent.report().calls == 4


class Index:
    """What a library has for whole numbers."""

    def __index__(self) -> int:
        return 7


def test_any_whole_number_is_a_step(agent: AgentEnd, process: ProcessEnd) -> None:
    process.progress(Index())  # type: ignore[arg-type]
    assert agent.report().step == 7


@pytest.mark.parametrize("step", [1.5, "7", None, 2**63, -(2**63) - 1])
def test_a_step_is_a_whole_number_of_64_bits(agent: AgentEnd, process: ProcessEnd, step: int) -> None:
    with pytest.raises(RendezvousParameterError, match="takes a whole number from"):
        process.progress(step)
    assert agent.report().calls == 0


def test_the_process_sees_the_drains_that_are_shown_now(agent: AgentEnd, process: ProcessEnd) -> None:
    assert process.drains() == ()
    now = time.monotonic()
    assert agent.show([("b.2", now + 60, "spot"), ("a.1", now - 5, "it \u2603 snows")]) == 1
    first, second = process.drains()
    assert (first.node, first.reason, second.node) == ("a.1", "it \u2603 snows", "b.2")
    # It may be gone: what is left is not less than nothing.
    assert first.seconds == 0.0
    assert 59 < second.seconds < 60
    # They are those of this moment.
    assert process.drains()[1].seconds < second.seconds
    assert agent.show([]) == 2
    assert process.drains() == ()


def test_a_process_is_ready_for_what_is_shown(agent: AgentEnd, process: ProcessEnd) -> None:
    process.ready()
    assert agent.report().ready == 0
    agent.show([("a.1", 0.0, "")])
    number = agent.show([("a.1", 0.0, ""), ("b.2", 0.0, "")])
    process.ready()
    assert agent.report().ready == number == 2


def test_of_more_drains_than_fit_the_first_to_go_are_shown(agent: AgentEnd, process: ProcessEnd) -> None:
    agent.show((f"node{number}.1", -number, "r" * 100) for number in range(10_000))
    shown = process.drains()
    assert 200 < len(shown) < 400
    assert [drain.node for drain in shown] == [f"node{9999 - index}.1" for index in range(len(shown))]


def test_a_reader_never_sees_half_a_set(agent: AgentEnd, process: ProcessEnd) -> None:
    ended = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not ended.is_set():
            written += 1
            agent.show((f"{written}.{number}", 0.0, "x" * (written % 50)) for number in range(written % 100))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen: set[str] = set()
        deadline = time.monotonic() + 30
        while len(seen) < 100:
            assert time.monotonic() < deadline
            drains = process.drains()
            sets = {drain.node.partition(".")[0] for drain in drains}
            assert len(sets) == bool(drains)
            for number in sets:
                assert len(drains) == int(number) % 100
                seen.add(number)
    finally:
        ended.set()
        writer.join()


def test_an_agent_that_stopped_while_it_wrote_is_not_waited_for(agent: AgentEnd, process: ProcessEnd) -> None:
    agent.show([("a.1", 0.0, "")])
    with open(agent.path, "r+b") as file:
        # The half that is not shown, and what a later version of it would show.
        file.seek(56)
        file.write(b"half a set")
        assert [drain.node for drain in process.drains()] == ["a.1"]
        file.seek(8)
        file.write((2).to_bytes(8, sys.byteorder))
        file.flush()
    assert [drain.node for drain in process.drains()] == ["a.1"]


@pytest.mark.parametrize("content", [None, b"", b"rdzvch99" + bytes(100_000)])
def test_a_file_that_is_not_the_agents_is_none(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "0"
    if content is not None:
        path.write_bytes(content)
    process = ProcessEnd(str(path))
    process.progress(1)
    process.ready()
    assert process.drains() == ()
    assert (path.read_bytes() if path.exists() else None) == content


def test_a_file_that_is_cut_short_harms_no_agent(agent: AgentEnd) -> None:
    os.truncate(agent.path, 3)
    assert agent.report() == Report()
    agent.show([("a.1", 0.0, "")])


def test_a_file_for_which_there_is_no_room_is_an_error_and_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda file, data: len(data) - 1)
    with pytest.raises(OSError, match="No space left"):
        AgentEnd(tmp_path / "0")
    assert list(tmp_path.iterdir()) == []


OFFERS = """
import os, signal, sys
from rdzv.channel import ProcessEnd
if sys.argv[2] != "free":
    # The signal may come while "started" is printed, and print() is not reentrant.
    signal.signal(signal.SIGRTMIN, lambda *_: os.write(1, b"mine\\n"))
ProcessEnd(sys.argv[1]).progress(5)
def is_stuck():
    print("started", flush=True)
    sys.stdin.read()
is_stuck()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="the signal is another one here")
@pytest.mark.parametrize("use", ["free", "taken"])
def test_stacks_are_offered_where_the_signal_is_free(agent: AgentEnd, use: str) -> None:
    command = [sys.executable, "-c", OFFERS, str(agent.path), use]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as program:  # type: ignore[call-overload]
        assert program.stdout.readline() == "started\n"
        report = agent.report()
        program.send_signal(report.signal or signal.SIGRTMIN)
        if use == "free":
            assert report.process == program.pid
            assert "most recent call first" in program.stderr.readline()
            assert program.stderr.readline().endswith("in is_stuck\n")
        else:
            assert (report.process, report.signal) == (0, 0)
            assert program.stdout.readline() == "mine\n"
        program.communicate()
        assert program.returncode == 0
