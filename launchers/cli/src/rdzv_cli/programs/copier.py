"""Copies what processes write from pipes to the console and to files, whole lines at a time; nothing is dropped.

It has one thread; `agent.copier.Copier` is the agent's end of it. So a console that stalls holds up the processes that
write to it, and nothing of the agent; and what they had written before the agent was killed is still copied.

Its argument is the number of a socket, from which it reads lines of JSON:

* ``["copy", PIPES]``, the first: copy these, each a list of the descriptor to read, that of the console to write, what
  stands before each line there, or what an object of JSON names for each in its place (else null), and the path of a
  file, which gets the bytes as they are (or null);
* ``["tail", DESCRIPTORS]``: is answered, when all is copied that stands in these pipes, with the end of each.

When the agent closes its end, all is copied that stands in the pipes, and then the answer is the number of those that
something can still write to. The program ends when nothing can any more. Texts stand for bytes, as Latin-1 has them.
"""

import array
import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import stat
import sys
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

_BLOCK: Final = 1 << 18
"""Bytes that are read at a time."""

_LONGEST: Final = 1 << 20
"""Bytes of a line; a longer one is shown in pieces."""

_ATOMIC: Final = select.PIPE_BUF
"""Bytes that reach a pipe in one piece, also where others write to it, such as the agent."""

TAIL: Final = 2000
"""Bytes that are kept of the end of each stream."""

Names = dict[str, Any] | None
"""What each object of JSON names; None: lines are text."""

NOWHERE: Final = 0
"""The console of a stream of which only the end is kept: this program's standard input, which is the null device."""

_CONSOLES: Final = {NOWHERE: "the null device", 1: "the standard output", 2: "the standard error"}

_KEPT: Final = {
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT),
    *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
}
"""The signals that do to this program what they do to any: it cannot ignore them, or is broken when they come."""


class Sink:
    """What takes bytes: a console or a file.

    Attributes:
        is_open: Whether it still takes any.
    """

    def __init__(self, descriptor: int, name: str, names: Names = None) -> None:
        """Take those for a descriptor, which `name` tells to the user; in JSON, if there are `names` for that."""
        self.is_open = True
        self._descriptor = descriptor
        self._name = name
        self._names = names
        self._is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)

    def write(self, lines: bytes) -> None:
        """Write whole lines, however long that takes. One that cannot be written to is closed."""
        try:
            for piece in _pieces(lines) if self._is_pipe else (memoryview(lines),):
                write(self._descriptor, piece)
        except OSError as error:
            self.is_open = False
            if not isinstance(error, BrokenPipeError):
                _say(f"{self._name} cannot be written, and gets no more: {error.strerror}", self._names)


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, however long that takes."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # Another process that has it, too, has made it so: who reads slowly is waited for all the same.
            ready = select.poll()
            ready.register(descriptor, select.POLLOUT)
            ready.poll()


def _pieces(lines: bytes) -> Iterator[memoryview]:
    """Whole lines, as many at a time as reach a pipe in one piece."""
    view, begin = memoryview(lines), 0
    while len(lines) - begin > _ATOMIC:
        end = lines.rfind(b"\n", begin, begin + _ATOMIC) + 1 or lines.find(b"\n", begin) + 1 or len(lines)
        yield view[begin:end]
        begin = end
    yield view[begin:]


class Stream:
    """One stream of one process.

    Attributes:
        tail: The end of what was copied.
    """

    def __init__(self, pipe: int, console: Sink, form: Callable[[bytes], bytes], file: Sink | None) -> None:
        """Copy from a pipe to a console, where lines have a form, and, if there is one, to a file."""
        self.tail = b""
        self._pipe = pipe
        self._console = console
        self._form = form
        self._file = file
        self._begun = b""
        os.set_blocking(pipe, False)

    def copy(self) -> int:
        """Copy what stands in the pipe, up to a block; returns the number of bytes.

        Raises:
            EOFError: There is no more, and will be none; or nothing takes it, and who writes has to know.
        """
        try:
            block = os.read(self._pipe, _BLOCK)
        except BlockingIOError:
            return 0
        if self._file is not None and self._file.is_open:
            self._file.write(block)
        self.tail = block[-TAIL:] if len(block) >= TAIL else (self.tail + block)[-TAIL:]
        if self._console.is_open:
            self._show(block)
        if not block or not (self._console.is_open or (self._file is not None and self._file.is_open)):
            os.close(self._pipe)
            raise EOFError
        return len(block)

    def _show(self, block: bytes) -> None:
        """Show the lines that have ended with this block; an empty one ends the last."""
        text = self._begun + block
        # Where a carriage return comes last, a line feed may follow.
        end = max(text.rfind(b"\n"), text.rfind(b"\r", 0, -1)) + 1
        if not block or len(text) - end > _LONGEST:
            end = len(text)
        self._begun, lines = text[end:], text[:end]
        if lines:
            if b"\r" in lines:
                # A bar that is drawn anew, over what another process has written since.
                lines = lines.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            self._console.write(self._form(lines.removesuffix(b"\n")) + b"\n")

    def empty(self) -> None:
        """Copy what stands in the pipe now.

        Raises:
            EOFError: As `copy`.
        """
        left = _waiting(self._pipe)
        # Once more than that, to see an end that comes next.
        while left >= 0 and (copied := self.copy()):
            left -= copied


