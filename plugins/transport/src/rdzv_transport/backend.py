"""A backend over a network: each process has a link of its own to the service, which does what the backend is asked."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from rdzv_core.backend import Entry, KeyValueBackend, Snapshot

from .failover import FailoverClient
from .process_local import ProcessLocal


class Link(Protocol):
    """What one process has of a service. What has a name of `KeyValueBackend`'s does the same."""

    @property
    def client(self) -> FailoverClient:
        """The connections."""

    def read(self, key: str, timeout: float) -> Entry | None: ...

    def read_all(self, prefix: str, timeout: float) -> Snapshot: ...

    def delete(self, prefix: str, timeout: float) -> None: ...

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot: ...

    def close(self) -> None: ...


_Link = TypeVar("_Link", bound=Link)


class NetworkBackend(KeyValueBackend, Generic[_Link]):
    """A backend that has all but `put` and leases from its link.

    Args:
        link: Makes it, without touching the network. Two threads that make the first calls at once may both.
        root: Where the run's keys are, for messages.
    """

    def __init__(self, link: Callable[[], _Link], root: str) -> None:
        owner = f"This backend of the run at {root}"
        self._links = ProcessLocal(link, lambda one: one.client.discard_inherited(), lambda one: one.close(), owner)

    @property
    def link(self) -> _Link:
        """The link of this process.

        Raises:
            RendezvousConnectionError: The backend was closed.
        """
        return self._links.get()

    @property
    def local_address(self) -> str:
        """See `KeyValueBackend.local_address`.

        Raises:
            RendezvousConnectionError: There is no route to any endpoint.
        """
        return self.link.client.local_address()

    def read(self, key: str, *, timeout: float) -> Entry | None:
        return self.link.read(key, timeout)

    def read_all(self, prefix: str, *, timeout: float) -> Snapshot:
        return self.link.read_all(prefix, timeout)

    def delete(self, prefix: str, *, timeout: float) -> None:
        self.link.delete(prefix, timeout)

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        return self.link.wait(prefix, since, timeout)

    def close(self) -> None:
        self._links.close()
