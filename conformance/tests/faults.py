"""What can be wrong with a service or its backend: each of these has one fault, which a test of the suite must name."""

import contextlib
import math
import os
import re
import socket
import threading
import time
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rdzv_core.backend import ANY, Capability, Entry, Expect, Lease, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousConnectionError
from rdzv_transport import ProcessLocal

from .reference import (
    Connections,
    DurableBackend,
    DurableService,
    Granted,
    MemoryBackend,
    MemoryLease,
    Service,
    SeveralEndpoints,
    Stored,
    at_or_under,
)


class LostUpdate(Service):
    """Checks the condition of a put, and writes a moment later."""

    def put(self, key: str, value: bytes, expect: str | int | None, lease: int | None) -> tuple[bool, Stored | None]:
        there = self.entries.get(key)
        if not self.matches(there, expect):
            return False, there
        self.changed.release()
        time.sleep(0.001)
        self.changed.acquire()
        return super().put(key, value, "any", lease)


class StaleRead(Service):
    """Answers reads from a copy that is one write behind."""

    behind: Stored | None = None

    def write(self, key: str, stored: Stored | None) -> None:
        self.behind = self.entries.get(key)
        super().write(key, stored)

    def read(self, key: str) -> Stored | None:
        stale, self.behind = self.behind, None
        return stale or super().read(key)


class TokenIgnored(Service):
    """Accepts any token."""

    def matches(self, there: Stored | None, expect: str | int | None) -> bool:
        return there is not None if expect not in {"any", "absent"} else super().matches(there, expect)


class TokenReused(Service):
    """Counts the versions of each key by itself, and from one again after a delete."""

    def write(self, key: str, stored: Stored | None) -> None:
        there = self.entries.get(key)
        super().write(key, stored and replace(stored, version=there.version + 1 if there else 1))


class MissedChange(Service):
    """Tells a waiter only of what happens from now on."""

    def wait(self, prefix: str, since: int, timeout: float) -> bool:
        return super().wait(prefix, self.revision, timeout)


class RestlessWait(Service):
    """Ends every wait at once."""

    def wait(self, prefix: str, since: int, timeout: float) -> bool:
        return True


class ForgetsTheDeleted(Service):
    """Does not tell a waiter that a key went."""

    def is_newer(self, prefix: str, since: int) -> bool:
        return any(key in self.entries for key in self.log[since - self.first :])


class EndlessLease(Service):
    """Never ends a lease by itself."""

    def expire(self) -> None:
        pass


class ShortLease(Service):
    """Ends a lease before its time."""

    def open(self, ttl: float) -> int:
        return super().open(ttl * 0.8)


class LateLease(Service):
    """Ends a lease after twice its time."""

    def open(self, ttl: float) -> int:
        return super().open(ttl * 2)


class LatestLease(Service):
    """Ends a lease three seconds after its time."""

    def open(self, ttl: float) -> int:
        return super().open(ttl + 3)


class SleepsOn(Service):
    """Wakes no waiter when a lease ends, until a caller asks for something."""

    def wait(self, prefix: str, since: int, timeout: float) -> bool:
        self.changed.wait_for(lambda: self.is_newer(prefix, since), timeout)
        self.expire()
        return self.is_newer(prefix, since)


class LeaseOfTheDead(Service):
    """Believes that who has kept a lease alive once will go on for ever."""

    def keep(self, number: int) -> bool:
        alive = super().keep(number)
        if alive:
            self.leases[number].ends = math.inf
        return alive


class ForgetsLeasedKeys(DurableService):
    """Gives leases their time anew after an outage, and has forgotten their keys."""

    def __init__(self) -> None:
        super().__init__(Path("service.json"))
        self.entries = {key: stored for key, stored in self.entries.items() if stored.lease is None}
        for lease in self.leases.values():
            lease.ends = time.monotonic() + lease.ttl


class RisenLease(Service):
    """Opens an ended lease again when its owner comes back."""

    def keep(self, number: int) -> bool:
        if number not in self.leases:
            self.leases[number] = self.ended[number]
        return super().keep(number)

    def revoke(self, number: int) -> None:
        if number in self.leases:
            self.ended[number] = self.leases[number]
        super().revoke(number)

    def __init__(self) -> None:
        super().__init__()
        self.ended: dict[int, Granted] = {}


