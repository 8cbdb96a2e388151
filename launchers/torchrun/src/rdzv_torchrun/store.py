"""rdzv's store as torch's: a ``torch.distributed.Store`` over any service."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar

import rdzv
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from .errors import as_store_errors
from .signals import ended_by_signals

_T = TypeVar("_T")

_LOOK: Final = timedelta(seconds=1)
"""How often a wait that may be given up asks whether it is."""

_QueueEmptyError: Final = getattr(dist, "QueueEmptyError", dist.DistStoreError)
"""Newer than torch 2.6."""


class TorchStore(Store):
    """A store of rdzv, for everything in torch that takes one: ``PrefixStore``, ``init_process_group`` and so on.

    Errors are torch's: ``DistStoreError`` when time is up (with the word *timeout*), ``DistNetworkError`` when
    the service cannot be reached. Any number of threads may share it.

    Keep a reference for as long as torch uses the store: torch holds only the part of it that is
    written in C++. A ``PrefixStore`` over it has no queues and no ``list_keys``, since torch knows
    neither in a store that is written in Python.
    """

    def __init__(self, store: rdzv.Store, given_up: Callable[[], str | None] | None = None) -> None:
        """Offer `store` to torch, with the same timeout.

        Args:
            store: Where the keys are.
            given_up: Tells why those who wait for a key need not do so any longer; None while they must.
        """
        super().__init__()
        self._store = store
        self._given_up = given_up
        self._clones: list[TorchStore] = []
        self.set_timeout(store.timeout)

    @property
    def timeout(self) -> timedelta:
        """How long whatever waits does so at most."""
        # torch keeps it in C++, where a PrefixStore over this object sets it, too.
        held: timedelta = super().timeout  # type: ignore[misc]
        return held

    def clone(self) -> "TorchStore":
        """An independent object for the same store, which lives as long as this one."""
        clone = TorchStore(self._call(lambda store: store.clone()), self._given_up)
        clone.set_timeout(self.timeout)
        self._clones.append(clone)
        return clone

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value, whatever was there."""
        self._call(lambda store: store.set(key, value))

    def get(self, key: str) -> bytes:
        """The value of a key; waits until it exists."""
        return self._wait_and(lambda store: store.get(key))

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Store a value for each key."""
        self._call(lambda store: store.multi_set(keys, values))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys; waits until all exist."""
        return self._wait_and(lambda store: store.multi_get(keys))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; returns the sum."""
        return self._call(lambda store: store.add(key, amount))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store `desired` if the key holds `expected`; returns what it holds now."""
        return self._call(lambda store: store.compare_set(key, expected, desired))

    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of a value."""
        self._call(lambda store: store.append(key, value))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys exist now."""
        return self._call(lambda store: store.check(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys exist, for `timeout` or (None) for the store's."""
        self._wait_and(lambda store: store.wait(keys), timeout)

    def delete_key(self, key: str) -> bool:
        """Remove a key; returns whether it existed."""
        return self._call(lambda store: store.delete_key(key))

    def num_keys(self) -> int:
        """How many keys there are."""
        return self._call(lambda store: store.num_keys())

    # torch's C++ asks for these two under their C++ names.
    deleteKey = delete_key
    getNumKeys = num_keys

    def list_keys(self) -> list[str]:
        """All keys."""
        return self._call(lambda store: store.list_keys())

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Put an item at the end of a queue."""
        self._call(lambda store: store.queue_push(key, value))

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first item out of a queue, waiting for one if `block`."""
        if block:
            return self._wait_and(lambda store: store.queue_pop(key))
        try:
            return self._call(lambda store: store.queue_pop(key, False))
        except dist.DistStoreError as error:
            if isinstance(error.__cause__, rdzv.RendezvousTimeoutError):
                raise _QueueEmptyError(str(error.__cause__)) from error.__cause__
            raise

    def queue_len(self, key: str) -> int:
        """How many items are in a queue."""
        return self._call(lambda store: store.queue_len(key))

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` callers have arrived at this barrier, which serves once."""
        if self.add(f"{key}/num_members", 1) >= world_size:
            self.set(f"{key}/last_member", "1")
        else:
            self.wait([f"{key}/last_member"], timeout)

    def has_extended_api(self) -> bool:
        """Whether `append`, `multi_get` and `multi_set` work."""
        return self._store.has_extended_api()

    def _call(self, call: Callable[[rdzv.Store], _T], timeout: timedelta | None = None) -> _T:
        """Call the store, as patient as `timeout` (None: this object's); its errors become torch's."""
        timeout = self.timeout if timeout is None else timeout
        with as_store_errors():
            store = self._store
            if timeout != store.timeout:
                # Another thread may be using that one.
                store = store.clone()
                store.set_timeout(timeout)
            return ended_by_signals(lambda: call(store))

    def _wait_and(self, call: Callable[[rdzv.Store], _T], timeout: timedelta | None = None) -> _T:
        """Make a call that waits for keys, and ask now and then whether to go on waiting."""
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            reason = None if self._given_up is None else self._given_up()
            left = timedelta(seconds=max(0.0, deadline - time.monotonic()))
            patience = left if self._given_up is None else timedelta(0) if reason else min(left, _LOOK)
            try:
                return self._call(call, patience)
            except dist.DistStoreError as error:
                # torch's own stores, over which some backend may have built, say no more than this.
                timed_out = error.__cause__ is None or isinstance(error.__cause__, rdzv.RendezvousTimeoutError)
                if self._given_up is None or not timed_out:
                    raise
                if reason or patience == left:
                    why = reason or f"timeout: {timeout.total_seconds():.1f} s are over."
                    raise dist.DistStoreError(f"{why} {error.__cause__ or error}") from error
