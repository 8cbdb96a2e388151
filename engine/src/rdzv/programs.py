"""What an agent withholds: secrets from the programs that it starts, all RDZV_ variables from tools of the system."""

import copy
import os
from collections.abc import Iterable, Mapping

from rdzv_core.credentials import WITHHELD, file_option, variable
from rdzv_core.parameters import SECRET_NAME, RendezvousParameters

__all__ = ["public_environment", "withhold"]


def withhold(
    params: RendezvousParameters, names: Iterable[str] | None, environ: Mapping[str, str] = os.environ
) -> tuple[RendezvousParameters, dict[str, str]]:
    """Parameters and environment for a program that gets no secret; a file's name is none.

    Args:
        params: What the agent was given.
        names: The options that are secret; None: the program gets them.
        environ: The environment of the agent.
    """
    # What RDZV_OPTIONS says is in the parameters already.
    hidden = {WITHHELD, "RDZV_OPTIONS"}
    if names is not None:
        names = tuple(names)
        # The program does not need a secret of another backend, either.
        hidden |= {name for name in environ if name.startswith("RDZV_") and SECRET_NAME.search(name)}
        hidden |= {*map(variable, names)}
    names = names or ()
    public = copy.copy(params)
    public.config = {name: value for name, value in params.config.items() if name not in names}
    environment = {name: value for name, value in environ.items() if name not in hidden}
    has = {name for name in names if params.config.get(name) is not None or environ.get(variable(name))}
    if withheld := sorted(name for name in has if file_option(name) not in public.config):
        environment[WITHHELD] = ",".join(withheld)
    return public, environment


def public_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a tool of the system, which needs to know nothing of rdzv.

    Args:
        environ: The environment of this process.
    """
    return {name: value for name, value in environ.items() if not name.startswith("RDZV_")}
