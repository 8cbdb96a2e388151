"""The samples as tables: of text for a terminal, of Markdown for the documentation."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .rows import ROWS
from .samples import Samples

__all__ = ["Table", "tables"]


class _Column(NamedTuple):
    """One column for each number of nodes with which the measure was taken; the heading may name that number.

    Attributes:
        heading: What stands above.
        measure: Of what.
        unit: In what.
        per: What counts as one of them.
    """

    heading: str
    measure: str
    unit: str = ""
    per: float = 1


_TABLES: Final = {
    "Gathering: seconds from the first call to the last return": [_Column("{:,}", "gather")],
    "Round two, for which all nodes come back: seconds": [_Column("{:,}", "again-gather")],
    "Client CPU per node: milliseconds, round one": [_Column("{:,}", "cpu")],
    "Client CPU per node: milliseconds, round two": [_Column("{:,}", "again-cpu")],
    "Calls to the service per node, to connect and look": [_Column("{:,}", "connect-calls")],
    "Calls to the service per node, round one": [_Column("{:,}", "calls")],
    "Calls to the service per node, round two": [_Column("{:,}", "again-calls")],
    "Kilobytes per node, both ways, to connect and look": [_Column("{:,}", "connect-kb")],
    "Kilobytes per node, both ways, round one": [_Column("{:,}", "kb")],
    "Kilobytes per node, both ways, round two": [_Column("{:,}", "again-kb")],
    "What happens to a world, and what its store does": [
        _Column("a member is killed", "loss", " s"),
        _Column("a spare takes its place", "spare", " s"),
        _Column("a node comes late", "late", " s"),
        _Column("store: set", "store-set", "/s"),
        _Column("store: get", "store-get", "/s"),
        _Column("store: add", "store-add", "/s"),
    ],
    "T, from the death of a member to the moment at which all others know of it": [
        _Column("TTL 3 s", "death-3", " s"),
        _Column("T/TTL", "death-3", per=3),
        _Column("TTL 30 s", "death-30", " s"),
        _Column("T/TTL", "death-30", per=30),
    ],
    "Round trips, one after the other, until all of 4 nodes know their world": [
        _Column("all at once", "trips-all-at-once"),
        _Column("all come back", "trips-all-come-back"),
        _Column("the last arrives: known", "trips-known"),
        _Column("the last arrives: first call", "trips-first-call"),
        _Column("the last arrives: from nothing", "trips-from-nothing"),
    ],
    "Members with nothing to do, per node; the server's CPU s/min for all": [
        _Column("calls/s, {} nodes", "idle-calls"),
        _Column("KB/s, {} nodes", "idle-kb"),
        _Column("CPU s/min, {} nodes", "idle-cpu"),
        _Column("server, {} nodes", "idle-server"),
    ],
    "What a process pays for the import": [_Column("import", "import", " s"), _Column("memory", "memory", " MB")],
    "Processors that others used, before each measurement": [
        _Column(f"{name} {{:,}}", f"load-{name}")
        for name in ("gather", "start", "store", "late", "loss", "death", "spare", "trips", "idle")
    ],
}


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it is of.
        headings: Of its columns.
        lines: Its cells.
    """

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]

    def text(self) -> str:
        """For a terminal."""
        widths = [max(map(len, column)) for column in zip(self.headings, *self.lines, strict=True)]
        rows = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (self.headings, *self.lines)
        ]
        return "\n".join([self.title, "-" * len(self.title), *rows, ""])

    def markdown(self) -> str:
        """For the documentation: without a heading, which could not stand in a folded part."""
        rows = [self.headings, ["---"] * len(self.headings), *self.lines]
        return "\n".join([f"**{self.title}**", "", *(f"| {' | '.join(row)} |" for row in rows)])


def tables(samples: Samples) -> list[Table]:
    """Every table for which there is something."""
    every = [_table(samples, title, columns) for title, columns in _TABLES.items()]
    return [table for table in every if table.lines]


def number(value: float) -> str:
    """Three digits that mean something, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(f"{value:e}".partition("e")[2]))
    return f"{value:.{min(digits, 4)}f}"


def _table(samples: Samples, title: str, columns: Sequence[_Column]) -> Table:
    cells = [(column, nodes) for column in columns for nodes in samples.sizes(column.measure)]
    known = {row for column in columns for row in samples.rows(column.measure)}
    rows = [row for row in ROWS if row in known]
    lines = [[row, *(_cell(samples, row, column, nodes) for column, nodes in cells)] for row in rows]
    return Table(title, ["row", *(column.heading.format(nodes) for column, nodes in cells)], lines)


def _cell(samples: Samples, row: str, column: _Column, nodes: int) -> str:
    _, measure, unit, per = column
    values = [value / per for value in samples.values(row, measure, nodes)]
    reason = samples.reason(row, measure, nodes)
    if not values:
        return reason or _why_empty(samples, row, measure, nodes)
    shown = f"{number(statistics.median(values))}{unit}"
    if len(values) > 1:
        shown += f" ({number(min(values))} to {number(max(values))})"
    return f"{shown}; once {reason}" if reason else shown


def _why_empty(samples: Samples, row: str, measure: str, nodes: int) -> str:
    if "kb" in measure and row == "rdzv/sqlite":
        return "no network"
    if measure == "idle-server" and row == "rdzv/sqlite":
        return "no server"
    # What is measured together has one reason.
    whole = {"idle": "idle-calls", "store": "store-set", "trips": "trips-all-at-once"}.get(measure.partition("-")[0])
    together = [whole] if whole else ["gather", "again-gather", "import"]
    reasons = (samples.reason(row, one, nodes) for one in together)
    return next(filter(None, reasons), "not measured")