def prefixed(prefix: bytes) -> Callable[[bytes], bytes]:
    """Have this stand before each line."""
    return lambda lines: prefix + lines.replace(b"\n", b"\n" + prefix) if prefix else lines


def named(names: dict[str, Any]) -> Callable[[bytes], bytes]:
    """Have each line be an object of JSON that has these names, too."""
    return lambda lines: _objects(lines, names)


def _objects(lines: bytes, names: dict[str, Any]) -> bytes:
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    # All but the message is the same for all lines: to write that anew for each takes four times as long.
    begin = json.dumps({"time": when, **names})[:-1]
    messages = lines.decode(errors="backslashreplace").split("\n")
    return "\n".join([f'{begin}, "message": {json.dumps(message)}}}' for message in messages]).encode()


def _waiting(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class Copying:
    """All streams, as the agent orders it."""

    def __init__(self, agent: socket.socket) -> None:
        """Copy nothing yet."""
        self._agent = agent
        self._said = b""
        self._streams: dict[int, Stream] = {}
        self._tails: dict[int, Stream] = {}
        self._ready = select.poll()
        self._ready.register(agent, select.POLLIN)
        self._is_heard = True

    def run(self) -> None:
        """Copy until nothing more can come."""
        while self._is_heard or self._streams:
            for descriptor, _ in self._ready.poll():
                if descriptor == self._agent.fileno():
                    self._hear()
                elif descriptor in self._streams:
                    self._copy(descriptor, Stream.copy)

    def _hear(self) -> None:
        try:
            said = self._agent.recv(1 << 16)
        except ConnectionError:
            said = b""
        *orders, self._said = (self._said + said).split(b"\n")
        for name, about in map(json.loads, orders):
            if name == "copy":
                self._begin(about)
            else:
                self._answer(about)
        if not said:
            self._empty([*self._streams])
            self._ready.unregister(self._agent)
            self._say(len(self._streams))
            self._agent.close()
            self._is_heard = False

    def _begin(self, pipes: list[tuple[int, int, str, Names, str | None]]) -> None:
        consoles: dict[int, Sink] = {}
        for pipe, number, prefix, names, path in pipes:
            if number not in consoles:
                consoles[number] = Sink(number, _CONSOLES[number], names)
            form = prefixed(prefix.encode("latin-1")) if names is None else named(names)
            stream = Stream(pipe, consoles[number], form, _file(path, names))
            self._streams[pipe] = self._tails[pipe] = stream
            self._ready.register(pipe, select.POLLIN)

    def _answer(self, pipes: list[int]) -> None:
        self._empty(pipes)
        self._say([self._tails[pipe].tail.decode("latin-1") for pipe in pipes])

    def _say(self, answer: Any) -> None:
        with contextlib.suppress(ConnectionError):
            self._agent.sendall(json.dumps(answer).encode() + b"\n")

    def _empty(self, pipes: list[int]) -> None:
        for pipe in pipes:
            if pipe in self._streams:
                self._copy(pipe, Stream.empty)

    def _copy(self, pipe: int, how: Any) -> None:
        try:
            how(self._streams[pipe])
        except EOFError:
            self._ready.unregister(pipe)
            del self._streams[pipe]


def _file(path: str | None, names: Names) -> Sink | None:
    if path is None:
        return None
    name = path.encode("latin-1")
    try:
        return Sink(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), os.fsdecode(name), names)
    except OSError as error:
        _say(f"{os.fsdecode(name)} cannot be written: {error.strerror}", names)
        return None


def _say(text: str, names: Names) -> None:
    said = text.encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        write(2, (b"rdzv: " + said if names is None else _objects(said, names)) + b"\n")


def main() -> None:
    """Copy until nothing more can come. It outlives whatever asks a process to end: those that write may do so, too."""
    for number in signal.valid_signals() - _KEPT:
        signal.signal(number, signal.SIG_IGN)
    agent = socket.socket(fileno=int(sys.argv[1]))
    Copying(agent).run()


if __name__ == "__main__":
    main()
