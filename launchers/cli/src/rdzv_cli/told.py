"""What an agent tells its program is not told to another agent, which that program may be, or may start."""

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Final

TOLD: Final = "RDZV_TOLD"
"""Names the variables that an agent has set, each with what tells whether it was set anew since then."""

_RUN_ID: Final = "RDZV_RUN_ID"


def as_told(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that an agent sets for its program, and which of them these are.

    Args:
        variables: What it sets.
        environ: Its own environment. What its user has set there is for every agent; but not the run.
    """
    ours = {name: value for name, value in variables.items() if name.startswith("RDZV_")}
    told = [name for name, value in ours.items() if name == _RUN_ID or environ.get(name) != value]
    return {**variables, TOLD: ",".join(f"{name}={_print_of(variables[name])}" for name in told)}


def for_agents(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what an agent has told its program."""
    told = dict(item.partition("=")[::2] for item in environ.get(TOLD, "").split(","))
    return {name: value for name, value in environ.items() if told.get(name) != _print_of(value)}


def _print_of(value: str) -> str:
    """As good as the value, which may be long or secret."""
    return sha256(os.fsencode(value)).hexdigest()[:16]
