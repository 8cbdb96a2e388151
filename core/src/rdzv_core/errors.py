"""The errors of rdzv: everything that goes wrong is a `RendezvousError`.

The first six carry PyTorch's names and meanings; `RendezvousParameterError` is the seventh: what the
caller passed cannot be used. The last two refine them for backend authors.
"""

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousDeniedError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousParameterError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
    "RendezvousUnsupportedError",
    "again",
]


class RendezvousError(Exception):
    """The base of every error that rdzv raises.

    Attributes:
        summary: The same in a few words, as the reason of a node that leaves for it; empty: there are none.
    """

    summary: str = ""


class RendezvousClosedError(RendezvousError):
    """The rendezvous is closed; its message says by whom and why."""


class RendezvousTimeoutError(RendezvousError, TimeoutError):
    """Something did not happen in time; the message says what was waited for, and how long."""


class RendezvousConnectionError(RendezvousError, ConnectionError):
    """The service behind the backend could not be reached, or did not answer in time.

    A backend raises it when a call was *certainly not applied* or only read; rdzv tries again to the caller's deadline.
    """


class RendezvousStateError(RendezvousError):
    """What the service holds is corrupt, hostile, or written by something else than this version of rdzv."""


class RendezvousGracefulExitError(RendezvousError):
    """The job ended without this node ever being needed: a spare ends. Not a failure."""


class RendezvousParameterError(RendezvousError, ValueError):
    """A value that the caller passed cannot be used: the message names it and the way out."""


class RendezvousDeniedError(RendezvousConnectionError):
    """The service refused who we are (credentials, certificate, permission): an outage to a node, unless it lasts."""


class RendezvousUnsupportedError(RendezvousError, NotImplementedError):
    """The backend does not have the capability that the call needs; the message says why."""


def again(error: RendezvousError) -> RendezvousError:
    """A new object for an error that was kept, to be raised; the kept one is its cause.

    An object that is raised twice has the traceback of both, and keeps every frame of them alive.
    """
    # A subclass may have a constructor of its own, with other arguments.
    fresh = type(error).__new__(type(error), *error.args)
    fresh.args = error.args
    fresh.__dict__.update(error.__dict__)
    fresh.__cause__ = error
    return fresh
