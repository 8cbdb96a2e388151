"""What happens to the nodes of a run, in lines: of what happens to many at once there is one, not one for each node."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from rdzv.hooks import Event, EventKind
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.text import listed
from rdzv_core.threads import start_thread

_GATHER: Final = 0.5
"""Seconds from an event to its line, in which others of its kind join it: those that one signal asks do."""

_NAMED: Final = 3
"""Nodes that a line names; of more it gives the number."""


class News:
    """Gathers events, and says them soon: those of one kind and round in one line."""

    def __init__(self, say: Callable[[EventKind, str], None]) -> None:
        """Have heard of none.

        Args:
            say: Takes each line, on any thread, with the kind of the events in it.
        """
        self._say = say
        self._lock = threading.Lock()
        self._heard: list[Event] = []
        self._told = threading.Event()

    def add(self, event: Event) -> None:
        """Have an event said with those that follow it; returns at once."""
        with self._lock:
            self._heard.append(event)
            if len(self._heard) > 1:
                return
            told = self._told = threading.Event()
        try:
            start_thread(self._tell_soon, told, name="rdzv-news")
        except RendezvousConnectionError:
            self.tell()

    def tell(self) -> None:
        """Say what was heard so far."""
        with self._lock:
            heard, self._heard = self._heard, []
            self._told.set()
        alike: dict[tuple[EventKind, int], list[Event]] = {}
        for event in heard:
            alike.setdefault((event.kind, event.round), []).append(event)
        for (kind, _), events in alike.items():
            self._say(kind, in_words(events))

    def _tell_soon(self, told: threading.Event) -> None:
        if not told.wait(_GATHER):
            self.tell()


def in_words(events: Sequence[Event]) -> str:
    """One line for some events of one kind and round."""
    nodes, causes = dict.fromkeys(event.node for event in events), dict.fromkeys(event.cause for event in events)
    who, why = listed([*nodes], most=_NAMED), next(iter(causes))
    if len(nodes) > 1:
        who = f"{len(nodes)} nodes: {who}"
    if len(causes) > 1:
        why += f" (the first of {len(causes)} causes)"
    # Before the first world there is no round.
    where = f" (round {events[0].round})" if events[0].round else ""
    return f"{events[0].kind.value}: {who}{where}: {why}"
