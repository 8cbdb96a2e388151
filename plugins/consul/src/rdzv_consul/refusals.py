"""What Consul's answers mean that are no result."""

from typing import Final

from rdzv.errors import RendezvousDeniedError, RendezvousParameterError
from rdzv.http import AttemptError, Reply

__all__ = ["Refusals"]

_NOT_PASSED_ON: Final = ("No cluster leader", "No path to datacenter", "rate limit", "not ready to serve")
"""In the answers of agents that have done nothing with a request."""


class Refusals:
    """Raises them; see `rdzv.http.Client`.

    Args:
        token: The ACL token that was sent.
        datacenter: The datacenter that was asked for.
    """

    def __init__(self, token: str | None, datacenter: str | None) -> None:
        self._token = token
        self._datacenter = datacenter
        self._answered = False

    def check(self, reply: Reply) -> None:
        """Raise what an answer means that is no result."""
        if reply.status in (200, 404, 409):
            self._answered = True
            return
        if reply.status == 403:
            raise self.denied(reply.text)
        if reply.status == 400 and "HTTPS server" in reply.text:
            raise AttemptError("it speaks TLS; set protocol=https", applied=False, denied=True)
        if "No path to datacenter" in reply.text and not self._answered:
            raise RendezvousParameterError(f"Consul refused the datacenter '{self._datacenter}': {reply.text}.")
        if reply.status in (400, 413):
            raise RendezvousParameterError(f"Consul refused the request: {reply.text}")
        if reply.status == 429 or reply.status >= 500:
            applied = not any(known in reply.text for known in _NOT_PASSED_ON)
            raise AttemptError(f"it answered {reply.status}, {reply.text}", applied=applied)
        raise AttemptError(
            f"it did not answer as Consul does, but with HTTP {reply.status} and {reply.text!r}; is it Consul?",
            applied=True,
        )

    def denied(self, reason: str) -> RendezvousDeniedError:
        """The error for what we may not do."""
        who = "this token" if self._token else "a client without a token"
        return RendezvousDeniedError(
            f"Consul refused {who}: {reason}. Check the option token, and that its policy has "
            'key_prefix "..." { policy = "write" } for the keys under the prefix.'
        )