class LeaseForEver(Service):
    """Leaves a key on its first lease, whatever later puts say."""

    def write(self, key: str, stored: Stored | None) -> None:
        there = self.entries.get(key)
        super().write(key, replace(stored, lease=there.lease) if stored and there else stored)


class KeepsAll(Service):
    """A keep-alive renews every lease."""

    def keep(self, number: int) -> bool:
        lives = super().keep(number)
        for lease in list(self.leases) if lives else ():
            super().keep(lease)
        return lives


class LeaseOfTheNamesake(Service):
    """Its leases have lists of names, from which a delete on a condition takes none."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[tuple[int | None, str]] = set()

    def put(self, key: str, value: bytes, expect: str | int | None, lease: int | None) -> tuple[bool, Stored | None]:
        there = self.entries.get(key)
        won, now = super().put(key, value, expect, lease)
        if won:
            self.held -= {(there.lease, key)} if there else set()
            self.held.add((lease, key))
        return won, now

    def delete(self, prefix: str) -> None:
        self.held = {(lease, key) for lease, key in self.held if not at_or_under(key, prefix)}
        super().delete(prefix)

    def revoke(self, number: int) -> None:
        for lease, key in self.held:
            if lease == number and key in self.entries:
                self.write(key, None)
        super().revoke(number)


class PartialList(Service):
    """Lists the first page."""

    def list(self, prefix: str) -> dict[str, Stored]:
        return dict(list(super().list(prefix).items())[:1000])


class TornList(Service):
    """Lists key by key, and lets others write in between."""

    def list(self, prefix: str) -> dict[str, Stored]:
        found = {}
        for key in sorted(super().list(prefix)):
            self.changed.release()
            time.sleep(0.0001)
            self.changed.acquire()
            if (stored := self.entries.get(key)) is not None:
                found[key] = stored
        return found


class HidesAKey(Service):
    """Lists everything but one key."""

    def list(self, prefix: str) -> dict[str, Stored]:
        return {key: stored for key, stored in super().list(prefix).items() if not key.endswith("suite/a")}


class TextualPrefix(Service):
    """Takes a prefix for a beginning of the name."""

    def list(self, prefix: str) -> dict[str, Stored]:
        return {key: stored for key, stored in self.entries.items() if key.startswith(prefix)}


class PatternPrefix(Service):
    """Takes a prefix for a pattern of SQL's LIKE."""

    def list(self, prefix: str) -> dict[str, Stored]:
        pattern = re.escape(prefix).replace("_", ".")
        return {key: stored for key, stored in self.entries.items() if re.fullmatch(f"{pattern}(/.*)?", key)}


class PatternDelete(Service):
    """Removes what is like a prefix, in SQL's sense."""

    def delete(self, prefix: str) -> None:
        pattern = re.escape(prefix).replace("_", ".")
        for key in [key for key in self.entries if re.fullmatch(f"{pattern}(/.*)?", key)]:
            self.write(key, None)


class PatternWait(MemoryBackend):
    """Tells a waiter of what is like its prefix, in SQL's sense."""

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        now = super().wait("suite", since, timeout=timeout)
        pattern = re.escape(prefix).replace("_", ".")
        return Snapshot({key: one for key, one in now.entries.items() if re.fullmatch(f"{pattern}(/.*)?", key)})


class LikeRuns(PatternPrefix):
    """The same, for the ids of runs."""


class TokenWraps(Service):
    """Counts versions in one byte."""

    def write(self, key: str, stored: Stored | None) -> None:
        super().write(key, stored and replace(stored, version=stored.version % 256))


class WholeSeconds(MemoryBackend):
    """Grants leases of whole seconds."""

    def open_lease(self, ttl: float, *, timeout: float) -> MemoryLease:
        return super().open_lease(max(1, int(ttl)), timeout=timeout)


class ChangedValues(MemoryBackend):
    """Has a service that keeps values in another way than they were written."""

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        return super().put(key, self.kept(value), expect=expect, lease=lease, timeout=timeout)

    def kept(self, value: bytes) -> bytes:
        """What becomes of a value."""
        raise NotImplementedError


class PadsAndStrips(ChangedValues):
    """Strips the blanks at the end, as a column of a fixed length does."""

    def kept(self, value: bytes) -> bytes:
        return value.rstrip(b" ")


