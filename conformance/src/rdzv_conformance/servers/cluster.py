"""Several servers of one kind, which serve together."""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Generic, Self, TextIO, TypeVar

from .ports import free_ports
from .service import LocalService, ServiceFailedError

__all__ = ["ClusterMember", "LocalCluster"]


class ClusterMember(LocalService):
    """A server that can also be one of several."""

    @abstractmethod
    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows; False if it does not answer."""

    @abstractmethod
    def calls(self) -> Counter[str]:
        """How many calls of each kind the server has taken since its start. Two of them can be subtracted.

        Raises:
            OSError: The server does not answer.
        """


Member = TypeVar("Member", bound=ClusterMember)


class LocalCluster(ABC, Generic[Member]):
    """Real servers of one kind that serve together.

    Args:
        members: The servers, none of them started.

    Attributes:
        members: The servers, each to be killed, paused and restarted as one alone.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)

    @abstractmethod
    def _introduce(self) -> None:
        """Tell every member of the others; all know their ports, and none runs."""

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | TextIO | None = None) -> None:
        """Start every member, and return when all serve; the arguments and errors are those of one server's `start`."""
        for left in reversed(range(num_retries)):
            try:
                self._start(time.monotonic() + timeout, stderr)
            except (ServiceFailedError, TimeoutError):
                self.stop()
                if not left:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                return

    def _start(self, deadline: float, stderr: int | TextIO | None) -> None:
        # Every member must know all peers' ports before the first one starts, and none is ready alone.
        count = self.members[0].port_count
        ports = free_ports(count * len(self.members))
        for index, member in enumerate(self.members):
            member._ports = ports[index * count : (index + 1) * count]
            member._stderr = stderr
        self._introduce()
        for member in self.members:
            member._launch(member._ports)
        self._await_ready(deadline)

    def _await_ready(self, deadline: float) -> None:
        for member in self.members:
            member._await_ready(deadline)

    def stop(self) -> None:
        """Stop every member and remove their files."""
        for member in self.members:
            # Nobody needs their data any more, and asked politely each would look for a successor first.
            if member.is_running():
                member.kill()
            member.stop()

    def heal(self, timeout: float = 60) -> None:
        """Have every member run again, whatever was done to it, and return when all serve.

        Raises:
            ServiceFailedError: A member ended by itself.
            TimeoutError: They did not serve within `timeout` seconds.
        """
        for member in self.members:
            member.resume()
            if not member.is_running():
                member.relaunch()
        self._await_ready(time.monotonic() + timeout)

    def get_endpoint(self, first: Member | None = None) -> str:
        """All members' ``host:port``, joined by commas; that of `first` before the others."""
        members = sorted(self.members, key=lambda member: member is not first)
        return ",".join(member.get_endpoint() for member in members)

    @property
    def endpoints(self) -> list[str]:
        """Every member's ``host:port``."""
        return [member.get_endpoint() for member in self.members]

    def leader(self, timeout: float = 30) -> Member:
        """The member that leads; waits for an election that is under way.

        Raises:
            TimeoutError: The members did not agree on one within `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            leaders = [member for member in self.members if member.is_running() and member.is_leader()]
            if len(leaders) == 1:
                return leaders[0]
            time.sleep(0.02)
        running = sum(member.is_running() for member in self.members)
        raise TimeoutError(
            f"No leader after {timeout} s; {running} of {len(self.members)} members run, and a majority is needed."
        )

    def calls(self) -> Counter[str]:
        """As one server's `calls`, summed over the members that run."""
        return sum((member.calls() for member in self.members if member.is_running()), Counter[str]())

    def __enter__(self) -> Self:
        """Start the cluster."""
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Stop it."""
        self.stop()
