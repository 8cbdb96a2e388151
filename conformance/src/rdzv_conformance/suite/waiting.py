"""Waiting for changes, level-triggered: a state may be skipped, the last one never is."""

import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest
from rdzv_core.backend import ABSENT, ANY, MAX_PAYLOAD, Capability, KeyValueBackend, Snapshot
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.threads import in_thread

from ..meanwhile import holds, wait_for
from .base import CALL, KEY, ROOT, Clients, Conformance, entry_of, lacks, refusal, requires
from .calls import result_of

_SPURIOUS: Final = 5
"""How often a wait of one second may end for nothing."""
_WATCH_SECONDS: Final = 0.08
"""What a watch takes at most, in the median; polling takes longer."""
_TOO_SHORT: Final = 0.1
"""A wait of fewer seconds may end in an error on a busy machine, before the question is out."""
_LARGE: Final = 48
_AT_ONCE: Final = 4
_TURNS: Final = 100
_AMID: Final = 0.002
"""Seconds that a write takes on a quick service: within them another client begins to wait."""
_IDLE: Final = 2.0
"""For so many seconds an idle wait is measured."""
_IDLE_CPU: Final = 0.1
"""What it may take of them, in seconds of processor time. One that sleeps takes 0.001, a busy loop 0.25 and more."""
_IDLE_TURNS: Final = 600
"""How often its threads may wake meanwhile, all together: torch's FileStore looks a hundred times a second."""