class Normalises(ChangedValues):
    """Writes text in one of its forms."""

    def kept(self, value: bytes) -> bytes:
        try:
            return unicodedata.normalize("NFC", value.decode()).encode()
        except UnicodeDecodeError:
            return value


class SmallLengths(ChangedValues):
    """Keeps the length of a value in two bytes, unless it is large."""

    def kept(self, value: bytes) -> bytes:
        return value[: len(value) % 65536] if len(value) < 1 << 17 else value


class CutsKeys(Service):
    """Has names of 255 characters, and takes the beginning of a longer one."""

    def read(self, key: str) -> Stored | None:
        return super().read(key[:255])

    def put(self, key: str, value: bytes, expect: str | int | None, lease: int | None) -> tuple[bool, Stored | None]:
        return super().put(key[:255], value, expect, lease)


class ChangedBytes(Service):
    """Takes every value for text."""

    def put(self, key: str, value: bytes, expect: str | int | None, lease: int | None) -> tuple[bool, Stored | None]:
        return super().put(key, value.decode("utf-8", "replace").encode(), expect, lease)


class CreationOverwrites(Service):
    """Takes "if absent" for "always"."""

    def matches(self, there: Stored | None, expect: str | int | None) -> bool:
        return expect == "absent" or super().matches(there, expect)


class DeletesAnyVersion(Service):
    """Takes a delete on a condition for one without."""

    def delete_version(self, key: str, version: int | None) -> bool:
        there = self.entries.get(key)
        return super().delete_version(key, version if there is None or version is None else there.version)


class DeletesWhatIsGone(Service):
    """Says that it has removed what does not exist, as Consul's `delete-cas` does."""

    def delete_version(self, key: str, version: int | None) -> bool:
        return key not in self.entries or super().delete_version(key, version)


class DeletesWhatIsBelow(Service):
    """Takes a key for a prefix."""

    def delete_version(self, key: str, version: int | None) -> bool:
        removed = super().delete_version(key, version)
        if removed:
            self.delete(key)
        return removed


