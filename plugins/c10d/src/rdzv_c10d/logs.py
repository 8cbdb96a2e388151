"""What is below a top folder, read in one call: the log of its writes, to which each writer appends its own.

A key's value decides who won (`compare_set`); a write is done when it stands in the log. So one reading of the log
shows all keys as they were at one moment, and nothing that is there is on its way. A writer that dies between the two
has written nothing, unless another client meets its value: then that one appends it (`Run._settled`), before it says
what it has seen. The lines of one key may come in any order, and more than once: that of the later write counts.

After shared logs, as in M. Balakrishnan et al., "Tango: Distributed Data Structures over a Shared Log", SOSP 2013.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from rdzv_core.backend import Entry
from rdzv_transport import contains, number_of

from .layout import Layout, is_quiet
from .store import Connection, extend, peek, stores
from .values import Frame, entry_of, foreign, frame_of

_INLINE: Final = 1024
"""A longer value, in bytes, is not in the log; who reads the log reads it where it is."""
_GARBAGE: Final = 32
"""So many records of a log may be of no use before it is written anew, and half as many as are of use."""
_CROWDED: Final = 2.5
"""While others append to a log, writing it anew mostly fails, and all that is sent for it is sent for nothing: so it is
tried only with so many times as many records as are of use."""
_REMOVED: Final = 60.0
"""Seconds for which a reader keeps the record of a removed key: no record of an earlier write comes later than that."""
_NOTED: Final = 1024
"""Of how many keys is kept which write is in a log for certain."""
_UNREAD: Final = 1 << 16
"""After so many bytes that it has appended a client reads a log, which makes it shorter."""
_LARGEST: Final = 7 << 20
"""Bytes that torch's server takes in one value: a little less than 8 MiB."""


class Record(NamedTuple):
    """The last write of a key, as a log has it.

    Attributes:
        frame: Which write.
        is_whole: Whether its value is here; else the frame has an empty one instead.
        entry: What a backend's caller gets; None: the key is removed.
        seen: When this process has read it first, on its monotonic clock.
    """

    frame: Frame
    is_whole: bool
    entry: Entry | None
    seen: float


@dataclass(frozen=True, slots=True)
class Reading:
    """What a log held.

    Attributes:
        raw: All of it.
        records: The last one of each path.
        total: How many there are.
    """

    raw: bytes = b""
    records: Mapping[str, Record] = field(default_factory=dict)
    total: int = 0

    def then(self, raw: bytes) -> "Reading":
        """What it holds now; what has been read is not read again."""
        before = self if raw.startswith(self.raw) else Reading()
        records, total = dict(before.records), before.total
        position, now = len(before.raw), time.monotonic()
        while position < len(raw):
            path, frame, is_whole, position = _read_record(raw, position)
            total += 1
            there, known = records.get(path), self.records.get(path)
            if there is None or there.frame.place < frame.place:
                seen = known.seen if known is not None and known.frame.nonce == frame.nonce else now
                records[path] = Record(frame, is_whole, frame.entry, seen)
        return Reading(raw, records, total)

    def shorter(self, *, rests: bool) -> bytes | None:
        """The same without what is of no use, if that is worth the while and torch takes it.

        Args:
            rests: Whether no other client has appended since the reading before.
        """
        if self.total <= _GARBAGE:
            return None
        removed = time.monotonic() - _REMOVED
        kept = {path: one for path, one in self.records.items() if one.entry is not None or one.seen > removed}
        most = 1.5 if rests or len(self.raw) > _LARGEST / 2 else _CROWDED
        if self.total <= most * len(kept) + _GARBAGE:
            return None
        raw = b"".join(_record(path, one.frame, one.is_whole) for path, one in kept.items())
        return raw if len(raw) < _LARGEST else None


