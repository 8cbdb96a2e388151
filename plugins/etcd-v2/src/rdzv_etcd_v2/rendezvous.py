"""PyTorch's `EtcdRendezvous` and its handler: a `DynamicRendezvousHandler` by other names."""

import warnings
from datetime import timedelta
from typing import Any

from rdzv import DynamicRendezvousHandler
from rdzv.settings import HANDLER_OPTIONS, RendezvousSettings, RendezvousTimeout
from rdzv_core.credentials import with_secrets
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.handler import RendezvousHandler, RendezvousInfo
from rdzv_core.options import read_options, secret_names
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.store import Store

from . import legacy
from .access import Access
from .backend import EtcdBackend


class EtcdRendezvous:
    """One node of a rendezvous. Deprecated: use `rdzv.DynamicRendezvousHandler`, which this is underneath.

    Args:
        client: An ``etcd.Client``; see `EtcdRendezvousBackend`.
        prefix: The directory in which all runs live.
        run_id: Which run.
        num_min_workers: The smallest world, in nodes.
        num_max_workers: The largest.
        timeout: Seconds that joining may take.
        last_call_timeout: Seconds that a world that has its minimum waits for more nodes.

    Raises:
        RendezvousParameterError: These cannot be used.
    """

    def __init__(
        self,
        client: Any,
        prefix: str,
        run_id: str,
        num_min_workers: int,
        num_max_workers: int,
        timeout: float,
        last_call_timeout: float,
    ) -> None:
        warnings.warn("EtcdRendezvous is in maintenance: use DynamicRendezvousHandler.", DeprecationWarning, 2)
        times = RendezvousTimeout(timedelta(seconds=timeout), timedelta(seconds=last_call_timeout))
        self._settings = RendezvousSettings(run_id, num_min_workers, num_max_workers, times)
        self._backend = EtcdBackend(Access.of_client(client), self._settings.run_id, prefix=prefix)
        self._handler: DynamicRendezvousHandler | None = None
        self._world: RendezvousInfo | None = None

    def handler(self, local_addr: str | None = None) -> DynamicRendezvousHandler:
        """What does the work.

        Args:
            local_addr: This node's address as the others reach it; counts the first time.
        """
        if self._handler is None:
            self._handler = DynamicRendezvousHandler(self._settings, self._backend, None, local_addr)
        return self._handler

    def rendezvous_barrier(self) -> tuple[int, int, int]:
        """Wait for the next world: its version (the round), this node's rank, and the size.

        Raises:
            RendezvousError: As `RendezvousHandler.next_rendezvous`.
        """
        self._world = self.handler().next_rendezvous()
        return self._world.round, self._world.rank, self._world.world_size

    def setup_kv_store(self, rdzv_version: int) -> Store:
        """The store of a world.

        Args:
            rdzv_version: The one that `rendezvous_barrier` gave last.

        Raises:
            RendezvousParameterError: It is another.
        """
        if self._world is None or self._world.round != rdzv_version:
            raise RendezvousParameterError(
                f"The version {rdzv_version} is not that of this node's world. Call rendezvous_barrier first."
            )
        store: Store = self._world.store
        return store

    def set_closed(self) -> None:
        """Close the run for all, for good."""
        self.handler().set_closed()


class EtcdRendezvousHandler(RendezvousHandler):
    """The handler of an `EtcdRendezvous`. Deprecated, as that one.

    Args:
        rdzv_impl: The rendezvous.
        local_addr: This node's address as the others reach it; None: the source address towards etcd.
    """

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None = None) -> None:
        self._inner = rdzv_impl.handler(local_addr)

    def get_backend(self) -> str:
        return self._inner.get_backend()

    def next_rendezvous(self) -> RendezvousInfo:
        return self._inner.next_rendezvous()

    def is_closed(self) -> bool:
        return self._inner.is_closed()

    def set_closed(self) -> None:
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        return self._inner.num_nodes_waiting()

    def get_run_id(self) -> str:
        return self._inner.get_run_id()

    def shutdown(self) -> bool:
        return self._inner.shutdown()

    def leave(self, reason: str = "it left") -> bool:
        return self._inner.leave(reason)


class _CreatedHandler(DynamicRendezvousHandler, EtcdRendezvousHandler):
    """Is an `EtcdRendezvousHandler`, as PyTorch's; does what a `DynamicRendezvousHandler` does."""


def create_rdzv_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Make a handler of the backend ``etcd``. Deprecated: use `rdzv.get_rendezvous_handler` with ``etcd-v2``.

    Args:
        params: The options are those of ``etcd`` and of rdzv. ``timeout`` means ``join_timeout``, as it does
            in PyTorch.

    Raises:
        RendezvousParameterError: One of them is unknown or cannot be used.
    """
    # Files are read once.
    params = with_secrets(params, secret_names(legacy.OPTIONS))
    read_options(params.config, (*HANDLER_OPTIONS, *legacy.OPTIONS), owner="The backend 'etcd'")
    backend, _ = legacy.create_backend(params)
    options = {"join_timeout": params.config.get("timeout"), **params.config}
    named = (params.endpoint, params.run_id, params.min_nodes, params.max_nodes)
    settings = RendezvousSettings.from_parameters(RendezvousParameters("etcd", *named, **options))
    return _CreatedHandler(settings, backend, None, params.local_addr)
