"""Numbers for things, in the order in which they are seen."""

from typing import Generic, TypeVar

__all__ = ["Numbering"]

_T = TypeVar("_T")


class Numbering(Generic[_T]):
    """Numbers for equal things, and the things by their numbers."""

    def __init__(self, *first: _T) -> None:
        """Begin with some."""
        self._things: list[_T] = []
        self._numbers: dict[_T, int] = {}
        for thing in first:
            self.number(thing)

    def number(self, thing: _T) -> int:
        """The number of a thing."""
        number = self._numbers.setdefault(thing, len(self._things))
        if number == len(self._things):
            self._things.append(thing)
        return number

    def __getitem__(self, number: int) -> _T:
        return self._things[number]
