"""What was measured in one run."""

import json
import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Final, NamedTuple, Self

__all__ = ["Sample", "Samples"]


_REASON: Final = 80
"""Characters of a reason: it stands in a table."""


class Sample(NamedTuple):
    """One figure, or why there is none.

    Attributes:
        row: Of whom.
        measure: Of what; see `tables.py`.
        nodes: With how many nodes.
        value: The figure; None: there is none.
        reason: Why there is none.
    """

    row: str
    measure: str
    nodes: int
    value: float | None
    reason: str = ""


@dataclass
class Cell:
    """The figures of one row, measure and number of nodes, and why there are not more."""

    values: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


class Samples:
    """All figures of a run.

    Attributes:
        about: What else is to be known of the run: texts, by name.
    """

    def __init__(self, about: dict[str, str]) -> None:
        self.about = about
        self._cells: defaultdict[tuple[str, str, int], Cell] = defaultdict(Cell)

    def add(self, sample: Sample) -> None:
        """Keep a figure."""
        cell, reason = self._cells[sample[:3]], shorten(sample.reason, _REASON)
        if sample.value is not None:
            cell.values.append(float(f"{sample.value:.4g}"))
        elif reason not in cell.reasons:
            cell.reasons.append(reason)

    def values(self, row: str, measure: str, nodes: int) -> list[float]:
        """The figures of one cell."""
        return self._cell(row, measure, nodes).values

    def reason(self, row: str, measure: str, nodes: int) -> str:
        """Why a cell has no figure, or not as many as others; empty if nothing was said."""
        return next(iter(self._cell(row, measure, nodes).reasons), "")

    def median(self, row: str, measure: str, nodes: int) -> float | None:
        """The median of the figures of one cell; None if there are none."""
        values = self.values(row, measure, nodes)
        return statistics.median(values) if values else None

    def rows(self, measure: str | None = None) -> list[str]:
        """The rows for which something is known: of a measure, or of any."""
        return list(dict.fromkeys(row for row, name, _ in self._cells if measure in (None, name)))

    def measures(self) -> list[str]:
        """What was measured."""
        return list(dict.fromkeys(measure for _, measure, _ in self._cells))

    def sizes(self, measure: str) -> list[int]:
        """The numbers of nodes with which something was measured."""
        return sorted({nodes for _, name, nodes in self._cells if name == measure})

    def save(self, path: Path) -> None:
        """Write everything to a file, a line for each cell."""
        cells = ",\n".join(json.dumps([*key, cell.values, cell.reasons]) for key, cell in self._cells.items())
        path.write_text(f'{{"about": {json.dumps(self.about, indent=1)},\n"cells": [\n{cells}\n]}}\n')

    @classmethod
    def load(cls, *paths: Path) -> Self:
        """Read what `save` wrote; of what several runs have measured, the last."""
        samples = cls({})
        for content in (json.loads(path.read_text()) for path in paths):
            for name, text in content["about"].items():
                said = samples.about.get(name, text)
                samples.about[name] = said if text in said else f"{said}; {text}"
            samples._cells.update({(row, name, nodes): Cell(*rest) for row, name, nodes, *rest in content["cells"]})
        return samples

    def _cell(self, row: str, measure: str, nodes: int) -> Cell:
        return self._cells.get((row, measure, nodes)) or Cell()
