"""The samples as tables: of text for a terminal, of Markdown for the documentation."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .rows import ROWS, counted_by
from .samples import Samples

__all__ = ["Table", "tables"]


class _Column(NamedTuple):
    heading: str
    measure: str
    nodes: int
    unit: str = ""
    factor: float = 1.0


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it is of.
        headings: Of its columns.
        lines: Its cells.
        note: What else to know.
    """

    title: str
    headings: Sequence[str]
    lines: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """For a terminal."""
        widths = [max(map(len, column)) for column in zip(self.headings, *self.lines, strict=True)]
        rows = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (self.headings, *self.lines)
        ]
        return "\n".join([self.title, "-" * len(self.title), *rows, *([self.note] if self.note else []), ""])

    def markdown(self) -> str:
        """For the documentation."""
        rows = [self.headings, ["---"] * len(self.headings), *self.lines]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"### {self.title}\n\n{f'{self.note}{chr(10)}{chr(10)}' if self.note else ''}{table}\n"


def tables(samples: Samples) -> list[Table]:
    """Every table for which there is something."""
    every = [
        _by_size(samples, "Gathering: seconds from the first call to the last return", "gather", 1),
        _by_size(samples, "Round two, for which all nodes come back: seconds", "again-gather", 1),
        _by_size(samples, "Calls to the service per node, to connect and look", "connect-calls", 1),
        _by_size(samples, "Calls to the service per node, round one", "calls", 1),
        _by_size(samples, "Calls to the service per node, round two", "again-calls", 1),
        _by_size(samples, "Compare-and-sets that lost, per node, round one", "lost", 1),
        _by_size(samples, "Compare-and-sets that lost, per node, round two", "again-lost", 1),
        _by_size(samples, "Kilobytes per node, both ways, to connect and look", "connect-bytes", 1e-3),
        _by_size(samples, "Kilobytes per node, both ways, round one", "bytes", 1e-3),
        _by_size(samples, "Kilobytes per node, both ways, round two", "again-bytes", 1e-3),
        _events(samples),
        _idle(samples),
        _start(samples),
        _counted(samples),
    ]
    return [table for table in every if table.lines]


def number(value: float) -> str:
    """Three digits that mean something, without an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - int(f"{value:e}".partition("e")[2]))
    return f"{value:.{min(digits, 4)}f}"


def _by_size(samples: Samples, title: str, measure: str, factor: float) -> Table:
    sizes = samples.sizes(measure)
    return _table(samples, title, [_Column(str(size), measure, size, factor=factor) for size in sizes])


def _events(samples: Samples) -> Table:
    columns = [
        _Column("a member is killed", "loss", 4, " s"),
        _Column("a node comes late", "late", 4, " s"),
        _Column("store: set", "store-set", 2, "/s"),
        _Column("get", "store-get", 2, "/s"),
        _Column("add", "store-add", 2, "/s"),
    ]
    return _table(samples, "What happens to a world, and what its store does", columns)


def _idle(samples: Samples) -> Table:
    measures = ("calls/s", "idle-calls"), ("bytes/s", "idle-bytes"), ("CPU s/min", "idle-cpu")
    columns = [
        _Column(f"{heading}, {size} nodes", measure, size)
        for heading, measure in measures
        for size in samples.sizes(measure)
    ]
    server = [_Column(f"server, {size} nodes", "idle-server", size) for size in samples.sizes("idle-server")]
    return _table(samples, "Members with nothing to do, per node; the server's CPU s/min for all", [*columns, *server])


def _start(samples: Samples) -> Table:
    columns = [_Column("import", "import", 1, " s"), _Column("memory", "memory", 1, " MB")]
    return _table(samples, "What a process pays for the import", columns)


def _counted(samples: Samples) -> Table:
    rows = samples.rows("calls")
    return Table("How calls were counted", ["row", "counted"], [[row, counted_by(ROWS[row])] for row in rows])


def _table(samples: Samples, title: str, columns: list[_Column]) -> Table:
    known = [column for column in columns if samples.rows(column.measure)]
    rows = [row for row in ROWS if known and row in samples.rows()]
    lines = [[row, *(_cell(samples, row, column) for column in columns)] for row in rows]
    return Table(title, ["row", *(column.heading for column in columns)], lines)


def _cell(samples: Samples, row: str, column: _Column) -> str:
    measure, nodes, unit, factor = column[1:]
    values = [value * factor for value in samples.values(row, measure, nodes)]
    reason = samples.reason(row, measure, nodes)
    if not values:
        return reason or _why_empty(row, measure)
    shown = f"{number(statistics.median(values))}{unit}"
    if len(values) > 1:
        shown += f" ({number(min(values))} to {number(max(values))})"
    return f"{shown}; once {reason}" if reason else shown


def _why_empty(row: str, measure: str) -> str:
    if row == "rdzv/sqlite" and ("bytes" in measure or measure == "idle-server"):
        return "no network" if "bytes" in measure else "no server"
    return "-"
