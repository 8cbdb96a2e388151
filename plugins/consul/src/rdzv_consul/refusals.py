"""What answers of Consul other than results mean."""

from typing import Final

from rdzv_core.errors import RendezvousDeniedError, RendezvousParameterError
from rdzv_transport import EndpointError, Reply

_NOT_PASSED_ON: Final = ("No cluster leader", "No path to datacenter", "rate limit", "not ready to serve")
"""In the answers of agents that have done nothing with a request."""


class Refusals:
    """Raises them; see `rdzv_transport.Client`.

    Args:
        prefix: What all runs' keys begin with, such as ``rdzv/``.
        has_token: Whether an ACL token is sent.
        datacenter: The datacenter that was asked for.
    """

    def __init__(self, prefix: str, has_token: bool, datacenter: str | None) -> None:
        self._prefix = prefix
        self._has_token = has_token
        self._datacenter = datacenter
        self._answered = False

    def check(self, reply: Reply) -> None:
        """Raise what an answer other than a result means."""
        if reply.status in (200, 404, 409):
            self._answered = True
            return
        if reply.status == 403:
            raise self.denied(reply.text)
        if "No path to datacenter" in reply.text and not self._answered:
            raise RendezvousParameterError(f"Consul refused the datacenter '{self._datacenter}': {reply.text}.")
        if reply.status in (400, 413):
            raise RendezvousParameterError(f"Consul refused the request: {reply.text}")
        if reply.status == 429 or reply.status >= 500:
            applied = not any(known in reply.text for known in _NOT_PASSED_ON)
            raise EndpointError(f"it answered {reply.status}, {reply.text}", applied=applied)
        raise ValueError(f"Consul never answers {reply.status}")

    def denied(self, reason: str) -> RendezvousDeniedError:
        """The error for what we may not do."""
        who, way_out = ("this token", "Check") if self._has_token else ("a client without a token", "Give one by")
        return RendezvousDeniedError(
            f"Consul refused {who}: {reason}. {way_out} the option token; its policy must have "
            f'key_prefix "{self._prefix}" {{ policy = "write" }}.'
        )
