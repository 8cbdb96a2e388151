"""The service as an automaton: what it holds is a number, and each call leads from one number to another.

The calls are those of the simulated service. Versions are counted for each folder, so that the order of writes to
different folders leaves no trace.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from rdzv_core import Entry, PutOutcome, PutResult

from ..clock import Timeline
from ..service import SimulatedService, _Folder, _SimulatedLease
from .learnt_node import Answer, Request

__all__ = ["Content", "LearntService", "Reply"]

LeaseNumber = tuple[str, int]
"""The node that opened a lease, and how many it had opened before."""


@dataclass(frozen=True, slots=True)
class Content:
    """What the service holds.

    Attributes:
        number: Which content; 0 is nothing.
        versions: How often each folder, and each key, has changed.
        leases: The leases that live: number, time to live, and seconds of it that are left.
        next: Seconds until the first lease ends; None: there is none.
        folders: The entries of each folder.
        hung: Which lease a key belongs to.
        opened: How many leases each node has opened.
    """

    number: int
    versions: dict[str, int]
    leases: tuple[tuple[LeaseNumber, float, float], ...]
    next: float | None
    folders: dict[str, dict[str, Entry]]
    hung: dict[str, LeaseNumber]
    opened: dict[str, int]

    def holds(self, key: str) -> bool:
        """Whether a key is there."""
        return key in self.folders.get(key.partition("/")[0], ())


class Reply(NamedTuple):
    """What comes of a call: what the service holds then, its answer, and what was written."""

    content: Content
    answer: Answer
    wrote: tuple[tuple[str, bytes], ...]


class LearntService:
    """The service."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.contents: list[Content] = []
        self._numbers: dict[Any, int] = {}
        self._known: dict[tuple[int, str, Request], Reply] = {}
        self._answers: dict[str, Answer] = {}
        self.first = self._learn({}, [], {}, {}, {})

    def call(self, content: Content, node: str, request: Request) -> Reply:
        """Answer a call of a node."""
        at = content.number, node, request
        if (known := self._known.get(at)) is None:
            known = self._known[at] = self._call(content, node, *request[:-1])
        return known

    def tick(self, content: Content, seconds: float) -> Content:
        """Let time pass."""
        return self.call(content, "", ("tick", seconds, 0)).content

    def end(self, content: Content, lease: LeaseNumber) -> Content:
        """End a lease whose time is over."""
        return self.call(content, "", ("revoke", lease, 0)).content

    def sees(self, content: Content, request: Request) -> bool:
        """Whether a wait has something to see."""
        _, prefix, revision, _ = request
        return bool(content.versions.get(prefix, 0) > revision)

    def _call(self, content: Content, node: str, method: str, *arguments: Any) -> Reply:
        real = _Thawed(content)
        answer = getattr(real, f"{method}_")(node, *arguments)
        after = real.freeze(self._learn)
        # One object for equal answers: then they are one input for a node.
        return Reply(after, self._answers.setdefault(repr(answer), Answer(answer)), tuple(real.writes))

    def _learn(
        self,
        versions: dict[str, int],
        leases: list[tuple[LeaseNumber, float, float]],
        folders: dict[str, dict[str, Entry]],
        hung: dict[str, LeaseNumber],
        opened: dict[str, int],
    ) -> Content:
        """The content with these parts."""
        left = tuple(sorted(leases))
        folders = {name: dict(sorted(folder.items())) for name, folder in sorted(folders.items())}
        key = repr((sorted(versions.items()), left, folders, sorted(hung.items()), sorted(opened.items())))
        number = self._numbers.setdefault(key, len(self.contents))
        if number == len(self.contents):
            soonest = min((seconds for _, _, seconds in left), default=None)
            self.contents.append(Content(number, versions, left, soonest, folders, hung, opened))
        return self.contents[number]


class _Thawed:
    """The simulated service with some content."""

    def __init__(self, content: Content) -> None:
        self.writes: list[tuple[str, bytes]] = []
        self._versions = dict(content.versions)
        self._opened = dict(content.opened)
        self._service = real = SimulatedService(Timeline())
        real.wrote = lambda key, value: self.writes.append((key, value))
        self._leases = {number: _SimulatedLease(real, ttl, left) for number, ttl, left in content.leases}
        real._leases = dict.fromkeys(self._leases.values())
        for name, entries in content.folders.items():
            real._folders[name] = _Folder(dict(entries), versions=[self._versions.get(name, 0)])
        for key, number in content.hung.items():
            real._hang(key, self._leases.get(number))

    def freeze(self, learn: Callable[..., Content]) -> Content:
        real = self._service
        numbers = {lease: number for number, lease in self._leases.items()}
        leases = [(numbers[lease], lease.ttl, round(lease.until, 6)) for lease in real._leases]
        hung = {key: numbers[lease] for key, lease in real._owners.items() if lease in real._leases}
        folders = {name: folder.keys for name, folder in real._folders.items()}
        return learn(self._versions, leases, folders, hung, self._opened)

    def read_(self, node: str, key: str) -> Any:
        return self._service.read(key, timeout=1.0)

    def read_all_(self, node: str, prefix: str) -> Any:
        return self._service.read_all(prefix, timeout=1.0)

    def wait_(self, node: str, prefix: str, revision: int) -> Any:
        return self._service.read_all(prefix, timeout=1.0)

    def put_(self, node: str, key: str, value: bytes, expect: Any, number: LeaseNumber | None) -> Any:
        # An ended lease is one that the service does not know.
        lease = None if number is None else self._leases.get(number, _SimulatedLease(self._service, 0.0, 0.0))
        is_new = not self._service.holds(key)
        result = self._counting(key, lambda: self._service.put(key, value, expect=expect, lease=lease, timeout=1.0))
        if not is_new or result.outcome is not PutOutcome.APPLIED:
            return result
        # Which of two keys in different folders was there first is not asked.
        folder = self._service._folder(key)
        others = [each.order for name, each in folder.keys.items() if name != key]
        entry = replace(result.entry, order=1 + max(others, default=0))
        folder.keys[key] = entry
        return PutResult(result.outcome, entry)

    def delete_(self, node: str, prefix: str) -> None:
        real = self._service
        for key in [key for key in real.everything() if key == prefix or key.startswith(f"{prefix}/")]:
            self._counting(key, partial(real.delete, key, timeout=1.0))

    def open_lease_(self, node: str, ttl: float) -> LeaseNumber:
        number = node, self._opened.get(node, 0)
        self._opened[node] = number[1] + 1
        self._leases[number] = lease = _SimulatedLease(self._service, ttl, ttl)
        self._service._leases[lease] = None
        return number

    def renew_(self, node: str, number: LeaseNumber) -> bool:
        lease = self._leases.get(number)
        return lease is not None and self._service.renew(lease)

    def revoke_(self, node: str, number: LeaseNumber) -> None:
        lease = self._leases.get(number)
        if lease is not None:
            for key in list(lease.keys):
                self._counting(key, partial(self._service._remove, [key]))
            self._service.revoke(lease)

    def tick_(self, node: str, seconds: float) -> None:
        for lease in self._service._leases:
            lease.until -= seconds

    def _counting(self, key: str, work: Callable[[], Any]) -> Any:
        """Do something to one key, by its own versions: those of others leave no trace."""
        name, real = key.partition("/")[0], self._service
        real._version = before = self._versions.get(key, 0)
        result = work()
        if real._version != before:
            self._versions[key] = real._version
            self._versions[name] = self._versions.get(name, 0) + 1
        return result
