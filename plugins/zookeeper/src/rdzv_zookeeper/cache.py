"""Prefixes as this process knows them: read once, then kept up to date by ZooKeeper's own watch.

A watch tells which node has changed, before any answer from after that change. So a client that has an
answer from now on and no change left to read knows the prefix as it is at this one moment. Reading a
prefix that is watched costs one request, waiting for it none, and each change one.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from kazoo.protocol.serialization import GetChildren, GetData  # type: ignore[import-untyped]
from rdzv_core.backend import Entry, Snapshot
from rdzv_core.errors import RendezvousConnectionError
from rdzv_transport import EndpointError, FailoverClient, Prefixes, alone, contains

from . import wire
from .channel import PER_FLIGHT, Channel
from .folders import Folders
from .layout import Layout, is_incarnation_node, read_entry
from .removal import remove
from .security import Login
from .session import Identity, Session
from .writing import look

_IDLE_CACHES: Final = 15
"""How many prefixes stay watched though no call asks for them now."""

_OUTLASTS: Final = 6
"""How many times as long as a server may be silent the session lives without being heard of."""

_PROMPT: Final = 0.1
"""Seconds to try to tell a server what need not be watched any more."""

_SECOND: Final = 0.1
"""Seconds to wait for the second of the two events that tell of a new key, so that it is read once."""

_QUIET: Final = 1.0
"""Seconds to try for a picture of one moment while the prefix changes faster than it can be read."""


class PrefixCaches:
    """A `rdzv_transport.backend.Link` to ZooKeeper: a session, and the prefixes that this process has asked for lately.

    Attributes:
        client: The servers.
        session: The one that the watches belong to; it serves for everything else but leases as well.
    """

    def __init__(self, client: FailoverClient, login: Login, layout: Layout, folders: Folders) -> None:
        self.client = client
        # It is heard of thrice in that time, while a thread waits.
        self.session = Session(client, login, Identity(_OUTLASTS * client.request_timeout), self._note)
        self._layout = layout
        self._caches = Prefixes(
            lambda prefix: _PrefixCache(layout.path(prefix), layout, self.session, folders),
            self._unwatch,
            idle=_IDLE_CACHES,
        )

    def read(self, key: str, timeout: float) -> Entry | None:
        return look(self._layout.path(key), self.session, time.monotonic() + timeout)[1]

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        """A prefix that was asked for lately costs one request."""
        deadline = time.monotonic() + timeout
        with self._caches.using(prefix) as cache:
            return cache.look(deadline, fresh=True)

    def delete(self, prefix: str, timeout: float) -> None:
        remove(self._layout, prefix, self.session, time.monotonic() + timeout)

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """Waiting costs no request but a keep-alive now and then, a change one."""
        deadline = time.monotonic() + timeout
        with self._caches.using(prefix) as cache, self.client.forgiving(deadline):
            return cache.wait(since, deadline, self.client.patience)
        return since

    def close(self) -> None:
        """End every connection. The sessions of leases live on until their time is up."""
        self.session.close_session()
        self.client.close()

    def _note(self, path: str, created: bool) -> None:
        """Hear that a node has changed, or was created."""
        if not is_incarnation_node(path):
            for cache in self._caches.all():
                cache.note(path, created)

    def _unwatch(self, cache: "_PrefixCache") -> None:
        if cache.channel is not None:
            # The answer is not needed, and the prefix is watched anew after it. A connection that breaks, or is as slow
            # as that, takes its watches along sooner or later.
            with suppress(EndpointError):
                cache.channel.send([wire.remove_watch(cache.path)], time.monotonic() + _PROMPT)


class _Whole(NamedTuple):
    """How to read everything: the folders and the keys that are known or likely, and what is asked of them at once."""

    folders: list[str]
    keys: list[str]
    requests: list[wire.Request]


class _PrefixCache:
    """What is known of one prefix. Any number of threads may wait; one of them at a time reads, for all.

    Attributes:
        path: The prefix as a node.
        channel: The connection that the watch belongs to; None until everything was read once.
    """

    def __init__(self, path: str, layout: Layout, session: Session, folders: Folders) -> None:
        self.path = path
        self.channel: Channel | None = None
        self._layout = layout
        self._session = session
        self._folders = folders
        self._reading = threading.RLock()
        self._is_reading = False
        self._entries: dict[str, Entry] = {}
        # It grows at its end at any moment; the reader takes from its beginning what it has read.
        self._changed: list[str] = []
        # The nodes that were created, and whose value is yet to come.
        self._created: set[str] = set()
        self._now = Snapshot({}, self)

    def note(self, path: str, created: bool) -> None:
        """Hear that a node has changed, or was created; see `writing` for why a key is both."""
        if contains(self.path, path):
            if created:
                self._created.add(path)
                return
            self._changed.append(path)
            # What it stands under was made with it, and has no value: it is not read.
            self._created.difference_update([one for one in list(self._created) if contains(one, path)])

    def wait(self, since: Snapshot, deadline: float, patience: float) -> Snapshot:
        """Something that differs from `since`, as soon as there is; a server may be silent for `patience` seconds."""
        # Of our own snapshots none is newer than what we know. Another client's may be.
        fresh = since.revision is not self
        while True:
            before = self._now
            # A server that does not answer is reported before the caller's time is over, which may be long.
            now = self.look(min(deadline, time.monotonic() + patience), fresh=fresh)
            if now.entries != since.entries:
                return now
            fresh = False
            channel = self.channel
            # What fails is found again by the next look, which makes another connection.
            with suppress(EndpointError):
                if self._now is before and channel and not channel.listen(partial(self._has_news, before), deadline):
                    return since

    def _has_news(self, known: Snapshot) -> bool:
        # In this order: the reader takes the changes in its turn, and shows what is new before its end.
        return self._is_reading or bool(self._changed or self._created) or self._now is not known

    def look(self, deadline: float, *, fresh: bool) -> Snapshot:
        """Take in what has changed; if `fresh`, everything that was written before now."""
        now = alone(self._reading, partial(self._look, deadline, fresh=fresh), deadline)
        if now is None:
            raise RendezvousConnectionError(f"{self.path} was not read in time: another thread still reads it.")
        return now

    def _look(self, deadline: float, *, fresh: bool) -> Snapshot:
        self._is_reading = True
        try:
            whole = self._whole()
            # What was heard over an earlier connection is forgotten before anything is asked over this one.
            first = whole.requests if self.channel is None else ()
            return self._session.use(partial(self._update, whole, deadline, fresh), deadline, first=first)
        finally:
            self._is_reading = False

    def _update(self, whole: _Whole, deadline: float, fresh: bool, channel: Channel) -> Snapshot:
        if channel is not self.channel:
            if self.channel is not None:
                self.channel = None
                self._changed.clear()
                self._created.clear()
            self._read_everything(channel, whole, deadline)
            self.channel = channel
            fresh = False
        if not fresh and self._created:
            channel.listen(lambda: not self._created, min(deadline, time.monotonic() + _SECOND))
        self._read_changes(channel, deadline, [wire.BARRIER] if fresh else [])
        entries = {self._layout.key(path): entry for path, entry in self._entries.items()}
        if entries != self._now.entries:
            self._now = Snapshot(entries, self)
            channel.wake()
        return self._now

    def _whole(self) -> _Whole:
        folders = [self.path, *self._folders.under(self.path)]
        keys = [path for path in self._layout.likely_under(self.path) if path not in folders]
        requests = [wire.add_watch(self.path), wire.BARRIER]
        requests += [GetChildren(path, False) for path in folders]
        requests += [GetData(path, False) for path in (*folders, *keys)]
        return _Whole(folders, keys, requests)

    def _read_everything(self, channel: Channel, whole: _Whole, deadline: float) -> None:
        """Watch, then read, level by level: with the first one what is known, and what is right under that."""
        self._entries = {}
        folders, known = whole.folders, {*whole.folders, *whole.keys}
        watched, _, *replies = channel.exchange(whole.requests, deadline)
        self._session.check(watched, self.path)
        lists, data = list(zip(folders, replies, strict=False)), replies[len(folders) :]
        if self._session.found(data[0], self.path) is None:
            self._folders.saw_none()
        nodes = [*folders, *whole.keys]
        while nodes:
            above = [path for path, reply in zip(nodes, data, strict=True) if self._take(path, reply)]
            parents = [path for path in above if path not in folders]
            below = channel.exchange([GetChildren(path, False) for path in parents], deadline)
            lists += zip(parents, below, strict=True)
            nodes = [child for path, reply in lists for child in self._children(path, reply) if child not in known]
            data = channel.exchange([GetData(path, False) for path in nodes], deadline)
            lists = []

    def _read_changes(self, channel: Channel, deadline: float, first: Sequence[wire.Request]) -> None:
        """Read what has changed, until nothing has. What is heard of meanwhile is asked for at once: several nodes that
        come one after the other are as few round trips away as one of them."""
        until = time.monotonic() + _QUIET
        while True:
            # No value came, or this is not the time to wait for one.
            created = list(self._created)
            self._changed += created
            self._created.difference_update(created)
            noted = self._changed[:]
            paths = sorted(set(noted))
            requests = [*first, *(GetData(path, False) for path in paths)]
            if not requests:
                return
            replies = channel.exchange(requests, deadline, partial(self._news, noted, paths, until))
            for path, reply in zip(paths, replies[len(first) :], strict=True):
                self._take(path, reply)
            # Not sooner: whatever comes in between, an interrupt too, they are read again.
            del self._changed[: len(noted)]
            # A change that was noted before the answer of the barrier is part of a fresh look, however late that came.
            if not first and time.monotonic() >= until:
                return
            first = ()

    def _news(self, noted: list[str], paths: list[str], until: float) -> list[wire.Request]:
        """Ask for what was noted since, but for no path twice, and for no more than one flight in all: what was read
        shall be taken in soon, also where changes go on and on."""
        before = len(paths)
        for path in self._changed[len(noted) :]:
            if path in paths or len(paths) >= PER_FLIGHT or time.monotonic() >= until:
                break
            noted.append(path)
            paths.append(path)
        return [GetData(path, False) for path in paths[before:]]

    def _take(self, path: str, reply: wire.Reply) -> bool:
        """Take in what a node holds; whether there are nodes under it."""
        data, stat = self._session.found(reply, path) or (None, None)
        entry = read_entry(data, stat)
        if entry is None:
            self._entries.pop(path, None)
        else:
            self._entries[path] = entry
        return stat is not None and bool(stat.numChildren)

    def _children(self, path: str, reply: wire.Reply) -> list[str]:
        children = [f"{path}/{name}" for name in self._session.found(reply, path) or ()]
        return [child for child in children if not is_incarnation_node(child)]
