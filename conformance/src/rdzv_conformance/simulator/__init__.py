"""The simulator: the core's real lanes and rules, for many nodes, in virtual time.

Deterministic: a seed reproduces its run to the byte.
"""

from .simulation import Plan, Simulation, Violation

__all__ = ["Plan", "Simulation", "Violation"]
