"""How the values of options are read, for argparse, and how signals are named."""

import argparse
import contextlib
import math
import re
import signal
from collections.abc import Callable
from typing import Final

from rdzv.settings import ROUNDS_KEPT
from rdzv_core.near import near_name
from rdzv_core.text import printable

MOST: Final = 999_999_999
"""The highest number that the command line takes."""

_MOST_SECONDS: Final = 1e9
"""The longest time that the command line takes: locks and sockets overflow somewhere above this."""

AUTO: Final = "auto"
"""The value of an option that a platform decides."""

_UNHANDLED: Final = (signal.SIGKILL, signal.SIGSTOP)
"""The signals that no program can handle."""

_MOST_EXIT_CODE: Final = 255
"""The highest exit code that a shell sees."""


def one_of(*names: str) -> Callable[[str], str]:
    """One of these; argparse compares with its choices only what a flag gives, and no variable."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"'{printable(text)}' is not one of {', '.join(names)}")
        return text

    return read


def seconds(text: str) -> float:
    """A number of seconds."""
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no number of seconds, such as 2.5") from error
    if not 0 <= number <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is not from 0 to {_MOST_SECONDS:.0f} seconds")
    return number


def some_seconds(text: str) -> float:
    """A number of seconds above zero."""
    if (number := seconds(text)) == 0:
        raise argparse.ArgumentTypeError(
            f"'{printable(text)}' is no time at all; give a number of seconds, such as 2.5"
        )
    return number


def drain_seconds(text: str) -> float | str:
    """The time of a drain, or `AUTO`, which the platform decides."""
    if text == AUTO:
        return AUTO
    try:
        return some_seconds(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {AUTO}") from error


def signal_number(text: str) -> int:
    """The number of a signal that a program can handle; it is given by its name."""
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    known = {signal_name(number): number for number in signal.valid_signals() - {*_UNHANDLED}}
    if name in known:
        return known[name]
    error = f"'{printable(text)}' is no signal that a program can handle"
    if name in map(signal_name, _UNHANDLED):
        raise argparse.ArgumentTypeError(f"{error}: the system ends or stops it then; give another, such as SIGUSR1")
    near = next((one for one, number in known.items() if text == str(number)), None) or near_name(name, known)
    raise argparse.ArgumentTypeError(f"{error}, such as SIGUSR1{f'; did you mean {near}?' if near else ''}")


def signal_name(number: int) -> str:
    """The name of a signal; that of a real-time one says which it is, as in ``SIGRTMIN+6``."""
    first = getattr(signal, "SIGRTMIN", math.inf)
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"SIGRTMIN+{number - first}" if number > first else str(number)


def count(text: str) -> int:
    """How often."""
    if not is_count(text):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no whole number from 0 to {MOST}")
    return int(text)


def rounds(text: str) -> int:
    """A number of rounds whose failures are kept."""
    if not is_count(text) or not 1 <= int(text) <= ROUNDS_KEPT:
        raise argparse.ArgumentTypeError(f"'{printable(text)}' is no number of rounds from 1 to {ROUNDS_KEPT}")
    return int(text)


def exit_codes(text: str) -> tuple[int, ...]:
    """Exit codes."""
    codes = [part.strip() for part in text.split(",")]
    if wrong := [code for code in codes if not is_count(code) or not 1 <= int(code) <= _MOST_EXIT_CODE]:
        raise argparse.ArgumentTypeError(
            f"'{printable(wrong[0])}' is no exit code from 1 to {_MOST_EXIT_CODE}; several stand as in 5,8"
        )
    return tuple(map(int, codes))


def is_count(text: str) -> bool:
    """Whether this is a number from 0 to `MOST` in digits; Python reads no number that has thousands of them."""
    return re.fullmatch(r"[0-9]{1,9}", text) is not None
