"""The elastic agent: one node that runs a command in every world it gets."""

from .agent import Agent
from .checks import Checks
from .ending import AgentResult, ExitStatus
from .options import AgentOptions
from .restarts import Restarts
from .signals import Signals, ignore_from_now_on

__all__ = [
    "Agent",
    "AgentOptions",
    "AgentResult",
    "Checks",
    "ExitStatus",
    "Restarts",
    "Signals",
    "ignore_from_now_on",
]
