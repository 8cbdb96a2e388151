"""What becomes of the output of a node's processes: who copies it in a round, and what is left of it at the end."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rdzv.shortages import outlast
from rdzv_core.text import printable

from ..log import place
from ..programs.copier import NOWHERE
from .copier import Copier, Order
from .guard import Streams
from .log_files import LogFiles, file_of, variables_of
from .options import JSON, AgentOptions
from .prefixes import USUAL, coloured, prefix
from .routes import STREAMS, Route, Routes, Std
from .shortages import REPLACED
from .tails import end_of, last_lines
from .workers import Output

_STALLED: Final = 2.0
"""Seconds that a console gets, between two rounds, to take what was written: no node waits for one that stalls."""

_TAIL: Final = 1.0
"""Seconds that the copier gets to tell how the output of a process ends."""

_SHOWN: Final = 600
"""Characters of these lines, at most: all nodes get them."""

_UNBUFFERED: Final = "PYTHONUNBUFFERED"


class _Source(NamedTuple):
    """A stream of one process."""

    local_rank: int
    stream: Std


class Outputs:
    """The output of one node in all rounds.

    Attributes:
        environment: The variables of every process that is started.
        say: Takes what the user should know.
        files: Those that some of the output goes to; None: none does.
        routes: Where each stream goes.
        copied: The streams for which a copier is needed.
        template: What stands before each line on the console.
    """

    def __init__(
        self, options: AgentOptions, run_id: str, environment: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        """Decide where it goes; nothing is made yet."""
        chosen = Routes(options.redirects, options.tee, options.local_ranks_filter)
        if options.log_dir == os.devnull:
            # As torchrun takes it: there are no files.
            chosen = Routes(shown=options.local_ranks_filter)
        if strangers := chosen.strangers(options.nproc_per_node):
            say(_unknown(strangers, options.nproc_per_node))
        sources = [_Source(rank, stream) for rank in range(options.nproc_per_node) for stream in STREAMS]
        self.environment = environment
        self.say = say
        self.routes: Mapping[_Source, Route] = {source: chosen.of(*source) for source in sources}
        has_files = any(route.file for route in self.routes.values()) or options.log_dir not in (None, os.devnull)
        self.files = LogFiles(options.log_dir, run_id) if has_files else None
        is_marked = options.prefix is not None or options.nproc_per_node > 1 or options.log_format == JSON
        self.copied = [source for source in sources if _is_copied(self.routes[source], source.stream, is_marked)]
        self.template = USUAL if options.prefix is None else options.prefix
        self._stalled: list[Copier] = []

    @contextlib.contextmanager
    def of_round(self, is_over: Callable[[], bool]) -> Iterator["RoundOutput"]:
        """The output of one round. In the end, all is written that is to come, unless the console stalls or it is over.

        Raises:
            OSError: The copier cannot be started.
        """
        copier = outlast(partial(Copier, self.environment, len(self.copied)), passing=REPLACED) if self.copied else None
        try:
            yield RoundOutput(self, copier)
        finally:
            if copier is not None and not copier.close(_STALLED, is_over):
                self._stalled.append(copier)

    def finish(self, is_over: Callable[[], bool]) -> None:
        """Wait until all is written, or it is over: what is not written then is so when the console takes it."""
        for copier in self._stalled:
            copier.close(math.inf, is_over)


class RoundOutput:
    """The output of one node in one round."""

    def __init__(self, outputs: Outputs, copier: Copier | None) -> None:
        """Copy nothing yet."""
        self._outputs = outputs
        self._copier = copier
        self._folders: Sequence[Path] = ()

    @property
    def pipes(self) -> Collection[int]:
        """Those that the guard has to have."""
        return self._copier.pipes if self._copier else ()

    @property
    def is_lost(self) -> bool:
        """Whether what is written has no reader any more, and may be lost without a word."""
        return self._copier is not None and self._copier.is_lost

    def hand_over(self) -> None:
        """Leave the pipes to the guard, which has them now."""
        if self._copier is not None:
            self._copier.hand_over()

    def start(self, number: int, environments: Sequence[Mapping[str, str]]) -> list[Output]:
        """Begin to copy; returns where each process is to write.

        Args:
            number: The round.
            environments: The variables of each process, some of which the prefix may name.

        Raises:
            OSError: There is no room for the files.
        """
        if self._outputs.files is not None:
            self._folders = self._outputs.files.of_round(number, len(environments))
            self._outputs.say(f"the files of this round are in {printable(str(self._folders[0].parent))}")
        if self._copier is not None:
            self._copier.copy([self._order(source, environments[source.local_rank]) for source in self._outputs.copied])
        pipes = dict(zip(self._outputs.copied, self.pipes, strict=True))
        return [
            Output(self._streams(rank, pipes), self._variables(rank), partial(self._last_lines, rank))
            for rank in range(len(environments))
        ]

    def _variables(self, local_rank: int) -> Mapping[str, str]:
        own = variables_of(self._folders[local_rank]) if self._folders else {}
        is_seen = any(source.local_rank == local_rank and os.isatty(source.stream) for source in self._outputs.copied)
        if is_seen and _UNBUFFERED not in self._outputs.environment:
            # On a terminal, Python shows each line at once, and would not to a pipe.
            own[_UNBUFFERED] = "1"
        return own

    def _last_lines(self, local_rank: int) -> str:
        """Those on its standard error, if there are any; empty: not known."""
        sources = [_Source(local_rank, stream) for stream in reversed(STREAMS)]
        copied = [source for source in sources if source in self._outputs.copied]
        ends = {source: self._end_of_file(source) for source in sources if source not in copied}
        if self._copier is not None and copied:
            which = [self._outputs.copied.index(source) for source in copied]
            ends |= zip(copied, self._copier.tails(which, _TAIL), strict=False)
        found = (last_lines(ends.get(source, b"")) for source in sources)
        return printable(next(filter(None, found), ""), _SHOWN)

    def _order(self, source: _Source, environment: Mapping[str, str]) -> Order:
        if not self._outputs.routes[source].console:
            return Order(NOWHERE, "", None, None)
        text = coloured(prefix(self._outputs.template, environment), source.local_rank, source.stream)
        return Order(source.stream, text, _names(source, environment), self._file(source))

    def _file(self, source: _Source) -> Path | None:
        return file_of(self._folders[source.local_rank], source.stream) if self._outputs.routes[source].file else None

    def _streams(self, local_rank: int, pipes: Mapping[_Source, int]) -> Streams:
        out, err = (self._stream(_Source(local_rank, stream), pipes) for stream in STREAMS)
        return out, err

    def _stream(self, source: _Source, pipes: Mapping[_Source, int]) -> int | Path | None:
        return pipes[source] if source in pipes else self._file(source)

    def _end_of_file(self, source: _Source) -> bytes:
        file = self._file(source) if self._folders else None
        if file is None:
            return b""
        try:
            with open(file, "rb") as written:
                return end_of(written)
        except OSError:
            return b""


def _names(source: _Source, environment: Mapping[str, str]) -> Mapping[str, object] | None:
    """What an object of JSON names for each line of a stream; None: lines are text."""
    own = {
        "rank": int(environment["RANK"]),
        "local_rank": source.local_rank,
        "stream": source.stream.file.split(".")[0],
    }
    return (named := place()) and {**named, **own}


def _unknown(ranks: Sequence[int], processes: int) -> str:
    """What is said of local ranks that no process has."""
    here = f"they are 0 to {processes - 1}" if processes > 1 else "it has 0 alone"
    named = ", ".join(map(str, ranks))
    return f"this node has no local rank {named}, as --local-ranks-filter, --tee or --redirects names it: {here}"


def _is_copied(route: Route, stream: Std, is_marked: bool) -> bool:
    """Whether a stream goes through a pipe: to a console that is closed, a process writes into the void, as ever.

    Of one that goes nowhere, as the user has chosen, the end is kept, in which may stand why its process has failed.
    """
    console = {Std.OUT: sys.stdout, Std.ERR: sys.stderr}[stream]
    if not (route.console or route.file):
        return True
    return route.console and (route.file or is_marked) and console is not None
