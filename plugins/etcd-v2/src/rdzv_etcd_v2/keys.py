"""etcd's keys and values: what its v2 API is asked, and what its JSON means."""

import binascii
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

from rdzv_core.backend import ANY, Entry, Expect, PutOutcome, PutResult, Snapshot, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError, RendezvousStateError
from rdzv_transport import ChangeWatches, Client, EndpointError, Reply, ReplyLostError, Request, number_of

from .events import Events
from .tree import Tree, files

HEADERS: Final = {"Content-Type": "application/x-www-form-urlencoded"}

# Of etcd's Documentation/v2/errorcode.md.
_NOT_FOUND: Final = 100
_COMPARE_FAILED: Final = 101
_NOT_A_FILE: Final = 102
_NOT_A_DIRECTORY: Final = 104
_EXISTS: Final = 105
_NOT_EMPTY: Final = 108

_MOST: Final = 0.75
"""A key that has more of its time to live left than this part need not be kept alive yet."""


class Keys:
    """The keys of one run, as one process reaches them: a `rdzv_transport.changes.Source`.

    Args:
        client: By which etcd is reached.
        root: The run's directory, such as ``/rdzv/job-7``.
        ttl: Seconds, whole ones, after which etcd removes a key that is neither written nor kept alive; None: never.
    """

    def __init__(self, client: Client, root: str, ttl: int | None) -> None:
        self.client = client
        """By which etcd is reached."""
        self.newest = 0
        """The newest index of all that was read."""
        self._tree = Tree(root)
        self._ttl = {} if ttl is None else {"ttl": str(ttl)}
        self._kept = time.monotonic()
        self._keeping = threading.Lock()
        self._watches = ChangeWatches(self)

    def read(self, key: str, timeout: float) -> Entry | None:
        """Read one key."""

        def find(reply: Reply) -> Entry | None:
            answer = _answer(reply, _NOT_FOUND)
            return None if "errorCode" in answer else _entry(answer["node"])

        return self.client.call(Request("GET", f"{self._tree.file(key)}?quorum=true"), timeout, find)

    def read_all(self, prefix: str, timeout: float) -> Snapshot:
        """Read every key at or under `prefix`."""

        def select(reply: Reply) -> Snapshot:
            answer = _answer(reply, _NOT_FOUND)
            index = number_of(reply.headers["x-etcd-index"])
            found = {} if "errorCode" in answer else self._entries(answer["node"])
            self.newest = max(self.newest, index)
            return Snapshot(found, index)

        request = Request("GET", f"{self._tree.directory(prefix)}?recursive=true&quorum=true")
        return self.client.call(request, timeout, select)

    def changes(self, prefix: str, known: int, timeout: float) -> Events:
        """Ask for what happens at or under `prefix`."""
        return Events(self.client, self._tree, prefix, known, timeout, _answer, _entry)

    def put(self, key: str, value: bytes, expect: Token | Expect, timeout: float) -> PutResult:
        """Write one key; see `KeyValueBackend.put`."""
        deadline = time.monotonic() + timeout
        if not isinstance(expect, Expect):
            put = self._put(key, value, {"prevIndex": str(expect)}, timeout)
            lost = put.outcome is PutOutcome.CONFLICT
            return replace(put, entry=self.read(key, deadline - time.monotonic())) if lost else put
        while (remaining := deadline - time.monotonic()) > 0:
            put = self._put(key, value, {"prevExist": "false"}, remaining)
            if put.outcome is PutOutcome.CONFLICT and expect is ANY:
                # Overwriting keeps the order only if it is asked for as such.
                put = self._put(key, value, {"prevExist": "true"}, deadline - time.monotonic())
            elif put.outcome is PutOutcome.CONFLICT:
                put = replace(put, entry=self.read(key, deadline - time.monotonic()))
            # What was there may have been removed meanwhile; then the condition holds now.
            if put.outcome is not PutOutcome.CONFLICT or put.entry is not None:
                return put
        raise RendezvousConnectionError(f"Others created and removed '{key}' for {timeout:.1f} s. Try again.")

    def delete_version(self, key: str, index: int, timeout: float) -> PutOutcome:
        """Remove one key if this is its modifiedIndex."""

        def judge(reply: Reply) -> PutOutcome:
            answer = _answer(reply, _NOT_FOUND, _COMPARE_FAILED)
            return PutOutcome.CONFLICT if "errorCode" in answer else PutOutcome.APPLIED

        request = Request("DELETE", f"{self._tree.file(key)}?prevIndex={index}", repeatable=False)
        try:
            return self.client.call(request, timeout, judge)
        except ReplyLostError:
            return PutOutcome.UNKNOWN

    def delete(self, prefix: str, timeout: float) -> None:
        """Remove every key at or under `prefix`, and the directories that are empty then."""
        deadline = time.monotonic() + timeout
        self._delete(f"{self._tree.directory(prefix)}?recursive=true", timeout)
        for directory in self._tree.above(prefix):
            if not self._delete(f"{directory}?dir=true", deadline - time.monotonic()):
                break

    def wait(self, prefix: str, since: Snapshot, timeout: float) -> Snapshot:
        """Wait for a change. The first wait for a prefix costs a call, or two, and so do ten seconds without a change;
        others cost none."""
        return self._watches.wait(prefix, since, timeout)

    def close(self) -> None:
        """End every connection."""
        self.client.close()
        self._watches.close()

    def keep_alive(self, timeout: float) -> None:
        """If they have a time to live, and it is time: give every key of the run its own anew.

        Not those that have most of it left: others do the same.
        """
        deadline = time.monotonic() + timeout
        ttl = int(self._ttl.get("ttl", 0))
        if not self._must_be_kept(ttl):
            return

        def fading(reply: Reply) -> list[str]:
            listed = files(_answer(reply, _NOT_FOUND).get("node", {"dir": True}))
            return [file["key"] for file in listed if file.get("ttl", ttl) < ttl * _MOST]

        listing = Request("GET", f"{self._tree.everything()}?recursive=true&quorum=true")
        # Without a value, and without waking a waiter.
        body = urlencode({"refresh": "true", "prevExist": "true", **self._ttl}).encode()
        for path in self.client.call(listing, timeout, fading):
            request = Request("PUT", self._tree.url(path), body)
            self.client.call(request, deadline - time.monotonic(), lambda reply: _answer(reply, _NOT_FOUND))

    def _must_be_kept(self, ttl: int) -> bool:
        """Whether it is time to keep the run's keys alive; says so to one thread only."""
        with self._keeping:
            now = time.monotonic()
            if not ttl or now - self._kept < ttl / 4:
                return False
            self._kept = now
            return True

    def _put(self, key: str, value: bytes, condition: Mapping[str, str], timeout: float) -> PutResult:
        text = binascii.b2a_base64(value, newline=False).decode("ascii")
        body = urlencode({"value": text, **condition, **self._ttl}).encode()

        def judge(reply: Reply) -> PutResult:
            answer = _answer(reply, _NOT_FOUND, _COMPARE_FAILED, _EXISTS)
            if "errorCode" in answer:
                return PutResult(PutOutcome.CONFLICT)
            return PutResult(PutOutcome.APPLIED, _entry(answer["node"]))

        request = Request("PUT", self._tree.file(key), body, repeatable=False)
        try:
            return self.client.call(request, timeout, judge)
        except ReplyLostError:
            return PutResult(PutOutcome.UNKNOWN)

    def _delete(self, target: str, timeout: float) -> bool:
        """Whether it is gone: it may hold something, too."""

        def judge(reply: Reply) -> bool:
            return bool(_answer(reply, _NOT_FOUND, _NOT_EMPTY).get("errorCode") != _NOT_EMPTY)

        return self.client.call(Request("DELETE", target), timeout, judge)

    def _entries(self, node: Mapping[str, Any]) -> dict[str, Entry]:
        named = ((self._tree.name(file["key"]), file) for file in files(node))
        return {name: _entry(file) for name, file in named if name is not None}


