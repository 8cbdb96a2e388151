"""One watch of etcd's: what happens under a prefix from a revision on, until it ends."""

from collections.abc import Mapping
from typing import Any

from rdzv_transport import Change, Changes, GapError, number_of

from .client import Client
from .wire import KeySpace, read_entry


class Events(Changes):
    """The events under `prefix` after the revision `since`. A watch ends with an error only."""

    confirmed = False

    def __init__(self, client: Client, keys: KeySpace, prefix: str, since: int, timeout: float) -> None:
        """Ask for them, within `timeout` seconds; the confirmation may come later.

        Raises:
            RendezvousConnectionError: No endpoint could be reached.
        """
        self._since = since
        self._client = client
        self._keys = keys
        request = {"create_request": keys.under(prefix) | {"start_revision": str(since + 1)}}
        stream, self._login = client.watch(request, timeout, self._understand)
        super().__init__(stream)

    def log_in_again(self) -> bool:
        return self._client.forget_login(self._login)

    def _understand(self, message: Mapping[str, Any]) -> list[Change]:
        result = message["result"]
        if result.get("canceled"):
            if "compact_revision" in result:
                raise GapError
            raise self._client.cancelled(str(result.get("cancel_reason", "the watch was cancelled")))
        if result.get("created"):
            # A watch of revisions that the service has lost would wait until they come again.
            if number_of(result["header"]["revision"]) < self._since:
                raise GapError
            self.confirmed = True
        return [self._change(event) for event in result.get("events", ())]

    def _change(self, event: Mapping[str, Any]) -> Change:
        pair = event["kv"]
        entry = None if event.get("type") == "DELETE" else read_entry(pair)
        return Change(self._keys.name(pair), entry, number_of(pair["mod_revision"]))
