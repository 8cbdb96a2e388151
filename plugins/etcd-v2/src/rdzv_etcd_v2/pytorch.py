"""What PyTorch has for etcd's v2 API, by PyTorch's names: a backend and a store, of parameters or of a client."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from rdzv.store import KeyValueStore
from rdzv_core.errors import RendezvousTimeoutError
from rdzv_core.parameters import RendezvousParameters

from . import plugin
from .access import Access
from .backend import EtcdV2Backend

_TWO_HOURS: Final = 7200


def create_backend(params: RendezvousParameters) -> tuple[EtcdV2Backend, KeyValueStore]:
    """Make a backend and a store on it; neither touches the network yet.

    Raises:
        RendezvousParameterError: The endpoint or an option cannot be used.
    """
    backend, _ = plugin.create_backend(params)
    return backend, KeyValueStore(backend)


class EtcdRendezvousBackend(EtcdV2Backend):
    """A backend on the etcd that a client of python-etcd was made for.

    Args:
        client: An ``etcd.Client``. It is only asked where it would connect to, and as whom; connections are the
            backend's own, since those of python-etcd send writes twice and mix up answers after a fork.
        run_id: Which run.
        key_prefix: The directory in which all runs live; None: etcd's root.
        ttl: Seconds after which etcd removes the keys of a run that is not written to any more; None, or
            nothing above zero: two hours.

    Raises:
        RendezvousParameterError: These cannot be used.
    """

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        kept = ttl if ttl and ttl > 0 else _TWO_HOURS
        super().__init__(Access.of_client(client), run_id, prefix=key_prefix or "", ttl=kept)


class KeyNotFoundError(RendezvousTimeoutError, LookupError):
    """Keys were not published in time. PyTorch's etcd store raises a LookupError then."""


class EtcdStore(KeyValueStore):
    """A store in a directory of etcd, as PyTorch's: a wait that times out is a LookupError.

    It has all of `rdzv.Store`, and what it holds is not readable for PyTorch's own class. `close` it in the end.

    Args:
        etcd_client: An ``etcd.Client``; see `EtcdRendezvousBackend`.
        etcd_store_prefix: The directory.
        timeout: How long to wait for keys; None: 300 s.

    Raises:
        RendezvousParameterError: These cannot be used.
    """

    def __init__(self, etcd_client: Any, etcd_store_prefix: str, timeout: timedelta | None = None) -> None:
        above, _, directory = etcd_store_prefix.strip("/").rpartition("/")
        backend = EtcdV2Backend(Access.of_client(etcd_client), directory, prefix=above)
        super().__init__(backend, timeout=timeout or timedelta(seconds=300))

    def multi_get(self, keys: Sequence[str], /) -> list[bytes]:
        """See `rdzv.Store.multi_get`.

        Raises:
            LookupError: They did not exist in time.
        """
        try:
            return super().multi_get(keys)
        except RendezvousTimeoutError as error:
            raise KeyNotFoundError(str(error)) from error

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None, /) -> None:
        """See `rdzv.Store.wait`.

        Raises:
            LookupError: They did not exist in time.
        """
        try:
            super().wait(keys, timeout)
        except RendezvousTimeoutError as error:
            raise KeyNotFoundError(str(error)) from error
