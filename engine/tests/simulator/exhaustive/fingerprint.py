"""What a node's memory is worth: two memories with one fingerprint have the same future.

All that a coroutine knows counts: its position, its variables, what its loops go over, and everything that these refer
to. Moments count by their distance from now, so that what happens again later is the same.
"""

import gc
import math
from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache, partial
from hashlib import blake2b
from types import BuiltinFunctionType, CellType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any, Final

from rdzv_core import Snapshot
from rdzv_core.envelope import Envelope

from rdzv.engine.client import VersionedValue
from rdzv.engine.records import LeaderRecord, NodeRecord, Page, RunStatus, State

__all__ = ["EPOCH", "FAR", "fingerprint"]

EPOCH: Final = 1e6
"""What the clocks show at the beginning: no duration is so long, so a number that is near is a moment."""

OLD: Final = 2.0
"""Seconds after which a moment is long ago: nothing in the engine asks for more, with the times to live of a search."""

FAR: Final = 20.0
"""Seconds from which on a moment never comes."""

TIMELESS: Final = frozenset({Snapshot, VersionedValue, Envelope, State, NodeRecord, LeaderRecord, RunStatus, Page})
"""Values in which no moment is: they are the same at any time."""

_PLAIN: Final = frozenset({bool, int, str, bytes})
_NAMED: Final = (ModuleType, type, BuiltinFunctionType)
_LOOPS: Final[tuple[Iterable[Any], ...]] = ([], (), {}, {}.values(), {}.items(), set(), range(0), "")
_ITERATORS: Final = tuple(type(iter(each)) for each in _LOOPS)


def fingerprint(now: float, skipped: dict[str, frozenset[str]], *roots: object) -> str:
    """The fingerprint of some objects and all that they refer to.

    Args:
        now: The moment on their clock.
        skipped: The attributes of a class, by its name, that say nothing of the future.
        roots: The objects.
    """
    walk = _Walk(now, skipped)
    for root in roots:
        walk.see(root)
    return ",".join(walk.found)


class _Walk:
    def __init__(self, now: float, skipped: dict[str, frozenset[str]]) -> None:
        self.found: list[str] = []
        self._now = now
        self._skipped = skipped
        self._known: dict[int, int] = {}
        # What is looked at must live as long as its number is known.
        self._kept: list[object] = []

    def see(self, one: Any) -> None:
        kind = type(one)
        if one is None or kind in _PLAIN:
            self.found.append(repr(one))
        elif kind is float:
            self.found.append(self._number(one))
        elif isinstance(one, tuple):
            self._all("(", one)
        elif kind in TIMELESS:
            self.found.append(_text(one))
        elif isinstance(one, (Enum, *_NAMED)):
            self.found.append(str(one))
        elif isinstance(one, (set, frozenset)):
            self._all("{", sorted(one, key=repr))
        elif isinstance(one, BaseException):
            self.found.append(kind.__name__)
        else:
            self._see_object(one, kind)

    def _number(self, number: float) -> str:
        if abs(number - EPOCH) > EPOCH / 2 or not math.isfinite(number):
            return f"{number:.6g}"
        distance = round(number - self._now, 4)
        return "old" if distance < -OLD else "far" if distance > FAR else f"{distance:+.4g}s"

    def _all(self, opens: str, members: Any) -> None:
        self.found.append(opens)
        for member in members:
            self.see(member)
        self.found.append(")")

    def _see_object(self, one: Any, kind: type) -> None:
        parameters = getattr(kind, "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            # Of two equal values it says nothing which one it is; of what changes it does.
            if (number := self._known.get(id(one))) is not None:
                self.found.append(f"#{number}")
                return
            self._known[id(one)] = len(self._known)
            self._kept.append(one)
        self.found.append(kind.__name__)
        self._all("<", self._parts(one))

    def _parts(self, one: Any) -> Iterator[Any]:
        match one:
            case range():
                yield from (one.start, one.stop, one.step)
            case dict():
                yield from one.keys()
                yield from one.values()
            case list():
                yield from one
            case GeneratorType():
                yield from _parts_of_generator(one, self._skipped["generator"])
            case FunctionType():
                yield one.__qualname__
                for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
                    if name not in self._skipped["function"]:
                        yield cell.cell_contents
            case MethodType():
                yield one.__func__.__qualname__
                yield one.__self__
            case CellType():
                yield one.cell_contents
            case partial():
                yield from (one.func, one.args, one.keywords)
            case _ if isinstance(one, _ITERATORS):
                yield one.__reduce__()
            case _:
                yield from self._attributes(one)

    def _attributes(self, one: Any) -> Iterator[Any]:
        kind: Any = type(one)
        skipped = self._skipped.get(kind.__name__, frozenset())
        if "*" in skipped:
            return
        for name in _slots(kind):
            if name not in skipped:
                yield getattr(one, name)
        for name, value in getattr(one, "__dict__", {}).items():
            if name not in skipped:
                yield name
                yield value


@cache
def _slots(kind: Any) -> tuple[str, ...]:
    """The names of the slots of a class.

    Raises:
        TypeError: It keeps what it knows where this does not look.
    """
    names = tuple(dict.fromkeys(name for each in kind.__mro__ for name in getattr(each, "__slots__", ())))
    if not names and kind.__dictoffset__ == 0:
        raise TypeError(f"nothing is known of the memory of a {kind}")
    return names


_texts: dict[int, tuple[object, str]] = {}


def _text(one: object) -> str:
    """What stands for a value without moments."""
    known = _texts.get(id(one))
    if known is None:
        if len(_texts) > 100_000:
            _texts.clear()
        # Kept with the object, whose number is its own as long as it lives.
        known = _texts[id(one)] = one, blake2b(repr(one).encode(), digest_size=8).hexdigest()
    return known[1]


def _parts_of_generator(one: Any, skipped: frozenset[str]) -> Iterator[Any]:
    yield one.__qualname__
    frame = one.gi_frame
    if frame is None:
        return
    yield frame.f_lasti
    # By name: the order is that in which they were looked at before.
    for name, value in sorted(frame.f_locals.items(), key=lambda item: item[0]):
        if name not in skipped:
            yield name
            yield value
    # What a loop goes over stands in no variable.
    yield from (each for each in gc.get_referents(one) if type(each) in _ITERATORS)
    yield one.gi_yieldfrom
