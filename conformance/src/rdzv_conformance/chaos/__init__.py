"""Faults against the real thing: real processes on a real service, and histories that are checked.

``python -m rdzv_conformance.chaos --help``
"""

from .checker import Finding, check, is_settled
from .history import Diary, History, Record

__all__ = ["Diary", "Finding", "History", "Record", "check", "is_settled"]
