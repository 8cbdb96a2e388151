"""Slurm's compressed lists of hosts, as ``n[001-003,7],gpu-[1-2]-ib``: containers often have no ``scontrol``."""

import itertools
import math
import re
from collections.abc import Iterator
from typing import Final

_BRACKETS: Final = re.compile(r"\[([^][]*)\]")
_HOST: Final = re.compile(r"(?:[^][,\s]|\[[^][\s]*\])+")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

MOST_HOSTS: Final = 65_536
"""So many hosts a list may have, as for Slurm: a larger number is a mistake."""


def expand(text: str) -> tuple[str, ...]:
    """The hosts of such a list, in its order.

    Raises:
        ValueError: It is none, or names too many.
    """
    hosts: list[str] = []
    for item in _items(text.strip()):
        # Every second part stood in brackets.
        parts = [_numbers(part) if place % 2 else [part] for place, part in enumerate(_BRACKETS.split(item))]
        if len(hosts) + math.prod(map(len, parts)) > MOST_HOSTS:
            raise ValueError(f"more than {MOST_HOSTS} hosts")
        hosts += map("".join, itertools.product(*parts))
    return tuple(hosts)


def _items(text: str) -> Iterator[str]:
    """What stands between the commas outside of brackets."""
    position = 0
    while (found := _HOST.match(text, position)) and (found.end() == len(text) or text[found.end()] == ","):
        yield found[0]
        if (position := found.end() + 1) > len(text):
            return
    raise ValueError("no list of hosts")


def _numbers(ranges: str) -> list[str]:
    """The numbers of ``001-003,7``, each as wide as the first of its range is written."""
    numbers: list[str] = []
    for each in ranges.split(","):
        if not (found := _RANGE.fullmatch(each)) or int(found[2] or found[1]) - int(found[1]) not in range(MOST_HOSTS):
            raise ValueError(f"no range of at most {MOST_HOSTS} numbers in brackets")
        numbers += (str(number).zfill(len(found[1])) for number in range(int(found[1]), int(found[2] or found[1]) + 1))
    return numbers
