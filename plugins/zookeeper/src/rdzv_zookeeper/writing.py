"""One put: the transaction that writes a key on a condition, and what its failure means."""

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Final

from kazoo import exceptions  # type: ignore[import-untyped]
from kazoo.protocol.serialization import CheckVersion, Create, Delete, GetData, SetData  # type: ignore[import-untyped]
from kazoo.security import ACL  # type: ignore[import-untyped]
from rdzv_core.backend import ABSENT, Entry, Expect, PutOutcome, PutResult
from rdzv_core.errors import RendezvousConnectionError, RendezvousParameterError, RendezvousStateError
from rdzv_transport import EndpointError, ReplyLostError, contains

from . import wire
from .channel import Channel
from .failures import SessionEndedError
from .folders import Folders
from .layout import Layout, Version, incarnation_node, pack, parent_of, read_entry
from .session import Session

_LONGEST: Final = 0xFFFFF - 8192
"""The longest value in bytes: what fits, besides its paths, into the largest request that a server takes by default
(its jute.maxbuffer); it hangs up on a larger one."""

_EPHEMERAL: Final = 1
"""The flag of a node that ends with its session."""

_REFUTED: Final = (exceptions.NodeExistsError, exceptions.NoNodeError, exceptions.BadVersionError)
"""How a transaction fails whose conditions do not hold."""

_UNCERTAIN: Final = (
    exceptions.ConnectionLoss,
    exceptions.OperationTimeoutError,
    exceptions.RequestTimeoutError,
    exceptions.SystemZookeeperError,
)
"""Errors after which a write may have been done nevertheless."""


class _Parents(Enum):
    """Which parents of a key are made, and when."""

    NONE = "none: as a rule they are there"
    FIRST = "those within the run, before the transaction: it seems to have just begun"
    OF_RUN = "those within the run, by the transaction: as a rule the run has just begun"
    MADE = "none: another client has made a parent meanwhile, or the key"
    ALL = "all, before the transaction"


_WITHOUT_PARENT: Final = {
    _Parents.NONE: _Parents.OF_RUN,
    _Parents.FIRST: _Parents.ALL,
    _Parents.OF_RUN: _Parents.ALL,
    _Parents.MADE: _Parents.ALL,
    _Parents.ALL: _Parents.ALL,
}
"""What is tried next where a parent is missing."""


class Writer:
    """Writes the keys of one run."""

    def __init__(self, layout: Layout, acl: Sequence[ACL], folders: Folders) -> None:
        self._layout = layout
        self._acl = acl
        self._folders = folders
        self._root_was_there = False

    def put(
        self, key: str, value: bytes, expect: Version | Expect, session: Session, lease: Session | None, deadline: float
    ) -> PutResult:
        """Write a key, which is to end with the session of a lease if there is one.

        Raises:
            ReplyLostError: It may have been written.
            SessionEndedError: The lease's session has ended; nothing was written.
            RendezvousError: Nothing was written.
        """
        if len(value) > _LONGEST:
            raise RendezvousParameterError(
                f"The value of '{key}' has {len(value)} bytes; ZooKeeper takes {_LONGEST} by default."
            )
        path = self._layout.path(key)
        write, owner = (lease, lease.identity.number) if lease else (session, 0)
        there = expect if isinstance(expect, Version) else None
        parents = _Parents.FIRST if there is None and self._folders.may_lack(parent_of(path)) else _Parents.NONE
        while True:
            before, within = self._made(path, parents)
            data, transaction = self._transaction(path, value, there, owner, within)
            requests = [*(Create(parent, b"", self._acl, 0) for parent in before), transaction]
            channel, (*made, written) = write.use(partial(_exchange, requests, deadline), deadline, repeatable=False)
            refuted = _check_certain(write, written, path, *_REFUTED)
            if not isinstance(refuted, exceptions.ZookeeperError):
                self._root_was_there = True
                self._folders.saw(self._within(path))
                return PutResult(PutOutcome.APPLIED, read_entry(data, refuted))
            after = parents
            if there is None and isinstance(refuted, exceptions.NoNodeError):
                # A parent that is there already may be one that we must not make.
                for parent, reply in zip(before, made, strict=True) if parents is _Parents.ALL else ():
                    write.check(reply, parent, exceptions.NodeExistsError)
                after = _WITHOUT_PARENT[parents]
            elif within:
                after = _Parents.MADE
            if after is not parents:
                parents = after
                continue
            there, entry = _look_after(channel, path, write, session, deadline)
            if conflict := _conflict(path, expect, entry):
                return conflict
            if time.monotonic() >= deadline:
                raise RendezvousConnectionError(f"{path} was not written in time: others kept changing it.")

    def delete_version(self, key: str, version: Version, session: Session, deadline: float) -> bool:
        """Remove a key if it still has this version.

        Raises:
            ReplyLostError: It may have been removed.
            RendezvousError: Nothing was removed.
        """
        path = self._layout.path(key)
        removal = [SetData(path, b"", version.number)]
        if version.incarnation:
            removal.append(Delete(incarnation_node(path, version.incarnation), -1))
        # Where keys stand under it, its node stays, and holds nothing.
        for last in ([Delete(path, -1)], []):
            requests = [wire.Multi([*removal, *last])]
            _, (written,) = session.use(partial(_exchange, requests, deadline), deadline, repeatable=False)
            refuted = _check_certain(session, written, path, *_REFUTED, exceptions.NotEmptyError)
            if not isinstance(refuted, exceptions.NotEmptyError):
                break
        return not isinstance(refuted, exceptions.ZookeeperError)

    def _made(self, path: str, parents: _Parents) -> tuple[Sequence[str], Sequence[str]]:
        """The parents of a path that are made before the transaction, and those that are made in it."""
        if parents is _Parents.ALL:
            return self._layout.parents(path), ()
        if parents not in (_Parents.OF_RUN, _Parents.FIRST):
            return (), ()
        within = self._within(path)[1 if self._root_was_there else 0 :]
        return (within, ()) if parents is _Parents.FIRST else ((), within)

    def _within(self, path: str) -> Sequence[str]:
        """The parents of a path that are of the run, the highest first."""
        return [parent for parent in self._layout.parents(path) if contains(self._layout.root, parent)]

    def _transaction(
        self, path: str, value: bytes, before: Version | None, owner: int, parents: Sequence[str]
    ) -> tuple[bytes, wire.Multi]:
        """The bytes to write, and the transaction that writes them in the place of `before`, or else fails.

        It makes `parents`, and fails if one is there.
        """
        if before is not None and before.incarnation and before.owner == owner:
            data = pack(value, before.incarnation, before.order)
            alive = CheckVersion(incarnation_node(path, before.incarnation), -1)
            return data, wire.Multi([alive, SetData(path, data, before.number)])
        flags = _EPHEMERAL if owner else 0
        incarnation = secrets.token_hex(8)
        data = pack(value, incarnation, before.order if before else 0)
        make_incarnation = Create(incarnation_node(path, incarnation), b"", self._acl, flags)
        if before is not None and not before.incarnation and not owner and not before.owner:
            return data, wire.Multi([make_incarnation, SetData(path, data, before.number)])
        # What a node ends with cannot be changed: it must be made anew.
        removal: list[wire.Request] = []
        if before is not None:
            removal += [Delete(incarnation_node(path, before.incarnation), -1)] if before.incarnation else []
            removal += [Delete(path, before.number)]
        # Within a transaction only writing answers with what rdzv must know.
        make = [Create(path, b"", self._acl, flags), SetData(path, data, 0)]
        above = [Create(parent, b"", self._acl, 0) for parent in parents]
        return data, wire.Multi([*above, *removal, *make, make_incarnation])


