"""Prefixes as this process knows them: read once, then kept up to date by ZooKeeper's own watch.

A watch tells which node has changed, before any answer from after that change. So a client that has an
answer from now on and no change left to read knows the prefix as it is at this one moment. Reading a
prefix that is watched costs one request, waiting for it none, and each change one.
"""

import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from rdzv.backend import Entry, Snapshot
from rdzv.errors import RendezvousConnectionError, RendezvousDeniedError

from . import wire
from .ensemble import Ensemble
from .failures import BrokenError, SessionEndedError, explain
from .layout import Layout, contains, is_incarnation_node, read_entry
from .session import Channel, Session

__all__ = ["PrefixCaches"]

_IDLE_CACHES: Final = 16
"""As long as there are fewer, prefixes stay watched though nobody asks for them now."""

_QUIET: Final = 1.0
"""Seconds to try for a picture of one moment while the prefix changes faster than it can be read."""


class PrefixCaches:
    """The prefixes that one process has asked for lately.

    Attributes:
        session: The one that the watches hang on; it serves for everything else as well.
    """

    def __init__(self, ensemble: Ensemble, layout: Layout) -> None:
        # Thrice as long as a server may be silent: a third is how often a session must be heard of.
        self.session = Session(ensemble, 3 * ensemble.request_timeout, on_event=self._note, renew=True)
        self._ensemble = ensemble
        self._layout = layout
        self._lock = threading.Lock()
        self._by_path: dict[str, _PrefixCache] = {}

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        """See `KeyValueBackend.read_all`."""
        deadline = time.monotonic() + timeout
        with self._cache(prefix, deadline) as cache:
            return cache.look(deadline, fresh=True)

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        started = time.monotonic()
        deadline = started + timeout
        with self._cache(prefix, deadline) as cache:
            try:
                return cache.wait(since, deadline)
            except RendezvousDeniedError:
                raise
            except RendezvousConnectionError:
                # What only the end of the caller's time cut short proves nothing against the service.
                now = time.monotonic()
                if now < deadline or now - started >= self._ensemble.request_timeout or self._ensemble.closed:
                    raise
                return since

    def _note(self, path: str) -> None:
        """Hear that a node has changed."""
        if not is_incarnation_node(path):
            for cache in list(self._by_path.values()):
                cache.note(path)

    @contextmanager
    def _cache(self, prefix: str, deadline: float) -> Iterator["_PrefixCache"]:
        path, now = self._layout.path(prefix), time.monotonic()
        used: _PrefixCache | None = None
        try:
            with self._lock:
                cache = self._by_path.get(path) or _PrefixCache(
                    path, self._layout, self.session, self._ensemble.login.who
                )
                # From here to `used`, no call that an interrupt can follow: it must not leave a cache in use. And the
                # cache is never taken out in between: events come at any moment.
                self._by_path[path] = cache
                cache.used_at = now
                cache.users += 1
                used = cache
            self._retire(deadline)
            yield cache
        finally:
            if used:
                with self._lock:
                    used.users -= 1

    def _retire(self, deadline: float) -> None:
        """Watch no more what nobody has asked for lately: half of it at once, since that costs one flight."""
        with self._lock:
            idle = [cache for cache in self._by_path.values() if not cache.users]
            if len(idle) < _IDLE_CACHES:
                return
            idle = sorted(idle, key=lambda cache: cache.used_at)[: _IDLE_CACHES // 2]
            for cache in idle:
                cache.users += 1
        locked = [cache for cache in idle if cache.reading.acquire(blocking=False)]
        try:
            with self._lock:
                retiring = [cache for cache in locked if cache.users == 1]
            # A caller that asks for one of them now waits for its lock, then watches it anew.
            _unwatch(retiring, deadline)
        finally:
            for cache in locked:
                cache.reading.release()
            with self._lock:
                for cache in idle:
                    cache.users -= 1
                    if not cache.users and cache in retiring:
                        del self._by_path[cache.path]


def _unwatch(caches: Sequence["_PrefixCache"], deadline: float) -> None:
    paths: dict[Channel, list[str]] = {}
    for cache in caches:
        channel, cache.channel = cache.channel, None
        if channel is not None:
            paths.setdefault(channel, []).append(cache.path)
    for channel, unwanted in paths.items():
        # A connection that breaks, or is as slow as that, takes its watches along sooner or later.
        with suppress(BrokenError, SessionEndedError):
            until = min(deadline, time.monotonic() + 1)
            channel.exchange([wire.RemoveWatch(path) for path in unwanted], until, math.inf)


class _PrefixCache:
    """What is known of one prefix. Any number of threads may wait; one of them at a time reads, for all.

    Attributes:
        path: The prefix as a node.
        users: How many threads use it, or are about to.
        used_at: When one last began to, on the monotonic clock.
        reading: Held by the thread that reads.
        channel: The connection that the watch hangs on; None until everything was read once.
    """

    def __init__(self, path: str, layout: Layout, session: Session, who: str) -> None:
        self.path = path
        self.users = 0
        self.used_at = 0.0
        self.reading = threading.Lock()
        self.channel: Channel | None = None
        self._layout = layout
        self._session = session
        self._who = who
        self._entries: dict[str, Entry] = {}
        self._noting = threading.Lock()
        self._changed: set[str] = set()
        self._version = 0
        self._now = Snapshot({}, self)

    def note(self, path: str) -> None:
        """Hear that a node has changed."""
        if contains(self.path, path):
            with self._noting:
                self._changed.add(path)

    def wait(self, since: Snapshot, deadline: float) -> Snapshot:
        """See `KeyValueBackend.wait`."""
        # Of our own snapshots none is newer than what we know. Another client's may be.
        fresh = since.revision is not self
        while True:
            version = self._version
            # A server that does not answer is reported before the caller's time is over, which may be long.
            now = self.look(min(deadline, time.monotonic() + self._session.turn), fresh=fresh)
            if now.entries != since.entries:
                return now
            fresh = False
            if self._version != version:
                continue
            channel = self.channel
            if channel is not None and not self._session.listen(channel, partial(self._has_news, version), deadline):
                return since

    def _has_news(self, version: int) -> bool:
        # In this order: the reader takes the changes after the lock, and counts the version before its release.
        return self.reading.locked() or bool(self._changed) or self._version != version

    def look(self, deadline: float, *, fresh: bool) -> Snapshot:
        """Take in what has changed.

        Args:
            deadline: Until when.
            fresh: Whether everything that was written before now must be seen.
        """
        if not self.reading.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise RendezvousConnectionError(f"{self.path} was not read in time: another thread still reads it.")
        try:
            return self._session.use(lambda channel: self._update(channel, deadline, fresh=fresh), deadline)
        finally:
            self.reading.release()

    def _update(self, channel: Channel, deadline: float, *, fresh: bool) -> Snapshot:
        if channel is not self.channel:
            self.channel = None
            self._read_everything(channel, deadline)
            self.channel = channel
            fresh = False
        self._read_changes(channel, deadline, [wire.BARRIER] if fresh else [])
        entries = {self._layout.key(path): entry for path, entry in self._entries.items()}
        if entries != self._now.entries:
            self._now = Snapshot(entries, self)
            self._version += 1
            channel.wake()
        return self._now

    def _read_everything(self, channel: Channel, deadline: float) -> None:
        """Watch, then read, level by level."""
        with self._noting:
            self._changed.clear()
        self._entries = {}
        node = [wire.GetData(self.path, False), wire.GetChildren(self.path, False)]
        watched, _, top, below = self._ask(channel, [wire.AddWatch(self.path), wire.BARRIER, *node], deadline)
        if isinstance(watched.result, wire.ZookeeperError):
            raise explain(watched.result, self.path, self._who) from watched.result
        self._take(self.path, top)
        nodes = self._children(self.path, below)
        while nodes:
            data = self._ask(channel, [wire.GetData(path, False) for path in nodes], deadline)
            parents = [path for path, reply in zip(nodes, data, strict=True) if self._take(path, reply)]
            lists = self._ask(channel, [wire.GetChildren(path, False) for path in parents], deadline)
            nodes = [child for path, reply in zip(parents, lists, strict=True) for child in self._children(path, reply)]

    def _read_changes(self, channel: Channel, deadline: float, first: Sequence[wire.Request]) -> None:
        """Read what has changed, until nothing has."""
        until = time.monotonic() + _QUIET
        while True:
            with self._noting:
                changed, self._changed = sorted(self._changed), set()
            requests = [*first, *(wire.GetData(path, False) for path in changed)]
            if not requests:
                return
            try:
                replies = self._ask(channel, requests, deadline)
                for path, reply in zip(changed, replies[len(first) :], strict=True):
                    self._take(path, reply)
            except BaseException:
                with self._noting:
                    self._changed.update(changed)
                raise
            first = ()
            if time.monotonic() >= until:
                return

    def _take(self, path: str, reply: wire.Reply) -> bool:
        """Take in what a node holds; whether there are nodes under it."""
        if isinstance(reply.result, wire.NoNodeError):
            self._entries.pop(path, None)
            return False
        if isinstance(reply.result, wire.ZookeeperError):
            raise explain(reply.result, path, self._who) from reply.result
        data, stat = reply.result
        entry = read_entry(data, stat)
        if entry is None:
            self._entries.pop(path, None)
        else:
            self._entries[path] = entry
        return bool(stat.numChildren)

    def _children(self, path: str, reply: wire.Reply) -> list[str]:
        if isinstance(reply.result, wire.NoNodeError):
            return []
        if isinstance(reply.result, wire.ZookeeperError):
            raise explain(reply.result, path, self._who) from reply.result
        return [child for name in reply.result if not is_incarnation_node(child := f"{path}/{name}")]

    def _ask(self, channel: Channel, requests: Sequence[wire.Request], deadline: float) -> list[wire.Reply]:
        return channel.exchange(requests, deadline, self._session.patience)