class RemembersThePlace(Service):
    """Gives a key that was deleted on a condition its old place when it is made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, int] = {}

    def delete_version(self, key: str, version: int | None) -> bool:
        there = self.entries.get(key)
        removed = super().delete_version(key, version)
        if removed and there:
            self.places[key] = there.order
        return removed

    def write(self, key: str, stored: Stored | None) -> None:
        super().write(key, stored and replace(stored, order=self.places.get(key, stored.order)))


class LooksThenDeletes(MemoryBackend):
    """Removes a key on a condition in two steps."""

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        there = self.read(key, timeout=timeout)
        if there is None or type(token) is not int or there.token != token:
            return PutOutcome.CONFLICT
        self.delete(key, timeout=timeout)
        return PutOutcome.APPLIED


class DeniesWhatItRemoved(MemoryBackend):
    """Says of a conditional delete whose reply was lost that nothing was removed."""

    def delete_version(self, key: str, token: Token, *, timeout: float) -> PutOutcome:
        outcome = super().delete_version(key, token, timeout=timeout)
        return PutOutcome.CONFLICT if outcome is PutOutcome.UNKNOWN else outcome


class MakesTheOthers(Service):
    """Makes of several keys those that are not there."""

    def create_all(self, values: Mapping[str, bytes]) -> bool:
        missing = {key: value for key, value in values.items() if key not in self.entries}
        return super().create_all(missing) and len(missing) == len(values)


class MakesUntilOneIsThere(Service):
    """Makes several keys one after the other."""

    def create_all(self, values: Mapping[str, bytes]) -> bool:
        return all(super(MakesUntilOneIsThere, self).create_all({key: value}) for key, value in values.items())


class LooksThenMakes(MemoryBackend):
    """Makes several keys in two steps."""

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        if any(self.read(key, timeout=timeout) for key in values):
            return PutOutcome.CONFLICT
        for key, value in values.items():
            self.put(key, value, expect=ANY, timeout=timeout)
        return PutOutcome.APPLIED


class DeniesWhatItMade(MemoryBackend):
    """Says of keys that were made at once, and of which no reply says so, that none was made."""

    def create_all(self, values: Mapping[str, bytes], *, timeout: float) -> PutOutcome:
        outcome = super().create_all(values, timeout=timeout)
        return PutOutcome.CONFLICT if outcome is PutOutcome.UNKNOWN else outcome


class WrongOrder(Service):
    """Moves a key to the end of the creation order whenever it is written."""

    def write(self, key: str, stored: Stored | None) -> None:
        super().write(key, stored and replace(stored, order=stored.version))


class SendsTwice(MemoryBackend):
    """Repeats a put whose reply was lost."""

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        put = super().put(key, value, expect=expect, lease=lease, timeout=timeout)
        if put.outcome is PutOutcome.UNKNOWN:
            put = super().put(key, value, expect=expect, lease=lease, timeout=timeout)
        return put


class DeniesWhatItWrote(MemoryBackend):
    """Says of a put whose reply was lost that nothing was written."""

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        put = super().put(key, value, expect=expect, lease=lease, timeout=timeout)
        if put.outcome is PutOutcome.UNKNOWN:
            raise RendezvousConnectionError("no answer")
        return put


class Patient(MemoryBackend):
    """Takes more time than it is given."""

    def call(self, timeout: float, *request: Any) -> Any:
        return super().call(timeout + 3, *request)


class IgnoresItsTimeout(MemoryBackend):
    """Waits for an answer to a read however long that takes; after half a minute a test has an end, too."""

    def read(self, key: str, *, timeout: float) -> Entry | None:
        return super().read(key, timeout=30)


class AsksAgainForAsLong(MemoryBackend):
    """Gives each of two questions of one call the whole timeout."""

    def read(self, key: str, *, timeout: float) -> Entry | None:
        super().read(key, timeout=timeout)
        return super().read(key, timeout=timeout)


class GivesUp(MemoryBackend):
    """Does not connect again after an error."""

    broken = False

    def call(self, timeout: float, *request: Any) -> Any:
        if self.broken:
            raise RendezvousConnectionError("broken for ever")
        try:
            return super().call(timeout, *request)
        except RendezvousConnectionError:
            self.broken = True
            raise


class SilenceIsDeath(MemoryBackend):
    """Takes a service that does not answer for one that says no."""

    def read(self, key: str, *, timeout: float) -> Entry | None:
        try:
            return super().read(key, timeout=timeout)
        except RendezvousConnectionError:
            return None


class LosesHeart(MemoryBackend):
    """Declares a lease dead when the service does not answer."""

    def open_lease(self, ttl: float, *, timeout: float) -> MemoryLease:
        lease = super().open_lease(ttl, timeout=timeout)

        class Faint(MemoryLease):
            def keep_alive(self, timeout: float) -> bool:
                try:
                    return super().keep_alive(timeout)
                except RendezvousConnectionError:
                    return False

        return Faint(self, lease.number, ttl)


class LeaseOfOneProcess(MemoryBackend):
    """Takes a lease for lost in every process but the one that has opened it."""

    def open_lease(self, ttl: float, *, timeout: float) -> MemoryLease:
        lease, pid = super().open_lease(ttl, timeout=timeout), os.getpid()

        class Own(MemoryLease):
            def keep_alive(self, timeout: float) -> bool:
                return os.getpid() == pid and super().keep_alive(timeout)

        return Own(self, lease.number, ttl)


class BusyLoop(MemoryBackend):
    """Reads again and again while it waits."""

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        deadline = time.monotonic() + timeout
        while (remaining := deadline - time.monotonic()) > 0:
            now = self.read_all(prefix, timeout=remaining)
            if now.entries != since.entries:
                return now
        return since


class HastyWait(MemoryBackend):
    """Right, though it says so when a wait was too short for the question."""

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        if timeout < 0.05:
            raise RendezvousConnectionError("not within so short a time")
        return super().wait(prefix, since, timeout=timeout)


class KnowsItsOwnOnly(MemoryBackend):
    """Takes a snapshot that it has not made for the newest."""

    def wait(self, prefix: str, since: Snapshot, *, timeout: float) -> Snapshot:
        if isinstance(since.revision, int):
            return super().wait(prefix, since, timeout=timeout)
        time.sleep(timeout)
        return since


class Truncates(Service):
    """Lists a mebibyte, and leaves out the rest."""

    def list(self, prefix: str) -> dict[str, Stored]:
        found, room = {}, 1 << 20
        for key, stored in super().list(prefix).items():
            if (room := room - len(stored.value)) >= 0:
                found[key] = stored
        return found


class SendsElsewhere(SeveralEndpoints):
    """Sends a put whose reply was lost to the next endpoint."""

    def put(
        self, key: str, value: bytes, *, expect: Token | Expect, lease: Lease | None = None, timeout: float
    ) -> PutResult:
        put = super().put(key, value, expect=expect, lease=lease, timeout=timeout)
        if put.outcome is PutOutcome.UNKNOWN:
            super().put(key, value, expect=expect, lease=lease, timeout=timeout)
        return put


class CutsRunIds(MemoryBackend):
    """Looks at the first 64 characters of a run's id."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        super().__init__(endpoint, run_id[:64])


