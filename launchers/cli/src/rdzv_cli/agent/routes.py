"""Where the output of each process goes: to the console, to a file, to both or nowhere, as by torchrun's options."""

import argparse
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final, NamedTuple

from rdzv_core.text import printable

_FOR_ALL: Final = r"[0-3]"
_BY_RANK: Final = r"\d{1,4}:[0-3](,\d{1,4}:[0-3])*"
_RANKS: Final = r"\d{1,4}(,\d{1,4})*"


class Std(IntFlag):
    """The streams of a process, by the numbers that torchrun gives to them."""

    NONE = 0
    OUT = 1
    ERR = 2

    @property
    def file(self) -> str:
        """The name of its file, for one stream."""
        return {Std.OUT: "stdout.log", Std.ERR: "stderr.log"}[self]


STREAMS: Final = (Std.OUT, Std.ERR)


@dataclass(frozen=True)
class Choice:
    """Streams that are chosen: `every` of each process, unless `by_rank` says it for each local rank."""

    every: Std = Std.NONE
    by_rank: Mapping[int, Std] = field(default_factory=dict)

    def of(self, local_rank: int) -> Std:
        """Those of one process."""
        return self.by_rank.get(local_rank, self.every)


NOTHING: Final = Choice()


class Route(NamedTuple):
    """Where one stream goes."""

    console: bool
    file: bool


@dataclass(frozen=True)
class Routes:
    """Where all streams go.

    Attributes:
        redirects: The streams that go to files in the place of the console.
        tee: Those that go to both.
        shown: The local ranks that the console shows; none: it shows all.
    """

    redirects: Choice = NOTHING
    tee: Choice = NOTHING
    shown: Collection[int] = ()

    def strangers(self, processes: int) -> list[int]:
        """The local ranks that are named and that none of so many processes has."""
        named = {*self.redirects.by_rank, *self.tee.by_rank, *self.shown}
        return sorted(rank for rank in named if rank >= processes)

    def of(self, local_rank: int, stream: Std) -> Route:
        """Where a stream of a process goes."""
        teed, redirected = stream in self.tee.of(local_rank), stream in self.redirects.of(local_rank)
        is_shown = not self.shown or local_rank in self.shown
        return Route(console=is_shown and (teed or not redirected), file=teed or redirected)


def parse_choice(text: str) -> Choice:
    """The streams that ``--redirects`` and ``--tee`` name, for argparse."""
    if re.fullmatch(_FOR_ALL, text):
        return Choice(Std(int(text)))
    if re.fullmatch(_BY_RANK, text):
        pairs = (pair.split(":") for pair in text.split(","))
        return Choice(by_rank={int(rank): Std(int(streams)) for rank, streams in pairs})
    raise argparse.ArgumentTypeError(
        f"'{printable(text)}' names no streams; write 0 (none), 1 (standard output), 2 (standard error) or 3 (both), "
        "or one of these for each local rank, as in 0:3,1:2"
    )


def parse_ranks(text: str) -> tuple[int, ...]:
    """The local ranks of ``--local-ranks-filter``, for argparse."""
    if not re.fullmatch(_RANKS, text):
        raise argparse.ArgumentTypeError(f"'{printable(text)}' are no local ranks; write them as in 0,1")
    return tuple(map(int, text.split(",")))
