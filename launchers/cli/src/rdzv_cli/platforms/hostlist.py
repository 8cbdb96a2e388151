"""Slurm's compressed lists of hosts, as ``n[001-003,7],gpu-[1-2]-ib``: containers often have no ``scontrol``."""

import itertools
import math
import re
from typing import Final

_HOST: Final = r"(?:[^][,\s]|\[[^][\s]*\])+"
_HOSTS: Final = re.compile(f"{_HOST}(?:,{_HOST})*")
_BRACKETS: Final = re.compile(r"\[([^][]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")

MOST_HOSTS: Final = 65_536
"""So many hosts a list may have, as for Slurm: a larger number is a mistake."""


def expand(text: str) -> tuple[str, ...]:
    """The hosts of such a list, in its order.

    Raises:
        ValueError: It is none, or names too many.
    """
    if not _HOSTS.fullmatch(text.strip()):
        raise ValueError("no list of hosts")
    hosts: list[str] = []
    for item in re.findall(_HOST, text):
        # Every second part stood in brackets.
        parts = [_numbers(part) if place % 2 else [part] for place, part in enumerate(_BRACKETS.split(item))]
        if len(hosts) + math.prod(map(len, parts)) > MOST_HOSTS:
            raise ValueError(f"more than {MOST_HOSTS} hosts")
        hosts += map("".join, itertools.product(*parts))
    return tuple(hosts)


def _numbers(ranges: str) -> list[str]:
    """The numbers of ``001-003,7``, each as wide as the first of its range is written."""
    numbers: list[str] = []
    for each in ranges.split(","):
        if not (found := _RANGE.fullmatch(each)):
            raise ValueError("no range of numbers in brackets, such as 001-003")
        first, last = int(found[1]), int(found[2] or found[1])
        if not 0 <= last - first < MOST_HOSTS - len(numbers):
            raise ValueError(f"no range of numbers, or one of more than {MOST_HOSTS} hosts")
        numbers += (str(number).zfill(len(found[1])) for number in range(first, last + 1))
    return numbers