def _check_certain(session: Session, written: wire.Reply, path: str, *expected: type[Exception]) -> Any:
    """As `Session.check`.

    Raises:
        ReplyLostError: ZooKeeper does not say how it went.
    """
    if written.result is None or isinstance(written.result, _UNCERTAIN):
        raise ReplyLostError(f"ZooKeeper does not know how it went: {written.result!r}.") from written.result
    return session.check(written, path, *expected)


def _conflict(path: str, expect: Version | Expect, entry: Entry | None) -> PutResult | None:
    """The result of a put that was refuted, where this entry is there now; None: it may be tried again.

    Raises:
        RendezvousStateError: The entry is the expected one, but its incarnation node is gone.
    """
    if entry is not None and entry.token == expect:
        lost = incarnation_node(path, entry.token.incarnation)
        raise RendezvousStateError(f"{path} has lost {lost} to something that is not rdzv; delete it.")
    if isinstance(expect, Version) or (expect is ABSENT and entry is not None):
        return PutResult(PutOutcome.CONFLICT, entry)
    return None


def look(path: str, session: Session, deadline: float) -> tuple[Version | None, Entry | None]:
    """The version of the node at `path`, if there is one, without an incarnation if it is not a key; and the key."""
    reply = session.call([wire.BARRIER, GetData(path, False)], deadline)[-1]
    return _found(reply, path, session)


def _look_after(
    channel: Channel, path: str, write: Session, session: Session, deadline: float
) -> tuple[Version | None, Entry | None]:
    """As `look`, after a transaction over `channel` that was refuted: that was a barrier, too."""
    with suppress(EndpointError, SessionEndedError):
        (reply,) = channel.exchange([GetData(path, False)], deadline)
        return _found(reply, path, write)
    return look(path, session, deadline)


def _found(reply: wire.Reply, path: str, session: Session) -> tuple[Version | None, Entry | None]:
    if (result := session.found(reply, path)) is None:
        return None, None
    data, stat = result
    if (entry := read_entry(data, stat)) is None:
        # The node is there without a key. If the next write makes it one, that key's order is between those of the keys
        # that were created by the last transaction before this reply and by the first one after it.
        return Version("", stat.version, 2 * reply.zxid + 1, stat.ephemeralOwner), None
    return entry.token, entry


def _exchange(requests: Sequence[wire.Request], deadline: float, channel: Channel) -> tuple[Channel, list[wire.Reply]]:
    return channel, channel.exchange(requests, deadline)
