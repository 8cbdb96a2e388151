"""What the members of a round share: PyTorch's `Store`."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable

__all__ = ["Store"]


@runtime_checkable
class Store(Protocol):
    """What PyTorch 2.13's ``torch.distributed.Store`` can do, method for method; its own stores qualify.

    Keys are any text, the empty one too. Values are bytes; text is stored as UTF-8. A value has at most
    `MAX_PAYLOAD` bytes in rdzv's own store.

    Every method raises `RendezvousConnectionError` if the service could not be reached within the
    timeout, `RendezvousStateError` if what it holds was not written by rdzv, and TypeError for a key that is not
    text and a value that is neither text nor bytes. (PyTorch's stores raise their own errors.)

    Every method that writes, `set` too, raises `RendezvousTimeoutError` if others changed the same key
    before each of its attempts until the timeout was over: this change was not made then.
    """

    @property
    def timeout(self) -> timedelta:
        """How long `get`, `wait` and other methods that wait do so at most, and how long a write is tried."""

    def set_timeout(self, timeout: timedelta, /) -> None:
        """Change `timeout`, for this object alone."""

    def set(self, key: str, value: str | bytes, /) -> None:
        """Store a value, whatever was there."""

    def get(self, key: str, /) -> bytes:
        """The value of a key; waits until it exists.

        Raises:
            RendezvousTimeoutError: It did not exist in time.
        """

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes], /) -> None:
        """Store a value for each key, one after the other.

        Raises:
            RendezvousParameterError: There are more of one than of the other; nothing was stored.
        """

    def multi_get(self, keys: Sequence[str], /) -> list[bytes]:
        """The values of several keys; waits until all exist.

        Raises:
            RendezvousTimeoutError: They did not exist in time; the message names those that are missing.
        """

    def add(self, key: str, amount: int, /) -> int:
        """Add to a counter, which `get` reads as decimal text. An absent one counts from 0.

        Returns:
            The sum.

        Raises:
            RendezvousParameterError: The key holds something else than a number, or the sum does not
                fit into 64 bits.
        """

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes, /) -> bytes:
        """Store `desired` if the key holds `expected`. An absent key holds what is empty.

        Returns:
            What the key holds now; `expected` if it is absent and stays so.
        """

    def append(self, key: str, value: str | bytes, /) -> None:
        """Add to the end of a value. An absent one is empty."""

    def delete_key(self, key: str, /) -> bool:
        """Remove a key (not the queue of the same name).

        Returns:
            Whether it existed.
        """

    def check(self, keys: Sequence[str], /) -> bool:
        """Whether all keys exist now, as a value or as a queue that is not empty."""

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None, /) -> None:
        """Wait until all keys exist, as `check` has it.

        Args:
            keys: Which.
            timeout: How long; None: the store's.

        Raises:
            RendezvousTimeoutError: They did not exist in time; the message names those that are missing.
        """

    def num_keys(self) -> int:
        """How many keys there are. Queues do not count."""

    def list_keys(self) -> list[str]:
        """All keys, in no order that means anything. Queues are not among them."""

    def queue_push(self, key: str, value: str | bytes, /) -> None:
        """Put an item at the end of a queue. Queues and values of the same name are different things."""

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first item out of a queue. Each is taken by one caller at most: a call that fails while the service
        is away may have taken one.

        Args:
            key: The queue.
            block: Whether to wait for an item if there is none.

        Raises:
            RendezvousTimeoutError: There was none, in time or (without `block`) at all.
        """

    def queue_len(self, key: str, /) -> int:
        """How many items are in a queue."""

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Wait until `world_size` callers have arrived at the barrier `key`, which serves once.

        Args:
            key: A name for this barrier and no other.
            world_size: How many to wait for, this one included.
            timeout: How long; None: the store's.

        Raises:
            RendezvousTimeoutError: They did not arrive in time.
        """

    def clone(self) -> "Store":
        """An independent object for the same store."""

    def has_extended_api(self) -> bool:
        """Whether `append`, `multi_get` and `multi_set` work."""
