"""Consul's keys and values: what it is asked, and what its JSON means."""

import binascii
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote, urlencode

from rdzv_core.backend import Entry, PutOutcome, PutResult, Snapshot
from rdzv_transport import (
    Client,
    Poll,
    PollWatch,
    Reply,
    ReplyLostError,
    Request,
    Revision,
    Watches,
    contains,
    number_of,
)

from .refusals import Refusals

_HELD: Final = 10.0
"""Seconds after which a query that waits for a change is asked anew: so an agent that froze is noticed."""

_REFUTED: Final = ("index is stale", "failed index check", "failed to check index")
"""What Consul says of a condition that does not hold."""


class Keys:
    """The keys of one run, as one process reaches them: a `rdzv_transport.polls.Polled`.

    Args:
        client: By which Consul is reached.
        refusals: What answers other than results mean to `client`.
        root: What stands before each of them, such as ``rdzv/job-7/``.
        namespace: Of Consul Enterprise.
        datacenter: Whose keys; None: the agent's own.
    """

    def __init__(
        self, client: Client, refusals: Refusals, root: str, namespace: str | None, datacenter: str | None
    ) -> None:
        self.client = client
        self._refusals = refusals
        self._root = root
        self._common = {"Namespace": namespace} if namespace else {}
        self._everywhere = {"dc": datacenter} if datacenter else {}
        self._may_read = False
        self._watches = Watches(partial(PollWatch, self))

    def read(self, key: str, timeout: float) -> Entry | None:
        """Read one key."""

        def find(reply: Reply) -> Entry | None:
            found = self._entries(reply).get(key)
            self._may_read = True
            return found

        return self.client.call(self._query(key), timeout, find)

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        """Read every key at or under `prefix`."""
        deadline = time.monotonic() + timeout
        snapshot = self.client.call(self._query(prefix, {"recurse": ""}), timeout, self._lister(prefix))
        if not snapshot.entries and not self._may_read:
            # From a list Consul leaves out what we may not read, without a word; asked for one key it says so.
            self.read(prefix, _left(deadline))
        return snapshot

    def open_reading(self, prefix: str, timeout: float) -> Poll[Snapshot] | None:
        """The same as a poll. None: until we are known to be allowed to read, only a call tells an empty state."""
        reading = self._query(prefix, {"recurse": ""})
        return self.client.open_poll(reading, 0.0, timeout, self._lister(prefix)) if self._may_read else None

    def open_poll(self, prefix: str, since: Snapshot, timeout: float) -> Poll[Snapshot]:
        """Ask what Consul answers when there is something new: the whole state under the prefix, so that none is missed
        for good."""
        query = {"recurse": "", "index": str(since.revision.index), "wait": f"{_HELD:.0f}s"}
        # Consul adds up to a sixteenth to the time, so that not all come back at once.
        return self.client.open_poll(self._query(prefix, query), _HELD * 17 / 16, timeout, self._lister(prefix))

    def put(self, key: str, value: bytes, timeout: float, index: int | None) -> PutResult:
        """Write one key.

        Args:
            key: Which.
            value: What.
            timeout: Seconds.
            index: Its ModifyIndex must be this; 0: it must not exist; None: whatever is there.
        """
        operation = self._write(key, value, index)

        def judge(reply: Reply) -> PutResult:
            results = self._results(reply)
            if results is None:
                return PutResult(PutOutcome.CONFLICT)
            written = results[0]["KV"]
            return PutResult(PutOutcome.APPLIED, _entry_of(value, written))

        deadline = time.monotonic() + timeout
        while True:
            try:
                put = self.client.call(self._transaction([operation], repeatable=False), _left(deadline), judge)
            except ReplyLostError:
                return PutResult(PutOutcome.UNKNOWN)
            if put.outcome is PutOutcome.APPLIED:
                return put
            there = self.read(key, _left(deadline))
            # The key existed when Consul checked the condition, and was deleted since; with the index 0: try again.
            if there is not None or index != 0:
                return PutResult(PutOutcome.CONFLICT, there)

    def delete_version(self, key: str, index: int, timeout: float) -> PutOutcome:
        """Remove one key if this is its ModifyIndex."""
        # Of one that is not there, `delete-cas` says that it was deleted.
        operations = [{"Verb": verb, "Key": self._root + key, "Index": index} for verb in ("check-index", "delete")]
        return self._transact(operations, timeout)

    def create_all(self, values: Mapping[str, bytes], timeout: float) -> PutOutcome:
        """Write keys that must not exist."""
        return self._transact([self._write(key, value, 0) for key, value in values.items()], timeout)

    def _write(self, key: str, value: bytes, index: int | None) -> dict[str, Any]:
        """The operation that writes a key; see `put`."""
        return {
            "Verb": "set" if index is None else "cas",
            "Key": self._root + key,
            "Value": binascii.b2a_base64(value, newline=False).decode("ascii"),
            # Consul takes what equals the old value for no change. With this, no two writes are equal.
            "Flags": secrets.randbits(64),
        } | ({} if index is None else {"Index": index})

    def _transact(self, operations: Sequence[Mapping[str, Any]], timeout: float) -> PutOutcome:
        """Do several things at once on their conditions."""

        def judge(reply: Reply) -> PutOutcome:
            return PutOutcome.CONFLICT if self._results(reply) is None else PutOutcome.APPLIED

        try:
            return self.client.call(self._transaction(operations, repeatable=False), timeout, judge)
        except ReplyLostError:
            return PutOutcome.UNKNOWN

    def delete(self, prefix: str, timeout: float) -> None:
        """Remove every key at or under `prefix`, in one step."""
        key = self._root + prefix
        both = [{"Verb": "delete", "Key": key}, {"Verb": "delete-tree", "Key": f"{key}/"}]
        self.client.call(self._transaction(both), timeout, self._results)

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """Wait for a change: one call to Consul for each, and one in ten seconds without any."""
        return self._watches.wait(prefix, since, timeout)

    def close(self) -> None:
        """End every connection."""
        self.client.close()
        self._watches.close()

    def leader(self, timeout: float) -> str:
        """The address of Consul's leader; empty if there is none now."""
        return self.client.call(Request("GET", self._target("status/leader")), timeout, _text)

    def _lister(self, prefix: str) -> Callable[[Reply], Snapshot]:
        """Makes a snapshot of the answer to what is asked now."""
        asked = time.monotonic()

        def select(reply: Reply) -> Snapshot:
            entries = {key: entry for key, entry in self._entries(reply).items() if contains(prefix, key)}
            index = max(1, number_of(reply.headers["x-consul-index"]))
            return Snapshot(entries, Revision(index, asked, time.monotonic()))

        return select

    def _query(self, key: str, query: Mapping[str, str] | None = None) -> Request:
        return Request("GET", self._target(f"kv/{quote(self._root + key)}", {"consistent": "", **(query or {})}))

    def _transaction(self, operations: Sequence[Mapping[str, Any]], *, repeatable: bool = True) -> Request:
        body = json.dumps([{"KV": {**operation, **self._common}} for operation in operations])
        return Request("PUT", self._target("txn"), body=body.encode(), repeatable=repeatable)

    def _target(self, path: str, query: Mapping[str, str] | None = None) -> str:
        return f"/v1/{path}?{urlencode({**(query or {}), **self._everywhere})}"

    def _entries(self, reply: Reply) -> dict[str, Entry]:
        """What Consul sent, by key. Only Consul sends an index."""
        number_of(reply.headers["x-consul-index"])
        items = json.loads(reply.body) if reply.status == 200 else []
        entries = {str(item["Key"]).removeprefix(self._root): _entry(item) for item in items}
        self._may_read = self._may_read or bool(entries)
        return entries

    def _results(self, reply: Reply) -> list[Any] | None:
        """What the operations of a transaction gave; None if a condition did not hold."""
        answer = json.loads(reply.body)
        if reply.status == 200:
            return list(answer["Results"])
        for reason in [str(error["What"]) for error in answer["Errors"]]:
            if "Permission denied" in reason:
                raise self._refusals.denied(reason)
            if not any(refuted in reason for refuted in _REFUTED):
                raise ValueError(reason)
        return None


def _left(deadline: float) -> float:
    return deadline - time.monotonic()


def _text(reply: Reply) -> str:
    return str(json.loads(reply.body))


def _entry(item: Mapping[str, Any]) -> Entry:
    # An empty value is sent as null.
    return _entry_of(binascii.a2b_base64(item["Value"] or ""), item)


def _entry_of(value: bytes, item: Mapping[str, Any]) -> Entry:
    return Entry(value, number_of(item["ModifyIndex"]), number_of(item["CreateIndex"]))