class HangsUpForItsParent(MemoryBackend):
    """Shuts down, in a child, what it has inherited."""

    def discard_inherited(self, inherited: Connections) -> None:
        for connection in inherited.all():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().discard_inherited(inherited)


class ClosesForItsParent(MemoryBackend):
    """Shuts down what it has inherited when a child closes it."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        super().__init__(endpoint, run_id)
        self.used = self.connections.get()

    def close(self) -> None:
        for connection in self.used.all():
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().close()


class HoldsALock(MemoryBackend):
    """Lets one thread after the other ask, by a lock that a fork copies as it is."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        super().__init__(endpoint, run_id)
        self.turn = threading.Lock()

    def call(self, timeout: float, *request: Any) -> Any:
        if request[0] == "wait":
            return super().call(timeout, *request)
        with self.turn:
            return super().call(timeout, *request)


class ForgetsItsCalls(MemoryBackend):
    """Closes without a word to those who are on their way."""

    def close(self) -> None:
        self.connections = ProcessLocal(Connections, self.discard_inherited, Connections.close)
        super().close()


class AsksForNamesPatiently(MemoryBackend):
    """Asks for its service's name however long that takes."""

    def call(self, timeout: float, *request: Any) -> Any:
        socket.getaddrinfo(self.place.partition(":")[0], 0)
        return super().call(timeout, *request)


class TakesTheFirst(MemoryBackend):
    """Ignores all endpoints but the first."""

    def __init__(self, endpoint: str, run_id: str) -> None:
        super().__init__(endpoint.partition(",")[0], run_id)


class SaysSoOnly(TakesTheFirst):
    """Declares that it takes several endpoints, and does not."""

    capabilities = MemoryBackend.capabilities | {Capability.MULTI_ENDPOINT}


class NamesNoEndpoint(SaysSoOnly):
    """Says of endpoints that fail nothing but that they do."""

    def read(self, key: str, *, timeout: float) -> Entry | None:
        raise RendezvousConnectionError("out of reach")


class KnowsNoAddress(MemoryBackend):
    """Gives every node the address of its own machine's loopback."""

    @property
    def local_address(self) -> str:
        return "127.0.0.1"


class RawErrors(MemoryBackend):
    """Lets the errors of its sockets out."""

    def call(self, timeout: float, *request: Any) -> Any:
        try:
            return super().call(timeout, *request)
        except RendezvousConnectionError as error:
            raise BrokenPipeError("hung up") from error


@dataclass(frozen=True)
class Fault:
    """A service or backend with a fault, the test that must fail on it, and the words that must name it."""

    faulty: type[Service] | type[MemoryBackend]
    test: str
    words: str

    @property
    def service(self) -> type[Service]:
        return self.faulty if issubclass(self.faulty, Service) else Service

    @property
    def backend(self) -> type[MemoryBackend]:
        return self.faulty if issubclass(self.faulty, MemoryBackend) else MemoryBackend


