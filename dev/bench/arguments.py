"""What the commands take as numbers: a type for argparse, whose error names the value, the limit and the way out."""

import argparse
from collections.abc import Callable

__all__ = ["at_least"]


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
