"""Which keys of a store are removed for good, and which leave a tombstone.

A key that is gone has no past, so a first write of it, under the condition that there is none, could bring it back:
one that hangs somewhere, or is sent again because its reply was lost. (Any later write comes after a version, and no
version comes back.) So a process removes a version of a key for good only if no such request can be left:

* it has made the key, and all versions since: one that another process writes is another version;
* each of these writes was answered at its first attempt, so that none is sent again;
* a process that has tried to make the key meanwhile, and lost the reply, ends no sooner than a version of its own, or
  a tombstone, stands there. Where it finds the version of another it writes that once more.

A write that has ended in an error may be applied at any later time, whether the key was removed or never was.
"""

import os
import time
from contextlib import suppress
from typing import Final

from rdzv_core.backend import PutOutcome, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousUnsupportedError

from .client import ATTEMPT, RetryingClient, VersionedValue

KNOWN: Final = 10_000
"""Of how many keys, the latest, a process knows that it may remove them, and of how many that a write may be on its
way."""


class RemovableKeys:
    """The keys of a store that this process may remove for good. Any number of threads may share it."""

    def __init__(self, client: RetryingClient) -> None:
        """None yet; `client` writes and removes them."""
        self._client = client
        # The token of each, and the nonce of its key's first write. By process, too: a fork's child has none of its
        # parent's. Of two processes only one may remove a version, since it takes its absence for its own doing.
        self._versions: dict[tuple[int, str], tuple[Token, str]] = {}
        # A write of these has ended in an error, and may be on its way.
        self._doubtful: set[str] = set()

    def put(
        self, path: str, payload: bytes, deadline: float, *, previous: VersionedValue | None, deleted: bool = False
    ) -> tuple[bool, VersionedValue | None]:
        """Write a key under a condition; see `RetryingClient.put`."""
        at = os.getpid(), path
        before = self._versions.get(at)
        write = self._client.write(path, payload, previous, deleted=deleted)

        def attempt(timeout: float) -> tuple[bool, VersionedValue | None]:
            applied, there = write.attempt(timeout)
            is_settled = applied or (there is not None and there.envelope.deleted)
            if previous is None and write.attempts > 1 and not is_settled:
                there = self._keep(path, there, deadline)
            return applied, there

        try:
            applied, now = self._client.with_retries(attempt, deadline)
        except BaseException:
            if len(self._doubtful) < KNOWN:
                self._doubtful.add(path)
            raise
        if applied:
            self._versions.pop(at, None)
            follows = previous is None or (before is not None and before[0] == previous.token)
            if now and write.attempts == 1 and follows and not deleted and not self._is_doubtful(path):
                self._note(at, now)
        return applied, now

    def remove(self, path: str, deadline: float) -> bool:
        """Remove a key for good, if that is possible.

        Returns:
            Whether it was there and is removed.
        """
        known = self._versions.pop((os.getpid(), path), None)
        if known is None:
            return False
        token, first = known
        reply_lost = False

        def attempt(timeout: float) -> bool:
            nonlocal reply_lost
            outcome = self._client.backend.delete_version(path, token, timeout=timeout)
            if outcome is PutOutcome.UNKNOWN:
                reply_lost = True
                raise RendezvousConnectionError(f"The reply to deleting '{path}' was lost.")
            return outcome is PutOutcome.APPLIED

        try:
            removed = self._client.with_retries(attempt, deadline)
        except RendezvousUnsupportedError:
            return False
        if removed or not reply_lost:
            return removed
        # What has replaced the version has the same first write; what came after its removal, which is this one's, not.
        there = self._client.read_all(path, deadline).raw(path)
        return there is None or _first(there) != first

    def _keep(self, path: str, there: VersionedValue | None, deadline: float) -> VersionedValue | None:
        """Write again what another has written, so that it does not remove it; None: it has done so already."""
        kept, now = False, there
        if there is not None:
            again = self._client.write(path, there.payload, there, deleted=False)
            kept, now = again.attempt(max(0.001, min(deadline - time.monotonic(), ATTEMPT)))
        if not kept:
            raise RendezvousConnectionError(
                f"Whether '{path}' was written is not known yet: a reply was lost, and others change it."
            )
        return now

    def _is_doubtful(self, path: str) -> bool:
        # Of so many it is not known which.
        return path in self._doubtful or len(self._doubtful) >= KNOWN

    def _note(self, at: tuple[int, str], version: VersionedValue) -> None:
        self._versions[at] = version.token, _first(version)
        if len(self._versions) > KNOWN:
            # Another thread may be faster.
            with suppress(KeyError, RuntimeError):
                del self._versions[next(iter(self._versions))]


def _first(version: VersionedValue) -> str:
    """The nonce of the first write of a key, which no value forgets."""
    return (version.envelope.nonce, *version.envelope.recent_nonces)[-1]
