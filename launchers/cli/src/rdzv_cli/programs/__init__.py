"""The programs that an agent starts beside that of its user: each is one file that runs alone."""

import sys
from types import ModuleType


def command_line(program: ModuleType, *arguments: str) -> list[str]:
    """What starts one of them, with the standard library alone: what is installed cannot break it, nor slow it down."""
    return [sys.executable, "-I", "-S", str(program.__file__), *arguments]
