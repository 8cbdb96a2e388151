"""The command line of `rdzv run`, filled with what the platform gives.

A flag comes before a variable of rdzv's, and that before the platform.
"""

import argparse
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rdzv.config import environment
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.text import printable

from .agent import AgentOptions
from .agent.devices import processes
from .common import AUTO, count, with_variable
from .launch import HOSTED, Launch
from .platforms import Fact, Found, Taken
from .told import is_inside

_NEEDED: Final = ("run_id", "nnodes")
_READ: Final[dict[str, Callable[[str], Any]]] = {"nproc_per_node": processes, "max_restarts": count}
OPTIONS: Final = ("attempt", "node_name", "labels")
"""What a platform gives as options of the run."""


@dataclass
class Taking:
    """A command line as it is filled.

    Attributes:
        arguments: The command line.
        launch: What the platform gives.
        options: The options of the run that are the platform's.
        said: What is the platform's, each with where it stands, in words.
        drain_at: When the node drains unasked, on the monotonic clock.
    """

    arguments: argparse.Namespace
    launch: Launch
    options: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    drain_at: float = math.inf

    @classmethod
    def of(cls, arguments: argparse.Namespace, environ: Mapping[str, str]) -> "Taking":
        """Fill a command line.

        Args:
            arguments: It.
            environ: The variables that are for this agent.

        Raises:
            RendezvousParameterError: Something is missing, or what the platform has started cannot become a run.
        """
        # An agent in a run is not what the platform has started.
        is_asked = arguments.platform == AUTO and not is_inside(environ)
        launch = Launch.here(environ, arguments.array) if is_asked else Launch(Found())
        taking = cls(argparse.Namespace(**vars(arguments)), launch)
        AgentOptions.take_variables(taking.arguments, environ)
        if arguments.standalone:
            taking._stand_alone()
        taking.launch.check(taking.arguments.nnodes)
        taking._fill(environ)
        taking._refuse_what_lacks()
        return taking

    def _stand_alone(self) -> None:
        nodes = self.arguments.nnodes or "1"
        if nodes not in ("1", "1:1"):
            raise RendezvousParameterError(
                f"--standalone is a run of this machine alone, and --nnodes (or RDZV_NNODES) is '{printable(nodes)}': "
                "leave one out."
            )
        self.arguments.nnodes = nodes
        self.arguments.run_id = self.arguments.run_id or f"standalone-{secrets.token_hex(4)}"

    def _fill(self, environ: Mapping[str, str]) -> None:
        given = self.launch.given()
        for name in _NEEDED:
            if getattr(self.arguments, name) is None and name in given:
                setattr(self.arguments, name, self._take(name, given[name]))
        for name in _READ:
            self._take_for_agent(name, given)
        if self.arguments.drain == AUTO:
            self._take_drain()
        said = {item.partition("=")[0] for item in self.arguments.option}
        said |= environment(environ)[0].given["options"].keys()
        for name in OPTIONS:
            if name in given and name not in said and getattr(self.arguments, name, None) is None:
                self.options[name] = self._take(name, given[name])
        is_named = self.arguments.standalone or self.arguments.backend or self.arguments.endpoint
        if not is_named and "backend" in given:
            for name in ("backend", "endpoint"):
                if name in given:
                    setattr(self.arguments, name, self._take(name, given[name]))

    def _refuse_what_lacks(self) -> None:
        if self.arguments.run_id is None and os.environ.get("RDZV_RUN_ID"):
            raise RendezvousParameterError(
                "The variable RDZV_RUN_ID is that of the run of which this process is a program, and which it would "
                "wait for: give --run-id, with another one."
            )
        needed = ", ".join(with_variable(name) for name in _NEEDED if getattr(self.arguments, name) is None)
        if not needed:
            return
        if self.launch.found.platforms:
            unread = self.launch.found.unread(Fact.JOB, Fact.NODES)
            raise RendezvousParameterError(
                f"{self.launch.found.names} does not tell what is needed{unread}: give {needed}. `rdzv doctor` shows "
                "what it tells."
            )
        self.arguments.fail(f"the following arguments are required: {needed}")

    def host(self, least: int, most: int) -> None:
        """Have one of the nodes keep the store, where several are to meet and no service is named.

        Args:
            least: The smallest world.
            most: The largest.

        Raises:
            RendezvousParameterError: None can.
        """
        is_named = self.arguments.endpoint or self.arguments.backend not in (None, HOSTED)
        if most > 1 and not is_named and self.launch.found.is_launched:
            endpoint = self.launch.endpoint(self.arguments.run_id, least)
            self.arguments.backend = HOSTED
            self.arguments.endpoint = self._take("endpoint", endpoint)

    def _take_drain(self) -> None:
        self.arguments.drain, begins = self.launch.drain(time.time())
        if math.isfinite(begins):
            # From here on, no clock that may be set counts.
            self.drain_at = time.monotonic() + begins
            self._take("drain", self.launch.found.facts[Fact.ENDS])

    def _take_for_agent(self, name: str, given: Mapping[str, Taken]) -> None:
        """Have the platform say what the agent's user may decide."""
        if getattr(self.arguments, name) is None and (told := given.get(name)):
            try:
                setattr(self.arguments, name, _READ[name](self._take(name, told)))
            except argparse.ArgumentTypeError as error:
                raise RendezvousParameterError(f"{told.source}: {error}.") from error

    def _take(self, name: str, taken: Taken) -> Any:
        self.said.append(f"{name.replace('_', ' ')} from {taken.source}")
        return taken.value

    @property
    def in_words(self) -> str:
        """What is the platform's; empty: nothing."""
        return printable(f"; {self.launch.found.names}: {', '.join(self.said)}", 500) if self.said else ""
