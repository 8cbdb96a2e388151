"""The elastic agent: one node that runs a command in every world it gets."""

from .agent import Agent, Outcome, Verdict

__all__ = ["Agent", "Outcome", "Verdict"]
