"""Counting the calls of methods."""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

from . import TALLY

__all__ = ["count_calls", "count_store_calls"]

_STORE = ("set", "get", "add", "compare_set", "check", "wait", "delete_key", "num_keys", "append")
_STORE_EXTENDED = ("multi_get", "multi_set", "list_keys", "queue_push", "queue_pop", "queue_len")


def count_calls(owner: type, names: Iterable[str]) -> None:
    """Count every call of these methods of a class as a call to the service."""
    for name in names:
        setattr(owner, name, _counted(getattr(owner, name)))


def count_store_calls(store: type) -> None:
    """Count the calls of torch's stores: each is one request to the server (``clone``, a connection, is none).

    Args:
        store: ``torch.distributed.Store``, whose methods all stores share; a PrefixStore's call is one call.
    """
    count_calls(store, (name for name in (*_STORE, *_STORE_EXTENDED) if hasattr(store, name)))


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def counted(*arguments: Any, **named: Any) -> Any:
        answer = method(*arguments, **named)
        TALLY.call()
        return answer

    return counted
