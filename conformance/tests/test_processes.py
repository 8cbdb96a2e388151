"""The processes of a test."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from rdzv_conformance.deadlines import eventually
from rdzv_conformance.processes import Link, Processes


def test_messages_go_both_ways_and_the_result_comes_last() -> None:
    def work(link: Link) -> list[int]:
        numbers = link.receive()
        link.send(os.getpid())
        return [2 * number for number in numbers]

    with Processes() as processes:
        worker = processes.fork(work)
        worker.send([1, 2])
        assert worker.receive() == worker.pid != os.getpid()
        assert worker.result() == [2, 4]


def test_failure_comes_with_its_traceback() -> None:
    def work(link: Link) -> None:
        raise ValueError("no luck")

    with Processes() as processes, pytest.raises(AssertionError, match=r"(?s)in work.*ValueError: no luck"):
        processes.fork(work).result()


def test_exit_of_the_work_stays_in_the_process() -> None:
    with Processes() as processes, pytest.raises(AssertionError, match="SystemExit: 3"):
        processes.fork(lambda link: sys.exit(3)).result()


def test_killed_process_is_reported_and_silence_is_bounded() -> None:
    with Processes() as processes:
        worker = processes.fork(lambda link: link.receive(600))
        with pytest.raises(TimeoutError, match=r"said nothing for 0\.1 s"):
            worker.receive(0.1)
        worker.kill()
        worker.kill()
        with pytest.raises(EOFError):
            worker.receive()


def test_work_that_does_not_end_is_named() -> None:
    def ask_the_service(link: Link) -> None:
        threading.Event().wait()

    with Processes() as processes, pytest.raises(TimeoutError, match=r"(?s)What it did:.*in ask_the_service"):
        processes.fork(ask_the_service).result(0.5)


def test_paused_process_is_silent_until_resumed() -> None:
    def work(link: Link) -> None:
        while True:
            link.send(link.receive())

    with Processes() as processes:
        worker = processes.fork(work)
        worker.pause()
        worker.send("hello")
        with pytest.raises(TimeoutError):
            worker.receive(0.2)
        worker.resume()
        assert worker.receive() == "hello"
        worker.pause()


def test_nothing_is_left() -> None:
    files = len(os.listdir("/proc/self/fd"))
    with Processes() as processes:
        workers = [processes.fork(lambda link: link.receive(600)) for _ in range(3)]
        workers[0].pause()
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker.pid, 0)
    assert len(os.listdir("/proc/self/fd")) == files


def test_processes_die_with_the_test_session() -> None:
    def session(link: Link) -> None:
        with Processes() as inner:
            link.send(inner.fork(lambda link: link.receive(600)).pid)
            link.receive(600)

    with Processes() as processes:
        outer = processes.fork(session)
        pid = outer.receive()
        os.kill(outer.pid, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{pid}").exists(), "the process to end with its session")


def test_fork_is_possible_beside_a_thread() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with Processes() as processes:
            assert processes.fork(lambda link: threading.active_count()).result() == 1
    finally:
        over.set()
        thread.join()


def test_together_each_gets_its_number() -> None:
    with Processes() as processes:
        assert processes.together(lambda: 2, lambda power, number: number**power, 3) == [0, 1, 4]
