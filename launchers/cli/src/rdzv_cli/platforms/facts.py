"""What a platform may tell of a job, and of this node's place in it; and where in the environment that stands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from .readers import text


class Fact(StrEnum):
    """What a platform may tell; what it calls that is the affair of its row."""

    JOB = "job"
    CLUSTER = "cluster"
    STEP = "step"
    ARRAY = "array"
    ARRAY_TASKS = "tasks of the array"
    NODES = "nodes"
    NODE_RANK = "node rank"
    NODE_NAME = "node name"
    TASKS = "tasks on this node"
    LOCAL_RANK = "local rank"
    PROCESSES = "processes per node"
    MAX_RESTARTS = "restarts at most"
    HOSTS = "hosts"
    FIRST_HOST = "first host"
    BACKEND = "backend"
    ENDPOINT = "endpoint"
    ATTEMPT = "attempt"
    ENDS = "end"
    GROUP = "group"


OF_PLACE: Final = frozenset(
    {
        Fact.NODES,
        Fact.NODE_RANK,
        Fact.TASKS,
        Fact.LOCAL_RANK,
        Fact.PROCESSES,
        Fact.MAX_RESTARTS,
        Fact.BACKEND,
        Fact.ENDPOINT,
    }
)
"""What the innermost launcher knows best; of all else, the outermost platform does."""

SET: Final = r"(?s).+"
"""Matches a variable that is set, whatever it holds."""

IN_TERMINAL: Final = "it is a terminal, in which one command comes after another"
"""Why the job of a terminal is no run: the second command would be told that it is done."""


@dataclass(frozen=True)
class Source:
    """Where a fact stands.

    Attributes:
        names: What is all needed: variables, or patterns of which one variable each has the name. ``NAME/file`` is the
            file whose path the variable holds, and what begins with a slash the file of that path.
        read: What it means, from the text of each; None: it does not tell. It raises ValueError, with the reason,
            where it cannot be read.
    """

    names: tuple[str, ...]
    read: Callable[..., Any]


def of(*names: str, read: Callable[..., Any] = text) -> Source:
    """The source that these names are."""
    return Source(names, read)


@dataclass(frozen=True, kw_only=True)
class Platform:
    """One row of the table.

    Attributes:
        name: What users call it.
        tells: Variables, or patterns of their names, that show together that it is there, each with the pattern that
            its value has.
        facts: The sources of each fact; the first that is there counts.
        seen: When and where its variables were read: a project at a commit, a page, or a run of the real one.
        unless: Variables that show that it is not, although it seems to be, each with the reason to
            show, which may be empty.
        ignored: Variables that mislead, each with the reason.
        comes_first: Whether what it tells comes before the word of all others, as what users or a site have set.
        family: Of rows of one family only the first that is there counts. Empty: its name.
        launches: Whether it starts a process on every node, as `rdzv run` needs it; a job's script is on one alone.
        advice: What a user does where it does not.
    """

    name: str
    tells: Mapping[str, str]
    facts: Mapping[Fact, tuple[Source, ...]]
    seen: str
    unless: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)
    comes_first: bool = False
    family: str = ""
    launches: bool = True
    advice: str = ""
