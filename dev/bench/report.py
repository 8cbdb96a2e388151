"""The whole report: as text, as files, and as the generated parts of a page of the documentation."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .goals import goals
from .plots import PICTURES, draw
from .quiet import BOUND
from .samples import Samples
from .tables import tables

__all__ = ["PAGE", "RESULTS", "fill_page", "save", "text", "write_page"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "benchmark.md"
RESULTS: Final = PAGE.with_suffix("") / "results.json"
_GOALS: Final = RESULTS.with_name("goals.toml")
_SHOWN: Final = 3
"""How many measurements beside other work are named; the table of loads has all."""


def text(samples: Samples) -> str:
    """For a terminal."""
    return "\n".join(
        [_about(samples), _quiet(samples), "", *(table.text() for table in (*tables(samples), goals(samples, _GOALS)))]
    )


def save(samples: Samples, folder: Path) -> None:
    """Write samples, text and pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    samples.save(folder / "results.json")
    (folder / "report.txt").write_text(text(samples))
    draw(samples, folder)


def write_page(samples: Samples) -> None:
    """Put the report into the page, and the results and the pictures beside it."""
    samples.save(RESULTS)
    draw(samples, RESULTS.parent)
    PAGE.write_text(fill_page(PAGE.read_text(), samples))


def fill_page(page: str, samples: Samples) -> str:
    """The page with its generated parts made anew; what is written by hand stays."""
    summary = goals(samples, _GOALS)
    gather, *others = (
        f"![{what}, by the number of nodes](benchmark/{name}.png)" for name, (_, what) in PICTURES.items()
    )
    parts = {
        "goals": [gather, f"Measured: {samples.about['measured']}. {_quiet(samples)}", summary.markdown()],
        "results": [_about(samples), *others, *(table.markdown() for table in tables(samples))],
    }
    for name, blocks in parts.items():
        mark = re.compile(rf"(<!-- generated: {name} -->)(.*?)(<!-- end -->)", re.DOTALL)
        before, opening, _, closing, after = mark.split(page)
        page = "\n\n".join([f"{before}{opening}", *blocks, f"{closing}{after}"])
    return page


def _about(samples: Samples) -> str:
    return "\n".join(f"* {name}: {value}" for name, value in samples.about.items())


def _quiet(samples: Samples) -> str:
    """Whether nothing else ran, in a sentence."""
    loads = [(load, f"{row} {what} {nodes}") for row, what, nodes, load in _loads(samples)]
    busy = sorted((one for one in loads if one[0] > BOUND), reverse=True)
    if not loads:
        return "How busy the machine was is not known."
    if not busy:
        return f"Quiet: others used at most {BOUND} processors before each of {len(loads)} measurements."
    first = ", ".join(f"{what} ({load:.1f})" for load, what in busy[:_SHOWN])
    more = ", ..." if len(busy) > _SHOWN else ""
    return (
        f"Not quiet: others used more than {BOUND} processors before {len(busy)} of {len(loads)} measurements: "
        f"{first}{more}."
    )


def _loads(samples: Samples) -> Iterator[tuple[str, str, int, float]]:
    """Row, group, nodes and load of each measurement."""
    for measure in (name for name in samples.measures() if name.startswith("load-")):
        for row in samples.rows(measure):
            for nodes in samples.sizes(measure):
                for load in samples.values(row, measure, nodes):
                    yield row, measure.removeprefix("load-"), nodes, load
