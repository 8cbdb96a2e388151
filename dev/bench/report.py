"""The whole report: as text, as a page of the documentation, and as files."""

from pathlib import Path

from .plots import PICTURES, bars, draw
from .samples import Samples
from .tables import Table, tables
from .targets import targets

__all__ = ["save", "text", "write_page"]

_BEGIN = "<!-- What follows is generated: python3 dev.py bench --docs -->"
_END = "<!-- End of what is generated. -->"


def text(samples: Samples) -> str:
    """For a terminal."""
    about = "\n".join(f"{name}: {value}" for name, value in samples.about.items())
    shown = [table.text() for table in (*tables(samples), *_targets(samples))]
    return "\n".join([about, "", *shown, *(bars(samples, *what) for what in PICTURES.values())])


def save(samples: Samples, folder: Path) -> None:
    """Write samples, text, Markdown and pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    samples.save(folder / "samples.json")
    (folder / "report.txt").write_text(text(samples))
    (folder / "report.md").write_text(_markdown(samples, "."))
    draw(samples, folder)


def write_page(samples: Samples, page: Path) -> None:
    """Put the report into the generated part of a page; its pictures go into a folder beside it, named like it."""
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no '{_BEGIN}' and '{_END}' between which the report could go.")
    pictures = page.with_suffix("")
    pictures.mkdir(exist_ok=True)
    draw(samples, pictures)
    page.write_text(f"{before}{begin}\n\n{_markdown(samples, pictures.name)}\n{end}{after}")


def _markdown(samples: Samples, folder: str) -> str:
    about = "\n".join(f"* {name}: {value}" for name, value in samples.about.items())
    pictures = [
        f"![{label}, by the number of nodes]({folder}/{name}.png)"
        for name, (measure, label) in PICTURES.items()
        if samples.rows(measure)
    ]
    return "\n\n".join([about, *pictures, *(table.markdown() for table in (*_targets(samples), *tables(samples)))])


def _targets(samples: Samples) -> list[Table]:
    lines = targets(samples)
    met = sum(judged == "met" for _, _, judged in lines)
    return [Table(f"Targets: {met} of {len(lines)} met", ["target", "measured", ""], lines)] if lines else []
