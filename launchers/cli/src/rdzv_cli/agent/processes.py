"""How many processes each node runs: rank 0 says so in the store of the round, and the others look there."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import rdzv
from rdzv_core.handler import RendezvousInfo
from rdzv_core.store import Store

from .calls import until_signalled
from .speaker import Speaker

PROCESSES: Final = "rdzv.processes"
"""The key in the store."""

_LOOK_AGAIN: Final = timedelta(seconds=10)
"""How long one question for it waits; the first one after the end of the world is the last."""

_PAUSE: Final = 0.05
"""Seconds between two questions to a store that fails at once."""


def agree_on_processes(speaker: Speaker, info: RendezvousInfo, count: int, is_over: Callable[[], bool]) -> bool:
    """See to it that every node has as many processes, else the global ranks would not add up.

    Args:
        speaker: Of the node.
        info: Its place in the world.
        count: How many it runs.
        is_over: Whether the world has ended.

    Returns:
        False if the world ended before it was known.

    Raises:
        RendezvousParameterError: The node of rank 0 runs another number.
    """
    if info.rank == 0:
        until_signalled(speaker, lambda: info.store.set(PROCESSES, str(count)))
        return not speaker.signals.number
    ended = threading.Event()
    try:
        first = until_signalled(speaker, lambda: _processes_of_rank_0(info.store, ended), is_over=is_over)
    finally:
        ended.set()
    if first is None:
        return False
    if first != count:
        raise rdzv.RendezvousParameterError(
            f"This node has --nproc-per-node {count}, but that of rank 0 has {first}: give all nodes the same."
        )
    return True


def _processes_of_rank_0(store: Store, ended: threading.Event) -> int | None:
    """How many processes the node of rank 0 runs, as soon as it says so; None if the world ended before."""
    patient = store
    store = store.clone()
    store.set_timeout(_LOOK_AGAIN)
    while not ended.is_set():
        try:
            return int(store.get(PROCESSES))
        except ValueError as error:
            raise rdzv.RendezvousStateError(
                f"'{PROCESSES}' in the store of the round is no number: {error}."
            ) from error
        except (rdzv.RendezvousTimeoutError, rdzv.RendezvousConnectionError, RuntimeError):
            # A service that is away gets all the time that the store gives it. (PyTorch's stores raise RuntimeErrors.)
            patient.check([PROCESSES])
            # A store that fails at once, though it is there, is not asked without a pause.
            ended.wait(_PAUSE)
    return None
