"""The simulator: the engine's real coroutines and rules, for many nodes, in virtual time.

Deterministic: a seed reproduces its run to the byte. ``python3 dev.py simulate --help``
"""

from .invariants import Violation
from .plan import FaultEvent, Plan
from .simulation import Simulation

__all__ = ["FaultEvent", "Plan", "Simulation", "Violation"]
