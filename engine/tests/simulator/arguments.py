"""What the commands of this package take as arguments."""

import argparse
import math

__all__ = ["positive"]


def positive(text: str) -> float:
    """A finite number above zero, for argparse."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number
