"""The command line of `rdzv run`, filled with what the platform gives.

A flag comes before a variable of rdzv's, and that before the platform.
"""

import argparse
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rdzv.config import Layer, environment
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.text import printable

from .agent.devices import processes
from .common import with_variable
from .launch import ALONE, HOSTED, Launch
from .platforms import Fact, Found, Taken
from .platforms.torch import OPTIONS as TORCHRUN
from .sources import Sources
from .told import is_inside
from .torchrun import Line
from .values import AUTO, count

logger = logging.getLogger(__name__)

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
        sources: What variables and a file give.
        options: The options of the run that are the platform's.
        said: What is the platform's, each with where it stands, in words.
        drain_at: When the node drains unasked, on the monotonic clock.
    """

    arguments: argparse.Namespace
    launch: Launch
    sources: Sources
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
        sources = Sources.of(arguments, environ)
        filled = argparse.Namespace(**vars(arguments))
        sources.fill(filled)
        line = Line(filled, given={name for name, value in vars(arguments).items() if value is not None})
        # An agent in a run is not what the platform has started.
        is_asked = filled.platform in (None, AUTO) and not is_inside(environ)
        launch = Launch.here(environ, filled.array or "sweep") if is_asked else Launch(Found())
        taking = cls(filled, launch, sources)
        if line.left_out:
            logger.warning("what torchrun has and this command has not is left out: %s", "; ".join(line.left_out))
        if arguments.as_torchrun:
            taking._take_as_torchrun(line)
        if filled.standalone:
            taking._stand_alone(line)
        taking.launch.check(taking.arguments.nnodes)
        taking._fill(environ)
        taking._refuse_what_lacks()
        return taking

    def _take_as_torchrun(self, line: Line) -> None:
        """Have what torchrun takes where its line says nothing: one node, and a run id of its own."""
        told = self.launch.given().get("nnodes")
        # A scheduler has given a script all nodes, and started it on one.
        counts = told is not None and (self.launch.found.is_launched or told.platform == TORCHRUN.name)
        nodes = self.arguments.nnodes or (told.value if told is not None and counts else "1")
        if not counts:
            self.arguments.nnodes = nodes
        if nodes in ALONE and self._is_run_of_its_own(line):
            self.arguments.standalone = True
        elif self.arguments.run_id is None and "run_id" not in self.launch.given():
            self.arguments.run_id = line.default_run_id()

    def _is_run_of_its_own(self, line: Line) -> bool:
        """Whether a machine alone takes part in a run that no other has: none is named, or one that torchrun's own
        store would forget."""
        return self.arguments.run_id is None or (line.run_id is not None and self.arguments.backend is None)

    def _stand_alone(self, line: Line) -> None:
        nodes = self.arguments.nnodes or "1"
        if nodes not in ALONE:
            raise RendezvousParameterError(
                f"--standalone is a run of this machine alone, and --nnodes (or RDZV_NNODES) is '{printable(nodes)}': "
                "leave one out."
            )
        self.arguments.nnodes = nodes
        if self._is_run_of_its_own(line):
            self.arguments.run_id = f"{line.run_id or 'standalone'}-{secrets.token_hex(4)}"

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
        said |= environment(environ)[0].given["options"].keys() | self.sources.run_options.keys()
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
                f"{self.launch.found.names} does not tell what is needed{unread}: give {needed}{self._other_ways()}. "
                "`rdzv doctor` shows what it tells."
            )
        self.arguments.fail(f"the following arguments are required: {needed}{self._other_ways()}")

    def _other_ways(self) -> str:
        """What else makes a run of this command line, in words."""
        nodes = self.arguments.nnodes
        advice = self.launch.found.advice if nodes is None else ""
        alone = "; or, for this machine alone, --standalone" if nodes in (None, *ALONE) else ""
        return f"{f'; or {advice}' if advice else ''}{alone}"

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
    def machines(self) -> Sequence[str]:
        """The machines of all nodes; none: the platform does not list them."""
        return () if (hosts := self.launch.hosts()) is None else hosts.value

    @property
    def below(self) -> tuple[Layer, ...]:
        """What counts where neither the command line nor the environment gives an option of the run."""
        return Layer(self.sources.file, {"options": self.sources.run_options}), Layer(
            "The platform", {"options": self.options}
        )

    @property
    def in_words(self) -> str:
        """What is the platform's; empty: nothing."""
        return printable(f"; {self.launch.found.names}: {', '.join(self.said)}", 500) if self.said else ""
