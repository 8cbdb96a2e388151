"""What stands before each line of a process on the console."""

import os
import string
from collections.abc import Mapping
from typing import Final

USUAL: Final = "[${round}:${rank}] "

_NAMES: Final = {
    "round": "RDZV_ROUND",
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "group_rank": "GROUP_RANK",
    "role_name": "ROLE_NAME",
}
"""What a template may name, by the variable that says it."""

_COLOURS: Final = (36, 33, 32, 35, 34, 31)
"""Of the terminal, by local rank: cyan, yellow, green, magenta, blue, red."""


def prefix(template: str, environment: Mapping[str, str]) -> str:
    """The prefix of a process with these variables. A name that is not known stays as it is, as with torchrun's."""
    return string.Template(template).safe_substitute({name: environment[_NAMES[name]] for name in _NAMES})


def coloured(text: str, local_rank: int, descriptor: int) -> str:
    """A prefix in the colour of its process, where the console is a terminal that is to have colours."""
    if not text or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not os.isatty(descriptor):
        return text
    return f"\x1b[{_COLOURS[local_rank % len(_COLOURS)]}m{text}\x1b[0m"
