"""What an agent tells its program is not told to another agent, which that program may be, or may start."""

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Final

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import PREFIX
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import load_backend_plugin

TOLD: Final = "RDZV_TOLD"
"""Names the variables that an agent has set, each with what tells whether it was set anew since then; and its run."""

_RUN_ID: Final = "RDZV_RUN_ID"

_RUN: Final = "run"
"""Stands in `TOLD` before each run of which this process is a program, or is a program of a program."""


def as_told(variables: Mapping[str, str], params: RendezvousParameters, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that an agent sets for its program, and which of them these are.

    Args:
        variables: What it sets.
        params: Its run.
        environ: Its own environment. What its user has set there is for every agent; but not the run.
    """
    ours = {name: value for name, value in variables.items() if name.startswith("RDZV_")}
    told = [name for name, value in ours.items() if name == _RUN_ID or environ.get(name) != value]
    items = [*(f"{name}={_print_of(variables[name])}" for name in told), *_runs(environ), _run_of(params)]
    return {**variables, TOLD: ",".join(items)}


def for_agents(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what an agent has told its program."""
    told = dict(item.partition("=")[::2] for item in environ.get(TOLD, "").split(","))
    return {name: value for name, value in environ.items() if told.get(name) != _print_of(value)}


def is_inside(environ: Mapping[str, str]) -> bool:
    """Whether this process is a program of an agent."""
    return bool(_runs(environ))


def is_own_run(params: RendezvousParameters, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a program of that very run, as far as its names tell: a service may have several."""
    return _run_of(params) in _runs(environ)


def _runs(environ: Mapping[str, str]) -> list[str]:
    return [item for item in environ.get(TOLD, "").split(",") if item.startswith(f"{_RUN}=")]


def _run_of(params: RendezvousParameters) -> str:
    """What an agent of a run has in common with every other one on the same machine."""
    where = params.endpoint
    # A launcher of one's own may have a backend that is not registered.
    with suppress(RendezvousParameterError):
        plugin = load_backend_plugin(params.backend)
        where = plugin.describe_endpoint(params.endpoint or plugin.default_endpoint or "")
    servers = sorted(server.strip() for server in where.split(","))
    prefix = params.get(PREFIX.name, PREFIX.default)
    return f"{_RUN}={_print_of(repr((params.backend, servers, prefix, params.run_id)))}"


def _print_of(value: str) -> str:
    """As good as the value, which may be long or secret."""
    return sha256(os.fsencode(value)).hexdigest()[:16]
