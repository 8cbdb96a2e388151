"""How an agent ends: the kinds of ends, which are the exit codes of the command."""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self

import rdzv
from rdzv.shortages import is_shortage

from ..values import signal_name


class Closed(Protocol):
    """Why a run was closed, as the node's view and the inspector have it."""

    @property
    def by(self) -> str:
        """Which node, or user, closed it."""

    @property
    def reason(self) -> str:
        """Why, in words."""

    @property
    def done(self) -> bool:
        """Whether the job was done."""

    @property
    def gave_up(self) -> bool:
        """Whether it made no progress."""


class ExitStatus(Enum):
    """How it ends; the value is the exit code of the command."""

    DONE = 0
    FAILED = 1
    UNUSABLE = 2
    TIMED_OUT = 3
    CLOSED = 4
    SPARE = 5
    UNREACHABLE = 6
    ERROR = 7
    DRAINED = 8
    UNFIT = 9
    GAVE_UP = 10
    UNKNOWN = 11
    SIGNALLED = 128

    @classmethod
    def of(cls, error: rdzv.RendezvousError) -> "ExitStatus":
        """The end that an error means."""
        if is_shortage(error):
            return cls.ERROR
        kinds = {
            rdzv.RendezvousParameterError: cls.UNUSABLE,
            rdzv.RendezvousTimeoutError: cls.TIMED_OUT,
            rdzv.RendezvousClosedError: cls.CLOSED,
            rdzv.RendezvousGracefulExitError: cls.SPARE,
            # Before the error that it refines: to start again would be refused again.
            rdzv.RendezvousDeniedError: cls.UNUSABLE,
            rdzv.RendezvousConnectionError: cls.UNREACHABLE,
        }
        return next((exit_status for kind, exit_status in kinds.items() if isinstance(error, kind)), cls.ERROR)

    @classmethod
    def of_closed(cls, *, done: bool, gave_up: bool) -> "ExitStatus":
        """The end of a node whose run another has closed, also before it came."""
        return cls.GAVE_UP if gave_up else cls.SPARE if done else cls.CLOSED


@dataclass(frozen=True)
class AgentResult:
    """How an agent ended, and why.

    Attributes:
        exit_status: The kind of end.
        reason: In words.
        signal: The signal that ended it, with `ExitStatus.SIGNALLED`.
        program: The exit code of the command, to be passed on in the place of the agent's own; 0: it is not.
        summary: The reason in a few words, for the others of the run; empty: the reason itself.
    """

    exit_status: ExitStatus
    reason: str
    signal: int = 0
    summary: str = ""
    program: int = 0

    @classmethod
    def of_done(cls, nodes: int, number: int) -> Self:
        """The end of a job that all nodes of the world of this round have finished."""
        who = f"all {nodes} nodes have" if nodes > 1 else "1 node has"
        return cls(ExitStatus.DONE, f"{who} finished, in round {number}")

    @classmethod
    def of_signal(cls, number: int, then: str) -> Self:
        """The end by a signal, and what that means for the node, in words."""
        name = signal_name(number)
        return cls(ExitStatus.SIGNALLED, f"ended by {name}; {then}", number, summary=name)

    @classmethod
    def of_closed(cls, closed: Closed) -> Self:
        """The end of a node whose run another has closed."""
        kind = ExitStatus.of_closed(done=closed.done, gave_up=closed.gave_up)
        return cls(kind, f"closed by {closed.by or 'an unnamed node'}: {closed.reason}")

    @classmethod
    def of_error(cls, error: rdzv.RendezvousError, closed: Closed | None) -> Self:
        """The end that an error means, in a run that was closed so."""
        kind = ExitStatus.of(error)
        if kind is ExitStatus.CLOSED and closed is not None:
            kind = ExitStatus.of_closed(done=closed.done, gave_up=closed.gave_up)
        return cls(kind, str(error), summary=error.summary)

    @property
    def exit_code(self) -> int:
        """The exit code for a shell."""
        return self.program or self.exit_status.value + self.signal
