"""Several servers of one kind, which serve together."""

import time
from abc import abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TextIO, TypeVar, cast

from .ports import free_ports
from .service import LocalService, start


class ClusterMember(LocalService):
    """A server that can also be one of several.

    Attributes:
        name: Its name in its cluster.
    """

    def __init__(self, data_dir: str | Path | None = None) -> None:
        super().__init__(data_dir)
        self.name = "default"
        self._members: list[ClusterMember] = [self]

    def is_leader(self) -> bool:
        """Whether this member leads, as far as it knows; False if it does not answer."""
        try:
            return self._leads()
        except OSError:
            return False

    @abstractmethod
    def calls(self) -> Counter[str]:
        """How many calls of each kind the server has taken since its start. Two of them can be subtracted.

        Raises:
            OSError: The server does not answer.
        """

    @abstractmethod
    def _leads(self) -> bool:
        """As `is_leader`, or an OSError."""

    @abstractmethod
    def _peer(self) -> str:
        """Where the other members find this one, as the program wants it."""


Member = TypeVar("Member", bound=ClusterMember)


class LocalCluster(Generic[Member]):
    """Real servers of one kind that serve together.

    Args:
        size: How many; 3 survive the loss of one.
        options: Of each, as of one server alone.

    Attributes:
        members: The servers, each to be killed, paused and restarted as one alone.
    """

    member_type: ClassVar[type[ClusterMember]]

    def __init__(self, size: int = 3, **options: Any) -> None:
        self.members: list[Member] = [cast("Member", self.member_type(**options)) for _ in range(size)]
        for number, member in enumerate(self.members):
            member.name = f"member{number}"
            member._members = [*self.members]

    def start(self, timeout: float = 60, num_retries: int = 3, stderr: int | TextIO | None = None) -> None:
        """Start every member, and return when all serve; the arguments and errors are those of one server's `start`."""
        start(self, lambda: self._launch(stderr), timeout, num_retries)

    def _launch(self, stderr: int | TextIO | None) -> None:
        # Every member must know all peers' ports before the first one starts, and none is ready alone.
        count = self.member_type.port_count
        ports = free_ports(count * len(self.members))
        for index, member in enumerate(self.members):
            member._ports = ports[index * count : (index + 1) * count]
            member._stderr = stderr
        for member in self.members:
            member._launch(member._ports)

    def _await_ready(self, deadline: float) -> None:
        for member in self.members:
            member._await_ready(deadline)

    def stop(self) -> None:
        """Stop every member and remove their files."""
        for member in self.members:
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