def check(reply: Reply, user: str | None, root: str) -> None:
    """Raise what an answer other than a result means; `user` asked about the keys under `root`."""
    if reply.status == 401:
        who = "a client without a user" if user is None else f"the user '{user}'"
        keys = f"{root.rpartition('/')[0]}/*"
        raise RendezvousDeniedError(
            f"etcd refused {who}: {_message(reply)}. Check the options user and password, and that the user's role "
            f"may read and write {keys} (ETCDCTL_API=2 etcdctl role grant ROLE -path '{keys}' -readwrite)."
        )
    if reply.status == 404 and reply.body.startswith(b"404 page not found"):
        raise EndpointError(
            f"it does not serve etcd's v2 API (it answered 404, {reply.text!r}): etcd 3.6 and newer have none, "
            "older ones need --enable-v2=true. Use the backend etcd-v3 instead (package rdzv-etcd-v3)",
            applied=False,
            denied=True,
        )
    if reply.status in (408, 429) or reply.status >= 500:
        raise EndpointError(f"it answered {reply.status}, {_message(reply)}", applied=True)


def _answer(reply: Reply, *expected: int) -> dict[str, Any]:
    """The JSON object that etcd answered: a result, or an error of one of the `expected` codes."""
    answer: dict[str, Any] = json.loads(reply.body)
    if "errorCode" in answer and answer["errorCode"] not in expected:
        _check_kind(answer)
        raise ValueError(answer["message"])
    if "errorCode" not in answer and "node" not in answer:
        raise ValueError("neither a node nor an error")
    return answer


def _check_kind(answer: Mapping[str, Any]) -> None:
    """Raise if it says that something else stands where a run's keys do.

    Raises:
        RendezvousStateError: It does.
    """
    if answer["errorCode"] == _NOT_A_DIRECTORY:
        path = answer["cause"]
        raise RendezvousStateError(
            f"etcd has a plain key at '{path}', where the run's directory is wanted and no directory can be. PyTorch's "
            f"own backends write such keys. Remove it (ETCDCTL_API=2 etcdctl rm {path}), or choose another prefix."
        )
    if answer["errorCode"] == _NOT_A_FILE:
        raise _directory(answer["cause"])


def _directory(path: str) -> RendezvousStateError:
    return RendezvousStateError(
        f"'{path}' is a directory, where the value of a key is wanted; rdzv has not made it. Remove it "
        f"(ETCDCTL_API=2 etcdctl rm --recursive {path})."
    )


def _message(reply: Reply) -> str:
    try:
        answer = json.loads(reply.body)
        return f"{answer['message']} {answer.get('cause', '')}".strip()
    except (ValueError, TypeError, KeyError, RecursionError):
        return repr(reply.text)


def _entry(node: Mapping[str, Any]) -> Entry:
    if node.get("dir"):
        raise _directory(node["key"])
    try:
        value = binascii.a2b_base64(node["value"], strict_mode=True)
    except ValueError:
        # It is no base64, or not even ASCII: another program wrote it. Reading it raises the error.
        value = node["value"].encode()
    return Entry(value, number_of(node["modifiedIndex"]), number_of(node["createdIndex"]))
