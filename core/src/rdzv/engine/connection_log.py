"""Logs that the service does not answer, and that it answers again: once each."""

import logging
import time
from typing import Final

__all__ = ["Outage"]

logger = logging.getLogger(__name__)

_PATIENCE: Final = 5.0
"""Seconds of silence that are worth a line: a server that restarts takes less."""


class Outage:
    """The silence of one run's service, as far as one node hears it."""

    def __init__(self, run: str, backend: str) -> None:
        """Of `run`, as messages show it, on `backend`."""
        self._name = f"The service of the rendezvous '{run}' on backend '{backend}'"
        self._since: float | None = None
        self._told = False

    def on_connection_error(self, error: Exception) -> None:
        """Note that a call has failed."""
        if self._since is None:
            self._since = time.monotonic()
        seconds = time.monotonic() - self._since
        if seconds >= _PATIENCE and not self._told:
            self._told = True
            logger.warning(
                "%s has answered no call with success for %.0f s, and is asked again and again: %s",
                self._name,
                seconds,
                error,
            )

    def on_contact(self) -> None:
        """Note that a call has succeeded."""
        if self._told and self._since is not None:
            logger.warning("%s answers again, after %.0f s.", self._name, time.monotonic() - self._since)
        self._since, self._told = None, False
