"""Many at once: conditional puts lose nothing and have one winner, and one order explains every answer."""

import random
import time
from typing import Any, Final

import pytest
from rdzv_core.backend import ABSENT, ANY, KeyValueBackend, PutOutcome, PutResult, Snapshot
from rdzv_core.errors import RendezvousConnectionError

from ..linearizability import assert_linearizable
from ..processes import Link, Processes
from .base import CALL, KEY, ROOT, Clients, Conformance, entry_of
from .calls import at_once
from .histories import KeyValue, operations, record

_PROCESSES: Final = 4
_THREADS: Final = 8
_INCREMENTS: Final = 25
_CONTESTS: Final = 40
_TURNS: Final = 40
_KEYS: Final = ("suite/a", "suite/b")
_WATCHED: Final = 1.5
_FEW: Final = 10
"""Writes that show too little."""
_PAUSE: Final = 0.005
_SHORT: Final = 0.75
"""Seconds of a wait that may be over before a busy machine has asked."""


class ConcurrencyConformance(Conformance):
    """One service, many clients."""

    def test_concurrent_processes_lose_no_update(self, clients: Clients, processes: Processes) -> None:
        """A key that processes count up by compare-and-set has counted every put that was applied, once."""

        processes.together(lambda: _connected(clients), _count, _PROCESSES)
        _assert_counted(clients(), _PROCESSES * _INCREMENTS)

    def test_concurrent_threads_lose_no_update(self, client: KeyValueBackend) -> None:
        """The same for the threads of one client."""
        at_once("put or read", lambda number: _count(client, number), range(_THREADS), _THREADS)
        _assert_counted(client, _THREADS * _INCREMENTS)

    def test_keys_are_linearizable_among_processes(self, clients: Clients, processes: Processes) -> None:
        """One order of reads, puts and deletes explains all answers that processes got about a key."""

        def use(client: KeyValueBackend, process: int) -> list[Any]:
            values = [KeyValue(client, key, CALL) for key in _KEYS]
            return [record(value, process, lambda turn: turn < _TURNS) for value in values]

        for key in zip(*processes.together(lambda: _connected(clients), use, _PROCESSES), strict=True):
            assert_linearizable(operations(key))

    @pytest.mark.parametrize("look", ["read_all", "wait"])
    @pytest.mark.parametrize("keys", [2, 20])
    def test_snapshot_is_of_one_moment(self, clients: Clients, processes: Processes, keys: int, look: str) -> None:
        """Of two keys, written one after the other, the second is never ahead of the first in a snapshot."""
        first, *amid, second = [f"suite/{number:02}" for number in range(keys)]

        def write(link: Link) -> int:
            client, number = clients(), 0
            for name in (first, *amid, second):
                client.put(name, b"0", expect=ANY, timeout=CALL)
            link.send()
            end = time.monotonic() + _WATCHED
            while time.monotonic() < end or (number <= _FEW and time.monotonic() < end + CALL):
                number += 1
                for name in (first, second):
                    client.put(name, b"%d" % number, expect=ANY, timeout=CALL)
                # Now and then it stands still: a backend that reads until two readings agree comes to an end.
                time.sleep(random.uniform(0, _PAUSE))  # noqa: S311 - no secret
            return number

        writer = processes.fork(write)
        writer.receive()
        client = clients()
        now = client.read_all(ROOT, timeout=CALL)
        end, one = time.monotonic() + _WATCHED, 0
        # On a busy machine it takes longer until there was something to see.
        while (remaining := end - time.monotonic()) > 0 or (one <= _FEW and remaining > -CALL):
            one, other = (int(entry_of(now, name).value) for name in (first, second))
            assert one - other in (0, 1), (
                f"{look} gave a state that never was: of two keys, written one after the other, the second is at "
                f"{other}, the first at {one}"
            )
            if look == "read_all":
                now = client.read_all(ROOT, timeout=CALL)
            else:
                now = self._wait(client, now, max(0.1, remaining))
        assert writer.result() > _FEW, "too little was written to show anything"

    @staticmethod
    def _wait(client: KeyValueBackend, since: Snapshot, timeout: float) -> Snapshot:
        """One whose time was too short to ask may say so by its error; the caller goes on from what it knows."""
        try:
            return client.wait(ROOT, since, timeout=timeout)
        except RendezvousConnectionError:
            if timeout > _SHORT:
                raise
            return since

    def test_creation_has_one_winner(self, clients: Clients, processes: Processes) -> None:
        """Of the processes that create the same key at once, one wins, and its value stays."""

        def create(client: KeyValueBackend, process: int) -> list[int]:
            value = b"%d" % process
            puts = [client.put(f"suite/{n}", value, expect=ABSENT, timeout=CALL) for n in range(_CONTESTS)]
            return [n for n, put in enumerate(puts) if _is_applied(put)]

        won = processes.together(lambda: _connected(clients), create, _PROCESSES)
        client = clients()
        for contest in range(_CONTESTS):
            winners = [number for number in range(_PROCESSES) if contest in won[number]]
            assert len(winners) == 1, f"a key was created by {len(winners)} of {_PROCESSES} processes"
            entry = client.read(f"suite/{contest}", timeout=CALL)
            assert entry is not None, "a created key is not there"
            assert entry.value == b"%d" % winners[0], "the value that stayed is not the winner's"


def _connected(clients: Clients) -> KeyValueBackend:
    client = clients()
    client.read(KEY, timeout=CALL)
    return client


def _count(client: KeyValueBackend, writer: int) -> None:
    """Raise the number in the key, by so many applied puts. Every value names its write: no two are the same."""
    for turn in range(_INCREMENTS):
        applied = False
        while not applied:
            entry = client.read(KEY, timeout=CALL)
            number = int(entry.value.split()[0]) if entry else 0
            value = b"%d by %d in turn %d" % (number + 1, writer, turn)
            applied = _is_applied(client.put(KEY, value, expect=entry.token if entry else ABSENT, timeout=CALL))


def _is_applied(put: PutResult) -> bool:
    assert put.outcome is not PutOutcome.UNKNOWN, "a put is of unknown outcome although the service is healthy"
    return put.outcome is PutOutcome.APPLIED


def _assert_counted(client: KeyValueBackend, expected: int) -> None:
    entry = client.read(KEY, timeout=CALL)
    assert entry is not None
    counted = int(entry.value.split()[0])
    assert counted == expected, f"lost update: {expected} puts were applied, {counted} of them count"
