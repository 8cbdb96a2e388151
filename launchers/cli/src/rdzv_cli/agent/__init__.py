"""The elastic agent: one node that runs a command in every world it gets."""

from .agent import Agent
from .checks import Checks, parse_check
from .ending import AgentResult, ExitStatus

__all__ = ["Agent", "AgentResult", "Checks", "ExitStatus", "parse_check"]
