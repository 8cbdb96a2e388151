"""What the nodes log: of each kind of message the first few, since thousands say the same."""

import logging
from collections import Counter
from typing import Final

__all__ = ["show_first_few"]

_FEW: Final = 3


class _FirstFew(logging.Filter):
    """Lets the first few of each kind of message pass."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        self._seen[record.msg] += 1
        if self._seen[record.msg] == _FEW:
            record.msg += " (more of this kind are not shown)"
        return self._seen[record.msg] <= _FEW


def show_first_few() -> None:
    """Show the first warnings of each kind on stderr, and leave out the rest."""
    handler = logging.StreamHandler()
    handler.addFilter(_FirstFew())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="  %(message)s")