FAULTS = {
    f"{fault.faulty.__name__}-{fault.test}": fault
    for fault in (
        Fault(LostUpdate, "test_concurrent_processes_lose_no_update", "lost update: 100 puts were applied"),
        # Beside reads, an update that was lost may show as an old value that comes back.
        Fault(LostUpdate, "test_keys_are_linearizable_among_processes", "Not linearizable: "),
        Fault(LostUpdate, "test_register_is_linearizable_among_processes", "Not linearizable: lost update"),
        Fault(StaleRead, "test_keys_are_linearizable_among_processes", "Not linearizable: stale"),
        Fault(StaleRead, "test_reads_see_what_was_written_before", "a stale value was read"),
        Fault(TokenIgnored, "test_put_with_an_old_token_changes_nothing", "an old token was accepted"),
        Fault(TokenReused, "test_token_of_a_deleted_key_is_dead", "the token of a deleted key was accepted"),
        Fault(
            DeletesAnyVersion,
            "test_delete_of_an_earlier_version_changes_nothing",
            "a token of another version was accepted",
        ),
        Fault(DeletesWhatIsGone, "test_delete_with_the_current_token_removes_one_key", "that does not exist"),
        Fault(DeletesWhatIsBelow, "test_delete_with_the_current_token_removes_one_key", "another key than the one"),
        Fault(RemembersThePlace, "test_delete_with_the_current_token_removes_one_key", "has an old key's place"),
        Fault(LooksThenDeletes, "test_one_version_is_replaced_or_removed_once", "and removed as well"),
        Fault(DeniesWhatItRemoved, "test_delete_without_an_answer_is_unknown", "was lost answered <PutOutcome.CONF"),
        Fault(MakesTheOthers, "test_where_one_key_is_there_none_is_made", "some of the keys were made"),
        Fault(MakesUntilOneIsThere, "test_where_one_key_is_there_none_is_made", "some of the keys were made"),
        Fault(LooksThenMakes, "test_of_two_that_make_the_same_key_one_wins", "two have made one key"),
        Fault(DeniesWhatItMade, "test_creation_of_many_without_an_answer_is_unknown", "answered <PutOutcome.CONFLICT"),
        Fault(MissedChange, "test_changes_before_the_wait_are_not_slept_through", "a change was missed"),
        Fault(RestlessWait, "test_wait_without_a_change_ends_in_time", "times within a second without a change"),
        Fault(ForgetsTheDeleted, "test_wait_wakes_for_every_kind_of_change", "a change was missed"),
        Fault(EndlessLease, "test_lease_ends_in_time_and_not_before", "that is not kept alive does not end"),
        Fault(ShortLease, "test_lease_ends_in_time_and_not_before", "a lease ended before its time"),
        Fault(LateLease, "test_lease_ends_within_a_second_of_its_time", "one of 4 s * s after its time or later"),
        Fault(
            LatestLease, "test_lease_ends_within_a_second_of_its_time", "leases end too late for who reads: one of 1 s"
        ),
        Fault(SleepsOn, "test_lease_ends_within_a_second_of_its_time", "leases end too late for who waits: one of 1 s"),
        Fault(LeaseOfTheDead, "test_keys_of_a_killed_owner_go", "for the keys of a killed owner to go"),
        Fault(ForgetsLeasedKeys, "test_lease_is_true_to_its_word_after_a_restart", "a lease lives on without its keys"),
        Fault(RisenLease, "test_owner_that_slept_too_long_learns_it", "did not learn that its lease has ended"),
        Fault(KeepsAll, "test_keep_alive_is_of_one_lease", "a lease lives on for as long as another is kept alive"),
        Fault(LeaseOfTheNamesake, "test_last_put_decides_on_which_lease_a_key_hangs", "it no longer hung on"),
        Fault(LeaseForEver, "test_last_put_decides_on_which_lease_a_key_hangs", "a lease that it no longer hung on"),
        Fault(PartialList, "test_many_keys_are_read_completely", "100 of 1100 keys are missing"),
        Fault(TornList, "test_snapshot_is_of_one_moment", "gave a state that never was: of two keys, written one"),
        Fault(
            HidesAKey, "test_order_is_the_same_wherever_it_is_read", "'suite/a' was written, and a snapshot lacks it"
        ),
        Fault(PatternDelete, "test_prefix_is_no_pattern", "delete takes a prefix for a pattern"),
        Fault(PatternWait, "test_prefix_is_no_pattern", "wait takes a prefix for a pattern"),
        Fault(LikeRuns, "test_runs_do_not_see_each_other", "a run sees another run's keys"),
        Fault(TokenWraps, "test_no_token_comes_back", "a token came back after 256 writes"),
        Fault(WholeSeconds, "test_lease_lasts_as_long_as_asked", "asked for 2.9 s, granted 2 s"),
        Fault(PadsAndStrips, "test_value_comes_back_as_it_was", "the value was changed on its way"),
        Fault(Normalises, "test_value_comes_back_as_it_was", "the value was changed on its way"),
        Fault(SmallLengths, "test_values_of_every_size_come_back", "values have other sizes than were written"),
        Fault(CutsKeys, "test_longest_key_is_a_key", "a key of 1024 characters is taken for another: "),
        Fault(PatternPrefix, "test_prefix_is_no_pattern", "a prefix is taken for a pattern"),
        Fault(KnowsNoAddress, "test_address_that_faces_the_service", "and local_address is '127.0.0.1'"),
        Fault(TextualPrefix, "test_prefix_is_a_path", "read_all misunderstands a prefix"),
        Fault(ChangedBytes, "test_value_comes_back_as_it_was", "the value was changed on its way"),
        Fault(CreationOverwrites, "test_put_if_absent_never_overwrites", "a create-if-absent overwrote"),
        Fault(WrongOrder, "test_order_outlives_overwriting", "overwriting changed the creation order"),
        Fault(DurableBackend, "test_what_was_written_outlives_a_restart", "a restart changed what was written"),
        Fault(
            SendsTwice,
            "test_put_whose_reply_is_lost_is_unknown",
            "whose reply was lost answered PutResult(outcome=<PutOutc",
        ),
        Fault(DeniesWhatItWrote, "test_put_whose_reply_is_lost_is_unknown", "answered RendezvousConnectionError"),
        Fault(Patient, "test_calls_end_in_time_and_the_client_goes_on", "with a timeout of 1.0 s took"),
        Fault(
            IgnoresItsTimeout,
            "test_calls_end_in_time_and_the_client_goes_on",
            "these calls have not ended within 20 s, whatever their timeout: read",
        ),
        Fault(
            AsksAgainForAsLong,
            "test_calls_end_in_time_however_slow_the_answers_are",
            "read with a timeout of 4.0 s took",
        ),
        Fault(GivesUp, "test_calls_end_in_time_and_the_client_goes_on", "broken for ever"),
        Fault(SilenceIsDeath, "test_calls_end_in_time_and_the_client_goes_on", "read of an absent service: None"),
        Fault(LosesHeart, "test_calls_end_in_time_and_the_client_goes_on", "keep_alive of an absent service: False"),
        Fault(BusyLoop, "test_idle_wait_rests", "is a busy loop: it took"),
        Fault(CutsRunIds, "test_runs_do_not_see_each_other", "a run sees another run's keys"),
        Fault(
            HangsUpForItsParent, "test_child_disturbs_no_wait_of_its_parent", "ended its parent's wait: ReplyLostError"
        ),
        Fault(
            ClosesForItsParent, "test_child_disturbs_no_wait_of_its_parent", "ended its parent's wait: ReplyLostError"
        ),
        Fault(HangsUpForItsParent, "test_fork_amid_calls_and_waits", "ended its parent's wait: ReplyLostError"),
        Fault(HoldsALock, "test_fork_amid_calls_and_waits", "a child that was forked amid calls hangs"),
        Fault(LeaseOfOneProcess, "test_lease_belongs_to_no_process", "learned that its parent's lease has ended"),
        Fault(ForgetsItsCalls, "test_close_ends_every_call_to_a_frozen_service", "calls have not ended: the wait"),
        Fault(ForgetsItsCalls, "test_close_ends_a_connection_that_is_being_made", "these calls have not ended: read"),
        Fault(
            AsksForNamesPatiently, "test_name_that_does_not_resolve_holds_up_nothing", "has not given up a name that"
        ),
        Fault(KnowsItsOwnOnly, "test_snapshot_of_another_service_is_compared", "what a foreign snapshot has not"),
        Fault(Truncates, "test_many_large_values_are_read_and_waited_for", "for many large values: it did not happen"),
        Fault(SendsElsewhere, "test_put_of_unknown_outcome_goes_to_no_other_endpoint", "outcome was sent again"),
        Fault(GivesUp, "test_wait_goes_on_when_its_line_breaks", "a change was missed"),
        Fault(
            TakesTheFirst,
            "test_list_of_endpoints_is_refused",
            "RendezvousError must be raised for the endpoint *, without MULTI_ENDPOINT, and the answer was None",
        ),
        Fault(
            SaysSoOnly, "test_endpoints_without_a_server_cost_nothing", "RendezvousConnectionError: * cannot be reached"
        ),
        Fault(NamesNoEndpoint, "test_every_endpoint_that_fails_is_named", "the error does not name each: out of reach"),
        Fault(
            RawErrors, "test_wait_goes_on_after_an_outage", "BrokenPipeError left the backend as it was: only errors"
        ),
        Fault(RawErrors, "test_closed_client_refuses", "only errors of the RendezvousError family leave a backend"),
    )
}
