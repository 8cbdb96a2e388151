"""What was measured."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

__all__ = ["Sample", "Samples"]


@dataclass(frozen=True)
class Sample:
    """One figure, or why there is none.

    Attributes:
        row: Of whom.
        measure: Of what; see `report.py`.
        nodes: With how many nodes.
        value: The figure; None: there is none.
        reason: Why there is none.
    """

    row: str
    measure: str
    nodes: int
    value: float | None
    reason: str = ""


class Samples:
    """All figures of a run, in the order in which they were measured."""

    def __init__(self, samples: Iterable[Sample] = (), about: dict[str, str] | None = None) -> None:
        self._samples = list(samples)
        self.about = about or {}
        """What else is to be known of the run: texts, by name."""

    def add(self, sample: Sample) -> None:
        """Keep a figure."""
        self._samples.append(sample)

    def values(self, row: str, measure: str, nodes: int) -> list[float]:
        """The figures of one cell."""
        return [sample.value for sample in self._at(row, measure, nodes) if sample.value is not None]

    def reason(self, row: str, measure: str, nodes: int) -> str:
        """Why a cell has no figure, or not as many as others; empty if nothing was said."""
        return next((sample.reason for sample in self._at(row, measure, nodes) if sample.value is None), "")

    def median(self, row: str, measure: str, nodes: int) -> float | None:
        """The median of the figures of one cell; None if there are none."""
        values = self.values(row, measure, nodes)
        return statistics.median(values) if values else None

    def rows(self, measure: str | None = None) -> list[str]:
        """The rows for which something is known: of a measure, or of any."""
        return list(dict.fromkeys(sample.row for sample in self._samples if measure in (None, sample.measure)))

    def sizes(self, measure: str) -> list[int]:
        """The numbers of nodes with which something was measured."""
        return sorted({sample.nodes for sample in self._samples if sample.measure == measure})

    def save(self, path: Path) -> None:
        """Write everything to a file."""
        content = {"about": self.about, "samples": [asdict(sample) for sample in self._samples]}
        path.write_text(json.dumps(content, indent=0))

    @classmethod
    def load(cls, *paths: Path) -> Self:
        """Read what `save` wrote, of one run or of several that measured different things."""
        contents = [json.loads(path.read_text()) for path in paths]
        samples = [Sample(**sample) for content in contents for sample in content["samples"]]
        return cls(samples, {name: text for content in contents for name, text in content["about"].items()})

    def _at(self, row: str, measure: str, nodes: int) -> list[Sample]:
        return [s for s in self._samples if (s.row, s.measure, s.nodes) == (row, measure, nodes)]
