"""What `rdzv run` takes from the platform that has started it: what no flag and no variable of rdzv's says."""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Final, Literal

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.plugins import installed_backends
from rdzv_core.text import printable

from .platforms import Fact, Found, Ignored, Taken, detect, platforms

Array = Literal["sweep", "job"]
"""What a job array is: a run for each element, or the nodes of one run."""

_PORTS: Final = range(20_000, 30_000)
"""Below those that Linux gives to connections, and above those of most services."""

_DRAIN: Final = 100.0
"""Seconds for all to save their work, as in the recipe for a preemption."""

_AFTER_DRAIN: Final = 20.0
"""Seconds from the end of a drain to that of the job, in which programs end."""

_LEAST_DRAIN: Final = 1.0

ALONE: Final = ("1", "1:1")
"""How the number of nodes is written of a machine alone."""

HOSTED: Final = "c10d"
"""The backend that needs no service: one of the nodes hosts its store."""


@dataclass(frozen=True)
class Launch:
    """What is known of a run from its platform, by the names of flags and options.

    Attributes:
        found: What the platform tells.
        array: What a job array is.
    """

    found: Found
    array: Array = "sweep"

    @classmethod
    def here(cls, environ: Mapping[str, str], array: Array = "sweep") -> "Launch":
        """What the platform tells that has started this process.

        Raises:
            RendezvousError: A row of a site's is broken.
        """
        return cls(detect(environ, platforms()), array)

    @property
    def is_array(self) -> bool:
        """Whether this job is one of several that are nodes of one run."""
        return self.array == "job" and Fact.ARRAY in self.found.facts

    def given(self) -> dict[str, Taken]:
        """What it gives: ``run_id``, ``nnodes``, options of the agent, and of the run."""
        facts = self.found.facts
        every = {
            "run_id": self._run_id(),
            "nnodes": self._nnodes(),
            "nproc_per_node": facts.get(Fact.PROCESSES),
            "max_restarts": facts.get(Fact.MAX_RESTARTS),
            # Elements of an array are started again one by one: a higher attempt would take the run from the others.
            "attempt": None if self.is_array else facts.get(Fact.ATTEMPT),
            "node_name": facts.get(Fact.NODE_NAME),
            "labels": facts.get(Fact.GROUP),
            **self._service(),
        }
        return {name: taken for name, taken in every.items() if taken is not None}

    def _service(self) -> dict[str, Taken | None]:
        """The service that torchrun's variables name; without a backend there is none."""
        backend = self.found.facts.get(Fact.BACKEND)
        return {} if backend is None else {"backend": backend, "endpoint": self.found.facts.get(Fact.ENDPOINT)}

    def _run_id(self) -> Taken | None:
        job = self.found.facts.get(Fact.ARRAY if self.is_array else Fact.JOB)
        if job is None:
            return None
        cluster, step = (self._beside(job, fact) for fact in (Fact.CLUSTER, Fact.STEP))
        parts = [one for one in (cluster, job) if one is not None]
        text = "-".join(str(one.value) for one in parts)
        # The steps of a job are runs of their own, and are numbered from 0 again when it is started again. What mpirun
        # starts is in a step of its daemons, or in none.
        if step is not None and step.value and step.platform == self._launcher:
            text, parts = f"{text}.{step.value}", [*parts, step]
        return Taken(text, tuple(name for one in parts for name in one.names), job.platform)

    def _beside(self, job: Taken, fact: Fact) -> Taken | None:
        """A fact of the platform that knows the job: an id by another needs no more of it."""
        taken = self.found.facts.get(fact)
        return taken if taken is not None and taken.platform == job.platform else None

    @property
    def _launcher(self) -> str:
        """The innermost platform that has started this process."""
        return next((platform.name for platform in self.found.platforms if platform.launches), "")

    def _nnodes(self) -> Taken | None:
        if (nodes := self.found.facts.get(Fact.NODES)) is None:
            return None
        # (What torchrun's variables say is said of the whole run.)
        if not self.is_array or isinstance(nodes.value, str):
            return replace(nodes, value=str(nodes.value))
        if (elements := self.found.facts.get(Fact.ARRAY_TASKS)) is None:
            return None
        return Taken(str(nodes.value * elements.value), (*elements.names, *nodes.names), nodes.platform)

    def hosts(self) -> Taken | None:
        """The hosts of all nodes; None: they are not known."""
        hosts, nodes = self.found.facts.get(Fact.HOSTS), self.found.get(Fact.NODES)
        # mpirun may start fewer nodes than a job has, and not the first of them. (MIN:MAX is a text.)
        if self.is_array or hosts is None or (isinstance(nodes, int) and nodes != len(hosts.value)):
            return None
        return hosts

    def first_host(self) -> Taken | None:
        """The host that all nodes know as the first; None: they know none."""
        if hosts := self.hosts():
            return replace(hosts, value=hosts.value[0])
        return None if self.is_array or Fact.HOSTS in self.found.facts else self.found.facts.get(Fact.FIRST_HOST)

    def drain(self, now: float) -> tuple[float, float]:
        """What ``--drain auto`` means: how many seconds a drain takes, and in how many it begins unasked.

        Args:
            now: The seconds since 1970.
        """
        ends = self.found.get(Fact.ENDS)
        if ends is None or ends <= now:
            return _DRAIN, math.inf
        left = ends - now
        return max(_LEAST_DRAIN, min(_DRAIN, left - _AFTER_DRAIN)), max(0.0, left - _AFTER_DRAIN - _DRAIN)

    def ignored(self) -> Iterator[Ignored]:
        """What a run does not take although it could be read."""
        facts = self.found.facts
        if self.is_array and (attempt := facts.get(Fact.ATTEMPT)):
            yield Ignored(attempt.source, "attempt: the elements of an array are started again one by one")
        if not self.is_array and (hosts := facts.get(Fact.HOSTS)) and self.first_host() is None:
            yield Ignored(hosts.source, f"hosts: {len(hosts.value)} hosts, and {self.found.get(Fact.NODES)} nodes")

    def check(self, nnodes: str | None) -> None:
        """Refuse what cannot become a run.

        Args:
            nnodes: How many nodes it is to have, if a flag or a variable of rdzv's says it.

        Raises:
            RendezvousParameterError: There are several tasks on this node; or no launcher is there, and more nodes are
                expected than the one on which this process is.
        """
        tasks, local = (self.found.facts.get(fact) for fact in (Fact.TASKS, Fact.LOCAL_RANK))
        # Where the nodes have unequal numbers of tasks, not all platforms tell how many this one has.
        told = tasks or local
        least = told.value + (tasks is None) if told is not None else 0
        if told is not None and least > 1:
            how_many = least if tasks is not None else f"{least} or more"
            raise RendezvousParameterError(
                f"{told.platform} has started {how_many} tasks on this node ({told.source}): each would be an "
                "agent, and all of their programs LOCAL_RANK 0. Start one task on each node, as by srun "
                "--ntasks-per-node=1, mpirun --map-by ppr:1:node (Open MPI) or mpiexec -ppn 1 (MPICH), and give "
                f"--nproc-per-node {least}; or, if each is to be a node, --platform none."
            )
        nodes, advice = self.found.facts.get(Fact.NODES), self.found.advice
        is_alone = nnodes is None and nodes is not None and nodes.value != 1 and not self.found.is_launched
        if nodes is not None and is_alone and advice:
            raise RendezvousParameterError(
                f"The job has {nodes.value} nodes ({nodes.source}), and this is {self.found.names}, on one of them "
                f"alone: {advice}. For this machine alone give --nnodes 1."
            )

    def endpoint(self, run_id: str, least: int = 1) -> Taken:
        """Where the store of a run is that no service keeps: at the first host, at a port that its id decides.

        Args:
            run_id: The run.
            least: How many nodes it needs. Where these are more than the launcher has started, the others may have
                another first host, such as those of another srun.

        Raises:
            RendezvousParameterError: No host is known to all, or what is needed there is not installed.
        """
        nodes, missing = self.found.get(Fact.NODES), _missing()
        host = None if isinstance(nodes, int) and least > nodes else self.first_host()
        if host is None or missing:
            raise RendezvousParameterError(self._explain(host, missing))
        return replace(host, value=f"{in_brackets(host.value)}:{port_of(run_id)}")

    def _explain(self, host: Taken | None, missing: str) -> str:
        unknown = f"no host is known to all of them{self.found.unread(Fact.HOSTS, Fact.FIRST_HOST)}"
        why = f"{missing} is not installed" if host is not None else unknown
        first = printable(str(host.value)) if host is not None else "NODE"
        return (
            f"Several nodes are to meet ({self.found.names}), no service is named, and {why}: a file of this machine "
            "would be no place for them. Name a service that all reach, by --backend and --endpoint or by RDZV_BACKEND "
            "and RDZV_ENDPOINT; or install torch and rdzv-c10d on all, and give --backend c10d and the host of one "
            f"node, as in --endpoint {first}:29400; or, for this machine alone, give --nnodes 1."
        )


def port_of(run_id: str) -> int:
    """The port that every node reckons alike."""
    return _PORTS[int.from_bytes(hashlib.sha256(os.fsencode(run_id)).digest()[:8]) % len(_PORTS)]


def _missing() -> str:
    if HOSTED not in installed_backends():
        return "rdzv-c10d"
    return "" if find_spec("torch") else "torch"


def in_brackets(host: str) -> str:
    """A host as it stands before a port."""
    return f"[{host}]" if ":" in host else host
