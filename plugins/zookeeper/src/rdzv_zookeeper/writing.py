"""One put: the transaction that writes a key on a condition, and what its failure means."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rdzv.backend import ABSENT, Entry, Expect, PutOutcome, PutResult
from rdzv.errors import RendezvousConnectionError, RendezvousParameterError, RendezvousStateError

from . import wire
from .failures import ReplyLostError, explain
from .layout import Layout, Version, incarnation_node, late_order, new_incarnation, pack, read_entry
from .session import Session

__all__ = ["Writer"]

_LONGEST: Final = wire.MAX_REQUEST - 8192
"""The longest value in bytes: what fits into a request besides its paths."""

_REFUTED: Final = (wire.NodeExistsError, wire.NoNodeError, wire.BadVersionError)
"""How a transaction fails whose conditions do not hold."""


@dataclass(frozen=True, slots=True)
class Found:
    """What stands in the way of a key, or is to be replaced.

    Attributes:
        version: Its version; without a life if it is only a node.
        entry: Its value; None if it is only a node.
    """

    version: Version
    entry: Entry | None


class Writer:
    """Writes the keys of one run."""

    def __init__(self, layout: Layout, acl: Sequence[wire.ACL], who: str) -> None:
        self._layout = layout
        self._acl = acl
        self._who = who

    def put(
        self,
        key: str,
        value: bytes,
        expect: Version | Expect,
        *,
        owner: int,
        write: Session,
        read: Session,
        deadline: float,
    ) -> PutResult:
        """Write a key.

        Args:
            key: Which.
            value: What.
            expect: On which condition.
            owner: The number of the session that the key is to end with; 0: none.
            write: The session that writes: the owner, if there is one.
            read: The session that looks when the condition does not hold.
            deadline: Until when.

        Raises:
            ReplyLostError: It may have been written.
            SessionEndedError: `write` has ended; nothing was written.
            RendezvousError: Nothing was written.
        """
        if len(value) > _LONGEST:
            raise RendezvousParameterError(
                f"The value of '{key}' has {len(value)} bytes; ZooKeeper takes {_LONGEST} by default."
            )
        path = self._layout.path(key)
        there = Found(expect, None) if isinstance(expect, Version) else None
        parents: list[str] = []
        while True:
            requests = [wire.Create(parent, b"", self._acl, 0) for parent in parents]
            data, transaction = self._transaction(path, value, there, owner)
            *made, written = write.call([*requests, transaction], deadline, repeatable=False)
            if not isinstance(written.result, wire.ZookeeperError):
                return PutResult(PutOutcome.APPLIED, read_entry(data, written.result))
            self._check(path, written, _REFUTED)
            if there is None and isinstance(written.result, wire.NoNodeError):
                # A parent that is there already may be one that we must not make.
                for parent, reply in zip(parents, made, strict=True):
                    self._check(parent, reply, (wire.NodeExistsError,))
                if not parents:
                    parents = self._layout.parents(path)
                    continue
            there = self.look(path, read, deadline)
            entry = there.entry if there else None
            if isinstance(expect, Version) or (expect is ABSENT and entry is not None):
                return self._lost(expect, entry, path)
            if time.monotonic() >= deadline:
                raise RendezvousConnectionError(f"{path} was not written in time: others kept changing it.")

    def look(self, path: str, session: Session, deadline: float) -> Found | None:
        """What is at `path` now; None if there is no such node."""
        reply = session.call([wire.BARRIER, wire.GetData(path, False)], deadline)[-1]
        if isinstance(reply.result, wire.NoNodeError):
            return None
        self._check(path, reply, ())
        data, stat = reply.result
        entry = read_entry(data, stat)
        if entry is None:
            return Found(Version("", stat.version, late_order(reply.zxid), stat.ephemeralOwner), None)
        return Found(entry.token, entry)

    def _transaction(self, path: str, value: bytes, there: Found | None, owner: int) -> tuple[bytes, wire.Multi]:
        """The bytes to write, and the transaction that writes them in the place of `there`, or else fails."""
        before = there.version if there else None
        if before is not None and before.incarnation and before.owner == owner:
            data = pack(value, before.incarnation, before.order)
            alive = wire.CheckVersion(incarnation_node(path, before.incarnation), -1)
            return data, wire.Multi([alive, wire.SetData(path, data, before.number)])
        flags = wire.EPHEMERAL if owner else 0
        incarnation = new_incarnation()
        data = pack(value, incarnation, before.order if before else 0)
        make_incarnation = wire.Create(incarnation_node(path, incarnation), b"", self._acl, flags)
        if before is not None and not before.incarnation and not owner and not before.owner:
            return data, wire.Multi([make_incarnation, wire.SetData(path, data, before.number)])
        # What a node ends with cannot be changed: it must be made anew.
        removal: list[wire.Request] = []
        if before is not None:
            removal += [wire.Delete(incarnation_node(path, before.incarnation), -1)] if before.incarnation else []
            removal += [wire.Delete(path, before.number)]
        # Within a transaction only writing answers with what the core must know.
        make = [wire.Create(path, b"", self._acl, flags), wire.SetData(path, data, 0)]
        return data, wire.Multi([*removal, *make, make_incarnation])

    def _lost(self, expect: Version | Expect, entry: Entry | None, path: str) -> PutResult:
        if entry is not None and entry.token == expect:
            raise RendezvousStateError(
                f"{path} has lost {incarnation_node(path, entry.token.incarnation)} "
                f"to something that is not rdzv; delete it."
            )
        return PutResult(PutOutcome.CONFLICT, entry)

    def _check(self, path: str, reply: wire.Reply, expected: tuple[type[Exception], ...]) -> None:
        """Raise what a reply says, unless it is expected."""
        if isinstance(reply.result, wire.UNCERTAIN):
            raise ReplyLostError(f"ZooKeeper does not know how it went: {reply.result!r}.") from reply.result
        if isinstance(reply.result, wire.ZookeeperError) and not isinstance(reply.result, expected):
            raise explain(reply.result, path, self._who) from reply.result
