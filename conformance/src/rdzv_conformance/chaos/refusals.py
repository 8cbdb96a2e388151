"""A service that refuses an agent's calls for a while, as one does whose permissions were changed."""

from collections.abc import Callable
from enum import Enum
from typing import Any

from rdzv_core.backend import KeyValueBackend
from rdzv_core.errors import RendezvousDeniedError

from ..intercept import intercepted


class Refusal(Enum):
    """What a service refuses: the kinds of calls, by the names of their methods. The simulator has the same."""

    NOTHING = frozenset[str]()
    KEYS = frozenset({"put", "create_all", "delete", "delete_version"})
    WRITES = KEYS | {"open_lease", "keep_alive", "revoke"}
    ALL = WRITES | {"read", "read_all", "wait"}


class Permissions:
    """What an agent may do.

    Attributes:
        refused: What it may not; this may be changed at any time.
    """

    refused = Refusal.NOTHING

    def around(self, name: str, work: Callable[[], Any], _arguments: tuple[Any, ...]) -> Any:
        """Do some work, unless it is refused. See `intercept.Around`."""
        if name in self.refused.value:
            raise RendezvousDeniedError(f"The service refuses a {name}.")
        return work()


def guarded(inner: KeyValueBackend, permissions: Permissions) -> KeyValueBackend:
    """`inner`, with everything that it declares, whose service refuses what `permissions` say."""
    return intercepted(inner, permissions.around)
