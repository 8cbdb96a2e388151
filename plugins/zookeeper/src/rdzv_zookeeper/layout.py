"""How keys and their values stand in ZooKeeper.

A key is the node of that path. ZooKeeper counts a node's versions from 0 again when the node was
deleted and made anew, so a version alone does not tell one *incarnation* of a key from the next. Therefore a key's
first write draws a random number for its incarnation, which stands before the value, and makes a second node beside
the first: ``leader`` has the incarnation node ``leader@6f1c...``, which ends when the key ends. A
conditional write is one transaction: *the incarnation node is there, and the version is this one*.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from rdzv_core.backend import STATE_KEY, Entry
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.keys import escape
from rdzv_transport import contains

_HEAD: Final = re.compile(rb"([0-9a-f]{16}) (\d{1,20})\n")
_INCARNATION: Final = "@"
"""Not in the alphabet of keys."""
_LIKELY: Final = (STATE_KEY, "control/leader", "control/status")
"""Keys that most runs have. A guess: one that is not there costs nothing."""


@dataclass(frozen=True, slots=True)
class Version:
    """The token of a value: of this incarnation of the key, this version.

    Attributes:
        incarnation: Which; empty if the value has none, since another program wrote it.
        number: ZooKeeper's version of the node.
        order: When the incarnation began, in the order of ZooKeeper's transactions.
        owner: The session that the node ends with; 0: none.
    """

    incarnation: str
    number: int
    order: int
    owner: int


class Layout:
    """Where the keys of one run are."""

    def __init__(self, prefix: str, run_id: str) -> None:
        """Of the run `run_id`, under the node `prefix`.

        Raises:
            RendezvousParameterError: There is no such node.
        """
        parts = prefix.strip("/").split("/")
        if not run_id:
            raise RendezvousParameterError("The run id is empty.")
        if parts[0] == "zookeeper":
            raise _unusable(prefix, "ZooKeeper keeps /zookeeper for itself")
        for part in parts:
            if part in ("", ".", "..") or not part.isprintable():
                raise _unusable(
                    prefix, f"its part {part!r} names no node of ZooKeeper's" if part else "a part is empty"
                )
        self.root = "/".join(["", *parts, escape(run_id)])

    def path(self, key: str) -> str:
        """The path of a key's node."""
        return f"{self.root}/{key}"

    def key(self, path: str) -> str:
        """The key of a node."""
        return path.removeprefix(f"{self.root}/")

    def likely_under(self, path: str) -> list[str]:
        """The nodes under one that are likely to be there, without any under them."""
        return [node for node in map(self.path, _LIKELY) if node != path and contains(path, node)]

    def parents(self, path: str) -> list[str]:
        """The paths of all nodes above a key's, the highest first."""
        parts = path.split("/")
        return ["/".join(parts[:count]) for count in range(2, len(parts))]


def _unusable(prefix: str, reason: str) -> RendezvousParameterError:
    return RendezvousParameterError(
        f"The prefix {prefix!r} cannot be used: {reason}. Write one such as rdzv or jobs/rdzv."
    )


def parent_of(path: str) -> str:
    """The node right above another one."""
    return path.rpartition("/")[0]


def incarnation_node(path: str, incarnation: str) -> str:
    """The node that ends with this incarnation of the key at `path`."""
    return f"{path}{_INCARNATION}{incarnation}"


def is_incarnation_node(path: str) -> bool:
    """Whether a node is the incarnation node of a key, and not a key itself."""
    return _INCARNATION in path.rpartition("/")[2]


def without_incarnation(path: str) -> str:
    """The key's node that an incarnation node belongs to; any other node itself."""
    return path.rpartition(_INCARNATION)[0] if is_incarnation_node(path) else path


def pack(value: bytes, incarnation: str, order: int) -> bytes:
    """A value as it stands in its node; `order` is when the incarnation began, 0: when the node did."""
    return f"{incarnation} {order}\n".encode() + value


def read_entry(data: bytes | None, stat: Any) -> Entry | None:
    """What a node holds; None if it is there only for those under it."""
    if not data:
        return None
    head = _HEAD.match(data)
    # Odd numbers are for keys whose node was there before (see `look`).
    born = 2 * stat.czxid
    if head is None:
        return Entry(data, Version("", stat.version, born, stat.ephemeralOwner), born)
    incarnation, order = head[1].decode(), int(head[2]) or born
    return Entry(data[head.end() :], Version(incarnation, stat.version, order, stat.ephemeralOwner), order)
