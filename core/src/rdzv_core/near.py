"""The nearest right name, for messages about a wrong one."""

import difflib
from collections.abc import Iterable
from typing import Final

__all__ = ["near_name"]

_NEAR: Final = 0.7
"""How much two names have in common, of 1, if one may be meant for the other: 'nosuch' is no 'consul' (0.5)."""


def near_name(name: str, known: Iterable[str]) -> str | None:
    """The name among `known` that `name` may have been meant for."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)), None)
