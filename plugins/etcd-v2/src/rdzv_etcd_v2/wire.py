"""What the answers of etcd's v2 API mean: JSON objects, values, errors."""

import binascii
import json
from collections.abc import Mapping
from typing import Any, Final

from rdzv_core.backend import Entry
from rdzv_core.errors import RendezvousDeniedError, RendezvousStateError
from rdzv_transport import EndpointError, Reply, number_of

HEADERS: Final = {"Content-Type": "application/x-www-form-urlencoded"}

# Of etcd's Documentation/v2/errorcode.md.
NOT_FOUND: Final = 100
COMPARE_FAILED: Final = 101
_NOT_A_FILE: Final = 102
_NOT_A_DIRECTORY: Final = 104
EXISTS: Final = 105
NOT_EMPTY: Final = 108
FORGOTTEN: Final = 401
"""It does not know any more what happened since that index."""


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


def read_answer(reply: Reply, *expected: int) -> dict[str, Any]:
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


def read_entry(node: Mapping[str, Any]) -> Entry:
    if node.get("dir"):
        raise _directory(node["key"])
    try:
        value = binascii.a2b_base64(node["value"], strict_mode=True)
    except ValueError:
        # It is no base64, or not even ASCII: another program wrote it. Reading it raises the error.
        value = node["value"].encode()
    return Entry(value, number_of(node["modifiedIndex"]), number_of(node["createdIndex"]))
