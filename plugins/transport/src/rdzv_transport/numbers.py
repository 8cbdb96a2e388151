"""Numbers that a service sends: each is bounded before it is believed, since it is counted on from, and sent again."""

from typing import Any, Final

from rdzv_core.text import shown

_MOST: Final = 2**64
"""No service counts so far. Python writes no number of thousands of digits, and no float is so large."""


def number_of(value: Any) -> int:
    """A number from 0 on: an index, a revision, a time to live.

    Args:
        value: As JSON or a header has it.

    Raises:
        ValueError: It is none, or larger than any service's. (Or a TypeError or an OverflowError, likewise.)
    """
    if not 0 <= (number := int(value)) < _MOST:
        raise ValueError(f"{shown(value)} is no number of a service")
    return number