class WaitingConformance(Conformance):
    """`KeyValueBackend.wait`."""

    def test_wait_wakes_for_every_kind_of_change(self, clients: Clients) -> None:
        """A key that appears, changes or goes, at the prefix or under it, ends the wait."""
        waiter, writer = clients(), clients()
        names = ("suite/a", "suite/a/b", "suite/a/b/c")
        since = waiter.read_all("suite/a", timeout=CALL)
        for name in names:
            for value in (b"1", b"2", b""):
                with _meanwhile(writer.put, name, value, expect=ANY, timeout=CALL):
                    since = wait_for(waiter, "suite/a", since, holds(name, value), f"{name} to become {value!r}")
        for name in reversed(names):
            with _meanwhile(writer.delete, name, timeout=CALL):
                since = wait_for(waiter, "suite/a", since, holds(name, None), f"{name} to go")

    def test_wait_may_be_on_one_key(self, clients: Clients) -> None:
        """A key is a prefix of itself, also while it is missing; its neighbours are not under it."""
        waiter, writer = clients(), clients()
        since = waiter.read_all(KEY, timeout=CALL)
        for value in (b"1", b"2"):
            writer.put(f"{KEY}2", value, expect=ANY, timeout=CALL)
            with _meanwhile(writer.put, KEY, value, expect=ANY, timeout=CALL):
                since = wait_for(waiter, KEY, since, holds(KEY, value), f"the key to become {value!r}")
            assert since.entries.keys() == {KEY}, "a wait tells of keys that it was not asked for"

    def test_changes_before_the_wait_are_not_slept_through(self, clients: Clients) -> None:
        """Whatever happened since the snapshot, the wait ends at once, with the last state."""
        waiter, writer = clients(), clients()
        writer.put("suite/gone", b"x", expect=ANY, timeout=CALL)
        since = waiter.read_all(ROOT, timeout=CALL)
        for number in range(100):
            writer.put(f"suite/{number % 7}", b"%d" % number, expect=ANY, timeout=CALL)
        writer.delete("suite/gone", timeout=CALL)
        last = writer.read_all(ROOT, timeout=CALL)
        began = time.monotonic()
        now = wait_for(waiter, ROOT, since, lambda now: now.entries == last.entries, "the state that is there already")
        assert time.monotonic() - began < 2, "a wait sleeps although the state has changed before"
        assert "suite/gone" not in now.entries

    def test_wait_that_begins_amid_a_write_is_not_slept_through(self, clients: Clients) -> None:
        """Clients that begin to wait while a key is made learn of it: on the key itself, and on its folder."""
        writers, waiters = [[clients() for _ in range(_AT_ONCE)] for _ in range(2)]

        def learn(waiter: KeyValueBackend, prefix: str, key: str) -> None:
            # By chance before, amid or after the write.
            time.sleep(random.random() * _AMID)  # noqa: S311 - chance is no secret
            since = waiter.read_all(prefix, timeout=CALL)
            wait_for(waiter, prefix, since, holds(key, b"x"), "a key that was made when the wait began")

        with ThreadPoolExecutor(3 * _AT_ONCE) as pool:
            for turn in range(_TURNS):
                waits, puts = [], []
                for number, (writer, waiter) in enumerate(zip(writers, waiters, strict=True)):
                    folder = f"{ROOT}/{turn}/{number}"
                    key = f"{folder}/key"
                    waits += [pool.submit(learn, waiter, prefix, key) for prefix in (key, folder)]
                    puts.append(pool.submit(writer.put, key, b"x", expect=ABSENT, timeout=CALL))
                for put in puts:
                    result_of(put, "put")
                for wait in waits:
                    result_of(wait, "wait")

    def test_change_and_return_are_not_confused(self, clients: Clients) -> None:
        """A key that was deleted and created again with the same value has changed: its token and order are new."""
        waiter, writer = clients(), clients()
        writer.put(KEY, b"x", expect=ANY, timeout=CALL)
        since = waiter.read_all(ROOT, timeout=CALL)
        writer.delete(KEY, timeout=CALL)
        new = writer.put(KEY, b"x", expect=ANY, timeout=CALL).entry
        wait_for(waiter, ROOT, since, lambda now: now.entries.get(KEY) == new, "the key's second life")

    def test_snapshot_of_another_service_is_compared(self, client: KeyValueBackend) -> None:
        """A wait from a snapshot that this service has not made returns what differs from it, at once."""
        empty = client.wait(ROOT, Snapshot(), timeout=0.2)
        assert empty.entries == {}, "a wait invented a change"
        put = client.put(KEY, b"x", expect=ANY, timeout=CALL)
        began = time.monotonic()
        for since in (Snapshot(), Snapshot(revision="?")):
            wait_for(
                client, ROOT, since, lambda now: now.entries == {KEY: put.entry}, "what a foreign snapshot has not"
            )
        assert time.monotonic() - began < 2, "a wait sleeps although its snapshot differs from what is there"

    def test_many_large_values_are_read_and_waited_for(self, clients: Clients) -> None:
        """Twelve mebibytes: a list and a waiter get every byte of them."""
        client, waiter = clients(), clients()
        since, values = waiter.read_all(ROOT, timeout=CALL), {}
        for number in range(_LARGE):
            values[f"suite/{number}"] = bytes([number]) * MAX_PAYLOAD
            client.put(f"suite/{number}", values[f"suite/{number}"], expect=ANY, timeout=CALL)
        now = wait_for(waiter, ROOT, since, lambda now: len(now.entries) == _LARGE, "many large values", CALL)
        intact = {name: entry.value for name, entry in now.entries.items()} == values
        assert intact, "a waiter got other values than were written"
        assert client.read_all(ROOT, timeout=3 * CALL).entries == now.entries, "a list and a waiter differ"

    def test_old_snapshot_is_as_good_as_a_new_one(self, clients: Clients) -> None:
        """A wait goes on from whatever snapshot it is given, also if newer ones were taken meanwhile."""
        waiter, writer = clients(), clients()
        first = waiter.read_all(ROOT, timeout=CALL)
        writer.put(KEY, b"1", expect=ANY, timeout=CALL)
        newer = wait_for(waiter, ROOT, first, holds(KEY, b"1"), "the first value")
        again = wait_for(waiter, ROOT, first, holds(KEY, b"1"), "the first value, again")
        other = wait_for(clients(), ROOT, first, holds(KEY, b"1"), "the first value, as another client sees it")
        assert newer.entries == again.entries == other.entries

    def test_wait_never_goes_back(self, clients: Clients) -> None:
        """Under a stream of writes a waiter sees newer and newer states, and in the end the last one."""
        waiter, writer = clients(), clients()
        writer.put(KEY, b"0", expect=ANY, timeout=CALL)
        seen = waiter.read_all(ROOT, timeout=CALL)
        last, numbers = 200, []

        def last_has_come(now: Snapshot) -> bool:
            numbers.append(int(entry_of(now, KEY).value))
            return numbers[-1] == last

        def put_many() -> None:
            for number in range(1, last + 1):
                writer.put(KEY, b"%d" % number, expect=ANY, timeout=CALL)

        with _meanwhile(put_many):
            # Two hundred round trips, to a service that may be far away.
            wait_for(waiter, ROOT, seen, last_has_come, "the last of many writes", 6 * CALL)
        assert numbers == sorted(numbers), "a wait answered with an older state"

    def test_wait_without_a_change_ends_in_time(self, client: KeyValueBackend) -> None:
        """If nothing changes, `since` comes back when the time is over; a wait may wake for nothing, but seldom."""
        client.put(KEY, b"x", expect=ANY, timeout=CALL)
        since = client.read_all(ROOT, timeout=CALL)
        wakes, end = 0, time.monotonic() + 1
        while (remaining := end - time.monotonic()) > _TOO_SHORT:
            now = client.wait(ROOT, since, timeout=remaining)
            assert now.entries == since.entries, "a wait invented a change"
            wakes += 1
        assert wakes <= _SPURIOUS, f"a wait ended {wakes} times within a second without a change"
        assert time.monotonic() < end + 1, "a wait outlasts its timeout"

    def test_idle_wait_rests(self, client: KeyValueBackend) -> None:
        """While nothing changes, a wait takes next to no processor time, and does not poll without a pause."""
        client.put(KEY, b"x", expect=ANY, timeout=CALL)
        since = client.read_all(ROOT, timeout=CALL)
        client.wait(ROOT, since, timeout=0.5)  # whatever it sets up for the first one
        for _ in range(3):
            cpu, turns = _burden_of_waiting(client, since)
            if cpu <= _IDLE_CPU and turns <= _IDLE_TURNS:
                return
        pytest.fail(
            f"an idle wait of {_IDLE:g} s is a busy loop: it took {cpu:.3f} s of processor time (allowed are "
            f"{_IDLE_CPU:g} s), and its threads woke {turns} times (allowed are {_IDLE_TURNS})"
        )

    def test_wait_does_not_hold_up_the_client(self, clients: Clients) -> None:
        """While threads of a client wait, its other threads work; one change wakes all of them."""
        client = clients()
        since = client.read_all(ROOT, timeout=CALL)
        began = time.monotonic()
        wait = partial(wait_for, client, ROOT, since, holds(KEY, b"x"), "the change")
        waits = [in_thread(wait, "wait") for _ in range(10)]
        for number in range(20):
            client.put("suite/other", b"%d" % number, expect=ANY, timeout=CALL)
            client.read("suite/other", timeout=CALL)
        client.put(KEY, b"x", expect=ANY, timeout=CALL)
        for one in waits:
            result_of(one, "wait")
        assert time.monotonic() - began < CALL, "calls queue up behind the waits of other threads"

    def test_close_ends_a_wait(self, clients: Clients) -> None:
        """Closing the client ends its waits within a second, with `RendezvousConnectionError`."""
        client = clients()
        since = client.read_all(ROOT, timeout=CALL)
        wait = in_thread(lambda: client.wait(ROOT, since, timeout=60.0), "wait")
        # Either it waits by now, or it is about to: both must end.
        time.sleep(0.2)
        began = time.monotonic()
        client.close()
        refusal(lambda: result_of(wait, "wait", CALL), RendezvousConnectionError)
        assert time.monotonic() - began < 1 + 0.5, "closing the client did not end its wait within a second"

    @lacks(Capability.WATCH)
    def test_polling_is_quick_and_no_busy_loop(self, clients: Clients) -> None:
        """A service that wakes no waiter is asked again and again, in less than a second and without a busy loop."""
        waiter, writer = clients(), clients()
        since = waiter.read_all(ROOT, timeout=CALL)
        read_all, reads = waiter.read_all, 0

        def counted(prefix: str, *, timeout: float) -> Snapshot:
            nonlocal reads
            reads += 1
            return read_all(prefix, timeout=timeout)

        waiter.read_all = counted  # type: ignore[method-assign]
        with _meanwhile(writer.put, KEY, b"x", expect=ANY, timeout=CALL) as done:
            wait_for(waiter, ROOT, since, holds(KEY, b"x"), "the change")
            took = time.monotonic() - done()
        assert took < 1, f"polling took {took:.1f} s"
        assert reads < 50, f"{reads} reads in {took:.1f} s are a busy loop"

    @requires(Capability.WATCH)
    def test_watch_wakes_at_once(self, clients: Clients) -> None:
        """A service that wakes its waiters does so faster than polling could: a trip to it and back is not counted."""
        waiter, writer = clients(), clients()
        distance = _distance(waiter)
        since = waiter.read_all(ROOT, timeout=CALL)
        took = []
        for number in range(11):
            value = b"%d" % number
            with _meanwhile(writer.put, KEY, value, expect=ANY, timeout=CALL) as done:
                since = wait_for(waiter, ROOT, since, holds(KEY, value), "the change")
                now = time.monotonic()
            took.append(now - done())
        late = statistics.median(took) - distance
        assert late < _WATCH_SECONDS, f"a watch that takes {late:.3f} s more than a trip to the service is none"


def _distance(client: KeyValueBackend) -> float:
    """The seconds of a trip to the service and back."""
    took = []
    for _ in range(5):
        began = time.monotonic()
        client.read(KEY, timeout=CALL)
        took.append(time.monotonic() - began)
    return min(took)


def _burden_of_waiting(client: KeyValueBackend, since: Snapshot) -> tuple[float, int]:
    """What a wait costs this process while nothing changes: processor time, and how often threads woke."""
    cpu, turns = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    end = time.monotonic() + _IDLE
    while (remaining := end - time.monotonic()) > _TOO_SHORT:
        client.wait(ROOT, since, timeout=remaining)
    return time.process_time() - cpu, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - turns


@contextmanager
def _meanwhile(action: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Callable[[], float]]:
    """Do something in another thread, probably when the waiter waits; gives when it was begun."""

    def later() -> float:
        time.sleep(0.03)
        began = time.monotonic()
        action(*args, **kwargs)
        return began

    future = in_thread(later, "meanwhile")
    yield lambda: result_of(future, action.__name__)
    result_of(future, action.__name__)
