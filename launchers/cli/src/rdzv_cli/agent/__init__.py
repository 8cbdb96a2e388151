"""The elastic agent: one node that runs a command in every world it gets."""

from .agent import Agent, AgentResult, ExitStatus
from .checks import Checks, parse_check

__all__ = ["Agent", "AgentResult", "Checks", "ExitStatus", "parse_check"]
