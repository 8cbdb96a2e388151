"""What the commands take as numbers: types for argparse, whose errors name the value, the limit and the way out."""

import argparse
from collections.abc import Callable
from typing import Final

__all__ = ["at_least", "seconds"]

_LONGEST: Final = 86400.0


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is not smaller."""

    def number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} is refused: give a whole number of at least {least}")
        return value

    return number


def seconds(text: str) -> float:
    """A number of seconds: more than 0, and at most a day."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is refused: give seconds, more than 0 and at most {_LONGEST:g}")
    return value
