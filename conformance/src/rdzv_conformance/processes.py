"""Other processes for a test: made by a fork, spoken to in JSON, killed and paused at will, never left behind.

A fork needs no pickling: the work is any function, and the factory of clients that it uses lives on in
the child. So that nothing but plain memory is inherited, a test forks before it opens a client.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, Final, NoReturn, Self, TypeVar

_T = TypeVar("_T")

_PATIENCE: Final = 30.0
_EVER: Final = 86400.0
_PR_SET_PDEATHSIG: Final = 1
_ASK: Final = signal.SIGUSR1
"""Has a process say what it does."""
_GRACE: Final = 1.0
"""Within so many seconds it says so."""


class Link:
    """One end of a line between a test and a process of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""

    def send(self, message: Any = None) -> None:
        """Send anything that JSON can hold."""
        self._post("message", message)

    def receive(self, timeout: float = _PATIENCE) -> Any:
        """Wait for what the other end sends next.

        Raises:
            TimeoutError: It sent nothing within `timeout` seconds.
            EOFError: It was killed.
            AssertionError: It failed; the message holds its traceback.
        """
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            if not select.select([self._connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"The other process said nothing for {timeout} s.")
            data = self._connection.recv(65536)
            if not data:
                raise EOFError("The other process has ended.")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        kind, content = json.loads(line)
        if kind == "failure":
            raise AssertionError(f"A process of this test failed:\n{content}")
        return content

    def obey(self, target: object) -> NoReturn:
        """Do what the other end asks for, for ever: it sends the name of a method of `target`, and what that takes.

        The answer is what the method returns.
        """
        while True:
            method, *arguments = self.receive(_EVER)
            self.send(getattr(target, method)(*arguments))

    def _post(self, kind: str, content: Any) -> None:
        self._connection.sendall(json.dumps([kind, content]).encode() + b"\n")


class Worker(Link):
    """The test's end: a process that does a piece of work; see `Processes.fork`."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        super().__init__(connection)
        self.pid = pid
        self._ended = False

    def result(self, timeout: float = _PATIENCE) -> Any:
        """Wait until the work is done, and for what it returned.

        Raises:
            TimeoutError: It was not done within `timeout` seconds; the message shows what the process was doing.
            EOFError: As `receive`.
            AssertionError: As `receive`.
        """
        try:
            result = self.receive(timeout)
        except TimeoutError as error:
            raise TimeoutError(f"{error} What it did:\n{self._stack()}") from None
        self._reap()
        return result

    def ask(self, method: str, *arguments: Any, timeout: float = _PATIENCE) -> Any:
        """What a method of the object returns that the process obeys for; see `Link.obey` and `Link.receive`."""
        self.send([method, *arguments])
        return self.receive(timeout)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP) and wait until it is."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process (SIGKILL), if it still lives."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _stack(self) -> Any:
        os.kill(self.pid, _ASK)
        try:
            return self.receive(_GRACE)
        except TimeoutError:
            return "It is frozen, or waits where Python hears no signal."

    def _reap(self) -> None:
        os.waitpid(self.pid, 0)
        self._ended = True


class Processes:
    """The processes of one test; a context manager that kills what is left of them."""

    def __init__(self) -> None:
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Kill every process that is left."""
        self._cleanup.close()

    def together(self, prepare: Callable[[], _T], work: Callable[[_T, int], Any], count: int) -> list[Any]:
        """Have several processes do the same at the same time.

        Args:
            prepare: What each does first, such as to make a client.
            work: What they begin when all are prepared: with what that gave, and the number (from 0) of the process.
            count: How many.

        Returns:
            What each of them returned.
        """

        def live(link: Link) -> Any:
            prepared = prepare()
            link.send()
            return work(prepared, link.receive())

        workers = [self.fork(live) for _ in range(count)]
        for worker in workers:
            worker.receive()
        for number, worker in enumerate(workers):
            worker.send(number)
        return [worker.result() for worker in workers]

    def fork(self, work: Callable[[Link], Any]) -> Worker:
        """Start a process that calls ``work(link)``.

        Fork before the test opens a client or starts a thread.

        Args:
            work: What it sends over the link, and at last what it returns, arrives at the worker.
        """
        ours, theirs = socket.socketpair()
        test = os.getpid()
        with warnings.catch_warnings():
            # Python >= 3.12 warns if any thread runs, even one that belongs to a plugin of pytest's.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            ours.close()
            _work(work, Link(theirs), test)
        theirs.close()
        worker = Worker(pid, ours)
        self._cleanup.callback(ours.close)
        self._cleanup.callback(worker.kill)
        return worker


def _work(work: Callable[[Link], Any], link: Link, test: int) -> None:
    """The life of the child: it never returns into the test."""
    try:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(_ASK, lambda _, frame: link.send("".join(traceback.format_stack(frame))))
        if os.getppid() == test:
            link._post("result", work(link))
    except BaseException:  # even SystemExit must not run the test session's exit handlers
        with contextlib.suppress(OSError):
            link._post("failure", traceback.format_exc())
    finally:
        os._exit(0)