class Logs:
    """The logs of one run. Keeps nothing but short cuts; any number of threads may use it."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._readings: dict[str, Reading] = {}
        # How many bytes were appended to a log since it was read last.
        self._appended: dict[str, int] = {}
        # What is in a log for certain, by path.
        self._noted: dict[str, Frame] = {}

    def append(self, connection: Connection, path: str, frame: Frame) -> None:
        """Append a write of a key. torch waits for no answer: it is done when the next call of this client is."""
        # A heartbeat is never read here; and where torch cannot append, all that is here is written anew.
        is_here = not is_quiet(path) and connection.store.has_extended_api()
        is_whole = frame.value is None or (is_here and len(frame.value) <= _INLINE)
        key, record = self._layout.log(path), _record(path, frame, is_whole)
        extend(connection.store, key, record)
        self._appended[key] = self._appended.get(key, 0) + len(record)
        if self._appended[key] > _UNREAD:
            # Perhaps no other client reads it, and so makes it shorter.
            self._read(connection, path)

    def note(self, path: str, frame: Frame) -> None:
        """Note that a write is in its log."""
        if len(self._noted) >= _NOTED:
            self._noted.clear()
        self._noted[path] = frame

    def has(self, connection: Connection, path: str, frame: Frame) -> bool:
        """Whether a write of a key, or a later one, is in its log."""
        if (noted := self._noted.get(path)) is not None and noted.nonce == frame.nonce:
            return True
        there = self._read(connection, path).records.get(path)
        is_there = there is not None and there.frame.place >= frame.place
        if is_there:
            self.note(path, frame)
        return is_there

    def read(self, connection: Connection, prefix: str) -> tuple[dict[str, Record], dict[str, Frame]]:
        """The last writes of all keys at or under a prefix that are not removed, by path.

        Returns:
            Them; and later writes, which no log tells of yet. If there are none, the others are of one moment. (Of
            heartbeats there are none, and no moment is promised.)
        """
        records = self._read(connection, prefix).records
        found = {path: one for path, one in records.items() if one.entry is not None and contains(prefix, path)}
        later: dict[str, Frame] = {}
        values = self._read_values(connection, [path for path, one in found.items() if not one.is_whole])
        for path, frame in values.items():
            one = found.pop(path)
            if frame is not None and frame.nonce != one.frame.nonce and not is_quiet(prefix):
                later[path] = frame
            elif frame is not None and frame.value is not None:
                found[path] = one._replace(frame=frame, entry=frame.entry)
        return found, later

    def clear(self, connection: Connection, top: str) -> None:
        """Forget the keys below a top folder, if none of them has a value any more."""
        reading = self._read(connection, top)
        paths = [path for path, one in reading.records.items() if one.entry is not None]
        if not any(entry_of(frame_of(peek(connection.store, self._layout.value(path)))) for path in paths):
            connection.store.compare_set(self._layout.log(top), reading.raw, b"")

    def _read(self, connection: Connection, path: str) -> Reading:
        key = self._layout.log(path)
        before, own = self._readings.get(key, Reading()), self._appended.get(key, 0)
        self._appended[key] = 0
        raw = peek(connection.store, key) or b""
        reading = before
        if raw != before.raw:
            reading = self._readings[key] = before.then(raw)
        rests = raw.startswith(before.raw) and len(raw) == len(before.raw) + own
        if (shorter := reading.shorter(rests=rests)) is not None:
            # If another client appended meanwhile this changes nothing, and is tried again another time.
            connection.store.compare_set(key, raw, shorter)
        return reading

    def _read_values(self, connection: Connection, paths: list[str]) -> dict[str, Frame | None]:
        """The last writes of keys by their values, which are there; but who removes the whole run removes them."""
        keys = [*map(self._layout.value, paths)]
        raws: list[bytes | None]
        try:
            # torch waits for a key that is missing, and only a TCPStore's client has a limit.
            at_once = len(keys) > 1 and connection.descriptor is not None and connection.store.has_extended_api()
            raws = [*connection.store.multi_get(keys)] if at_once else [peek(connection.store, key) for key in keys]
        except stores().DistStoreError:
            raws = [peek(connection.store, key) for key in keys]
        return {path: frame_of(raw) for path, raw in zip(paths, raws, strict=True)}


def _record(path: str, frame: Frame, is_whole: bool) -> bytes:
    """What to append for a write: a line, then the frame or, if it is not whole, its head."""
    content = frame.raw if is_whole else frame.head
    return b"%s%s %d\n%s\n" % (b"=" if is_whole else b"@", path.encode(), len(content), content)


def _read_record(raw: bytes, position: int) -> tuple[str, Frame, bool, int]:
    """One record; returns whether its value is there, and where the next one begins, too."""
    try:
        end = raw.index(b"\n", position)
        kind, line = raw[position : position + 1], raw[position + 1 : end].decode("ascii")
        path, size = line.split(" ")
        after = end + 1 + number_of(size)
        if kind not in (b"=", b"@") or raw[after : after + 1] != b"\n":
            raise ValueError("no record of a log")
    except ValueError as error:
        raise foreign(raw[position:], error) from error
    frame = Frame.parse(raw[end + 1 : after])
    if kind == b"@" and frame.value is None:
        frame = replace(frame, value=b"")
    return path, frame, kind == b"=", after + 1
