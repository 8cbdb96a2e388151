"""What the servers have in common: start and wait until ready, crash, freeze, come back, clean up."""

import contextlib
import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Protocol, Self, TextIO

from .ports import free_ports
from .process import GuardedProcess

_HEAD_LINES = 3
_TAIL_LINES = 15


class ServiceFailedError(RuntimeError):
    """A server ended by itself; the message shows the end of its log."""


class LocalService(ABC):
    """One server process on this machine, on ports of its own.

    A subclass says how many ports it takes (clients use the first), its command, and when it is ready.

    Args:
        data_dir: Where the server keeps its data, and leaves it. None: a temporary folder, removed by `stop`.
    """

    program: ClassVar[str]
    """What messages, and the names of its temporary folders, call it."""
    port_count: ClassVar[int]
    """How many ports it takes; clients use the first, `get_port`."""
    host: ClassVar[str] = "127.0.0.1"
    """The address that it listens on."""
    settings_elsewhere: ClassVar[tuple[str, ...]] = ()
    """How the variables begin by which users configure the program: they are not for this server."""

    def __init__(self, data_dir: str | Path | None = None) -> None:
        self._wanted_data_dir = data_dir
        self._folder: Path | None = None
        self._ports: list[int] = []
        self._stderr: int | TextIO | None = None
        self._process: GuardedProcess | None = None

    # What a subclass says.

    @classmethod
    @abstractmethod
    def find_binary(cls) -> Path:
        """The program that will be run.

        Raises:
            ServiceMissingError: There is none; the message says how to get it.
        """

    @abstractmethod
    def _command(self, data_dir: Path) -> Sequence[str | Path]:
        """The command line."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it serves; must answer within about a second. An OSError says that it does not."""

    # What a user calls.

    def get_host(self) -> str:
        """The address the server listens on."""
        return self.host

    def get_port(self) -> int:
        """The port the server listens on, or -1 if it was not started."""
        return self._ports[0] if self._ports else -1

    def get_endpoint(self) -> str:
        """Where clients find it: ``host:port``."""
        return f"{self.host}:{self.get_port()}"

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | TextIO | None = None) -> None:
        """Start the server, and return when it is ready to take requests.

        Args:
            timeout: Seconds that each try may take.
            num_retries: How often to try. Each try takes new ports.
            stderr: Where the server's log goes. None: to a file, whose end is shown if the server fails.

        Raises:
            ServiceMissingError: The program is not on this machine; the message says how to get it.
            ServiceFailedError: The server ended by itself, every time.
            TimeoutError: It was not ready in time.
        """
        if self._process is not None:
            raise RuntimeError(f"This {self.program} was started already: call `restart`, or `stop` first.")
        self._stderr = stderr
        start(self, lambda: self._launch(free_ports(self.port_count, self.host)), timeout, num_retries)

    def stop(self) -> None:
        """Stop the server and remove its temporary files. Stopping twice is fine."""
        if self._wanted_data_dir is None and self.is_running():
            # Its data is not needed any more, and some that are asked politely take their time.
            self.kill()
        self.terminate()
        self._process = None
        self._ports = []
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def terminate(self) -> None:
        """Stop the server in good order; its ports and its data stay for `restart`."""
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the server (SIGKILL), as a crash does; its ports and its data stay for `restart`."""
        self._running().kill()

    def forget(self) -> None:
        """After `terminate` or `kill`: lose all that was stored, as with a disk."""
        if self.is_running():
            raise RuntimeError(f"This {self.program} runs: its data cannot be lost before it has ended.")
        if self._folder is not None:
            shutil.rmtree(self._data_dir())

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): its connections stay open, and it answers nothing.

        Signals reach the process that was started: a server of several processes, such as PostgreSQL, overrides this
        and `resume`.
        """
        self._running().pause()

    def resume(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        self._running().resume()

    def restart(self, timeout: float = 60) -> None:
        """Start the server again with the same ports and data, after `terminate`, after `kill`, or while it runs.

        Args:
            timeout: Seconds until it must be ready.

        Raises:
            ServiceFailedError: The server ended by itself.
            TimeoutError: It was not ready in time.
        """
        self.relaunch()
        self._await_ready(time.monotonic() + timeout)

    def relaunch(self) -> None:
        """As `restart`, without waiting: alone, a member of a cluster is not ready before the others."""
        self._running().terminate()
        self._launch(self._ports)

    def heal(self) -> None:
        """Have the server serve again, whatever was done to it; the errors are those of `restart`."""
        self.resume()
        if not self.is_running():
            self.restart()

    def is_running(self) -> bool:
        """Whether the server's process lives, frozen or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._running().pid

    def log(self) -> str:
        """The first lines of the server's log, where a wrong command line is reported, and the last ones."""
        if self._stderr is not None:
            return "(its log went where `start` sent it)"
        path = self._folder / "log" if self._folder else None
        if path is None or not path.exists():
            return "(no log)"
        lines = path.read_text(errors="replace").splitlines()
        if len(lines) > _HEAD_LINES + _TAIL_LINES:
            lines[_HEAD_LINES:-_TAIL_LINES] = ["..."]
        return "\n".join(lines)

    def __enter__(self) -> Self:
        """Start the server, unless it runs."""
        if not self.is_running():
            self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop it."""
        self.stop()

    # How.

    def _running(self) -> GuardedProcess:
        if self._process is None:
            raise RuntimeError(f"No {self.program} was started. Call `start` first.")
        return self._process

    def _launch(self, ports: list[int]) -> None:
        """Start the process, without waiting."""
        self._ports = ports
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"rdzv-{self.program}-"))
        data_dir = self._data_dir()
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = GuardedProcess(
                self._command(data_dir),
                output=log if self._stderr is None else self._stderr,
                folder=self._folder,
                env={name: one for name, one in os.environ.items() if not name.startswith(self.settings_elsewhere)},
            )

    def _data_dir(self) -> Path:
        assert self._folder is not None
        return Path(self._wanted_data_dir or self._folder / "data")

    def _await_ready(self, deadline: float) -> None:
        while True:
            with contextlib.suppress(OSError):
                if self._is_ready():
                    return
            code = self._running().poll()
            if code is not None:
                raise ServiceFailedError(f"{self.program} ended with exit code {code}. Its log:\n{self.log()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.program} did not become ready in time. Its log:\n{self.log()}")
            time.sleep(0.02)


class _Startable(Protocol):
    def stop(self) -> None: ...
    def _await_ready(self, deadline: float) -> None: ...


def start(service: _Startable, launch: Callable[[], None], timeout: float, num_retries: int) -> None:
    """Launch a server or a cluster, and return when it serves; what fails is stopped. See `LocalService.start`."""
    for left in reversed(range(num_retries)):
        try:
            launch()
            service._await_ready(time.monotonic() + timeout)
        except BaseException as error:
            service.stop()
            if not left or not isinstance(error, ServiceFailedError | TimeoutError):
                raise
        else:
            return
