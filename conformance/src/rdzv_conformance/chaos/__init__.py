"""Faults against the real thing: real processes on a real service, and histories that are checked.

``python -m rdzv_conformance.chaos --help``
"""

from .checker import Violation, check, is_settled
from .history import EventLog, History, Record

__all__ = ["EventLog", "History", "Record", "Violation", "check", "is_settled"]
