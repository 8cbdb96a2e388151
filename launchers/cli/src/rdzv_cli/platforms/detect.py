"""From an environment to what its platforms tell: which facts, from which variables, and what was ignored and why.

Where two tell the same, as mpirun inside of a job of Slurm's: the innermost launcher knows this process's place best,
the outermost platform all that concerns the job. A variable that is there and cannot be read hides what others tell of
that: a wrong number is worse than none.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rdzv_core.text import printable

from .facts import OF_PLACE, Fact, Platform, Source

_MOST: Final = 8 << 20
"""Bytes of a file that are read at most."""


def in_words(names: Sequence[str]) -> str:
    """The names of a source as a user reads them."""
    return ", ".join(f"the file of {name.partition('/')[0]}" if name.endswith("/file") else name for name in names)


@dataclass(frozen=True)
class Taken:
    """A fact.

    Attributes:
        value: What it is.
        names: Where that stands.
        platform: Whose word it is.
    """

    value: Any
    names: tuple[str, ...]
    platform: str

    @property
    def source(self) -> str:
        """Where it stands, in words."""
        return in_words(self.names)


@dataclass(frozen=True)
class Ignored:
    """What stands in the environment and is not taken."""

    name: str
    reason: str


@dataclass(frozen=True)
class Found:
    """What an environment tells.

    Attributes:
        platforms: The rows that are there, the innermost first.
        facts: What they tell.
        ignored: What they do not.
    """

    platforms: tuple[Platform, ...] = ()
    facts: Mapping[Fact, Taken] = field(default_factory=dict)
    ignored: tuple[Ignored, ...] = ()

    def get(self, fact: Fact) -> Any:
        """The value of a fact; None: it is not known."""
        return self.facts[fact].value if fact in self.facts else None

    def unread(self, *facts: Fact) -> str:
        """What tells of these facts and could not be read, each with the reason, in brackets; empty: nothing."""
        unknown = tuple(f"{fact.value}: " for fact in facts if fact not in self.facts)
        found = [f"{one.name}: {one.reason}" for one in self.ignored if one.reason.startswith(unknown)]
        return f" ({'; '.join(found)})" if found else ""

    @property
    def names(self) -> str:
        """The names of the platforms."""
        return " in ".join(platform.name for platform in self.platforms)

    @property
    def is_launched(self) -> bool:
        """Whether one of them has started a process on every node."""
        return any(platform.launches for platform in self.platforms)

    @property
    def advice(self) -> str:
        """What a user does where none of them has; empty: that is not known."""
        return next((platform.advice for platform in self.platforms if platform.advice), "")


def detect(
    environ: Mapping[str, str], table: Sequence[Platform], read_file: Callable[[str], str] | None = None
) -> Found:
    """What an environment tells.

    Args:
        environ: The variables.
        table: The rows, the innermost first.
        read_file: Gives the text of a file; OSError: it cannot be read.
    """
    reading = _Reading(environ, read_file or _text_of)
    here = tuple(reading.rows(table))
    for fact in Fact:
        reading.take(fact, here if fact in OF_PLACE else here[::-1])
    for platform in here:
        for name, reason in platform.ignored.items():
            if environ.get(name):
                reading.ignored.append(Ignored(name, reason))
    return Found(here, reading.facts, tuple(dict.fromkeys(reading.ignored)))


def _text_of(path: str) -> str:
    # To open another thing than a file, such as a pipe, may take for ever.
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is no file")
    with Path(path).open(encoding="utf-8") as file:
        return file.read(_MOST)


@dataclass
class _Reading:
    environ: Mapping[str, str]
    read_file: Callable[[str], str]
    facts: dict[Fact, Taken] = field(default_factory=dict)
    ignored: list[Ignored] = field(default_factory=list)

    def rows(self, table: Sequence[Platform]) -> Iterator[Platform]:
        """Those that are there, one of each family."""
        families = set()
        for platform in table:
            family = platform.family or platform.name
            if family not in families and self._is_here(platform):
                families.add(family)
                yield platform

    def _is_here(self, platform: Platform) -> bool:
        for name, pattern in platform.tells.items():
            if not any(re.fullmatch(pattern, self.environ[each]) for each in self._matching(name)):
                return False
        for name, reason in platform.unless.items():
            if self.environ.get(name):
                self.ignored += (Ignored(each, reason) for each in platform.tells if reason)
                return False
        return True

    def take(self, fact: Fact, here: Sequence[Platform]) -> None:
        """Take a fact from the first row that tells it, or say why it cannot be read."""
        known: Taken | Ignored | None = None
        for platform in sorted(here, key=lambda one: not one.comes_first):
            for source in platform.facts.get(fact, ()):
                if not (names := self._names(source)):
                    continue
                if known is None:
                    known = self._read(fact, source, names, platform)
                elif isinstance(known, Taken) and known.platform != platform.name and known.names != names:
                    self.ignored.append(Ignored(in_words(names), f"{fact.value}: {known.source} comes before it"))
        if isinstance(known, Taken):
            self.facts[fact] = known
        elif known is not None:
            self.ignored.append(known)

    def _read(self, fact: Fact, source: Source, names: tuple[str, ...], platform: Platform) -> Taken | Ignored | None:
        """What a source tells, or why it cannot be read; None: it does not tell."""
        try:
            value = source.read(*map(self._text, names))
        except Exception as error:
            # A site's own reader may raise anything; whatever it is, the fact is not known.
            why = str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"
            return Ignored(in_words(names), f"{fact.value}: {printable(why)}")
        return None if value is None else Taken(value, names, platform.name)

    def _names(self, source: Source) -> tuple[str, ...]:
        """What a source needs, by its names; empty: not all of it is there."""
        found = []
        for name in source.names:
            variable, _, is_file = name.partition("/")
            if not variable:
                found.append(name)
            elif not (matching := self._matching(variable)):
                return ()
            else:
                found += [f"{each}/{is_file}" if is_file else each for each in matching]
        return tuple(found)

    def _matching(self, name: str) -> list[str]:
        """The variables of a name, or of a pattern of names, that are set."""
        if name.isidentifier():
            return [name] if self.environ.get(name) else []
        pattern = re.compile(name)
        return [each for each, value in self.environ.items() if value and pattern.fullmatch(each)]

    def _text(self, name: str) -> str:
        variable, slash, _ = name.partition("/")
        if not slash:
            return self.environ[name]
        return self.read_file(self.environ[variable] if variable else name)
