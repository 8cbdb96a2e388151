"""What this process has seen of the nodes that keys stand under: guesses, which save round trips and never decide."""

from collections.abc import Iterable
from typing import Final

from rdzv_transport import contains

_MOST: Final = 64
"""How many are remembered: a run in which a process writes has a handful, and a folder for each world."""


class Folders:
    """See above. Any thread may ask and tell."""

    def __init__(self) -> None:
        self._there: dict[str, None] = {}
        self._saw_none = False

    def saw(self, paths: Iterable[str]) -> None:
        """They are there."""
        there = {**self._there, **dict.fromkeys(paths)}
        self._there = dict.fromkeys(list(there)[-_MOST:])

    def saw_none(self) -> None:
        """Something was read that is not there: the run may have just begun."""
        self._saw_none = True

    def may_lack(self, path: str) -> bool:
        """Whether it is likelier that the node is missing than not."""
        return self._saw_none and path not in self._there

    def under(self, path: str) -> list[str]:
        """Those that are known under a node."""
        return [folder for folder in self._there if folder != path and contains(path, folder)]
