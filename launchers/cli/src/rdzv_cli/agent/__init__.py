"""The elastic agent: one node that runs a command in every world it gets."""

from .agent import Agent, AgentResult, ExitStatus

__all__ = ["Agent", "AgentResult", "ExitStatus"]
