"""One try before the agents start: what was asked for can be used, and the service answers."""

from typing import Final

from rdzv import RendezvousError, RendezvousParameterError, RendezvousParameters, get_rendezvous_handler
from rdzv.inspector import RunInspector

from ..processes import Link, Processes

_PATIENCE: Final = 10.0
"""Seconds that the service may take to answer."""


def try_out(parameters: RendezvousParameters) -> None:
    """Make a handler, and contact the service once; in a process of its own, since agents are forked from this one.

    Raises:
        RendezvousParameterError: That does not work.
    """

    def work(link: Link) -> str | None:
        try:
            get_rendezvous_handler(parameters)
            with RunInspector(parameters) as observer:
                observer.status(_PATIENCE)
        except RendezvousError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None

    with Processes() as processes:
        try:
            wrong = processes.fork(work).result(3 * _PATIENCE)
        except (TimeoutError, EOFError) as error:
            wrong = f"The backend '{parameters.backend}' has not read a key: {error}"
    if wrong is not None:
        raise RendezvousParameterError(wrong)
