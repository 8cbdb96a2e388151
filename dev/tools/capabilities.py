#!/usr/bin/env python3
"""Writes the tables of docs/capabilities.md from the reports of the conformance suite.

python3 dev.py capabilities            runs the suite on every plugin, and writes what it found
python3 dev.py capabilities consul     runs it on this one; the others' last reports are kept in .nox/reports

What stands between the page's marks is replaced; the rest is written by hand.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rdzv_core import Capability

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "capabilities.md"
GOOD: Final = ("passed", "unsupported", "not tried", "deviating")
"""How a test may end; any other end keeps the page from being written."""


@dataclass(frozen=True)
class Declared:
    """What a backend says of itself.

    Attributes:
        name: The backend's name.
        capabilities: The names of the capabilities that it declares.
        unsupported: The reason for each other one.
    """

    name: str
    capabilities: frozenset[str]
    unsupported: Mapping[str, str]


@dataclass(frozen=True)
class Found:
    """What the suite found of one test class.

    Attributes:
        suite: The version of the suite.
        declared: What the backend says of itself.
        test: The class.
        untried: The names of the capabilities that are declared, and that no test was about.
        tests: Outcome and reason of each test.
        features: What each feature does that a test of the suite shows, and how that test ended.
    """

    suite: str
    declared: Declared
    test: str
    untried: frozenset[str]
    tests: Mapping[str, Mapping[str, str]]
    features: Mapping[str, Mapping[str, str]]

    def counts(self) -> list[int]:
        """How many tests ended in which of the good ways."""
        ends = Counter(end["outcome"] for end in self.tests.values())
        return [ends[end] for end in GOOD]


def read_report(path: Path) -> list[Found]:
    """What is in a report.

    Raises:
        ValueError: A test failed or was skipped, or nothing was tested at all.
    """
    if not path.exists():
        raise ValueError(f"There is no report of {path.stem} yet.")
    report = json.loads(path.read_text())
    if not report["backends"]:
        raise ValueError(f"{path.stem}: the suite tested nothing.")
    found = [_read_class(report["suite"], backend) for backend in report["backends"]]
    for one in found:
        bad = [
            f"{test}: {end['outcome']} {end['reason']}" for test, end in one.tests.items() if end["outcome"] not in GOOD
        ]
        if bad:
            raise ValueError("\n".join([f"{one.declared.name} ({one.test}) does not pass:", *bad]))
    return found


def _read_class(suite: str, backend: Mapping[str, Any]) -> Found:
    declared = Declared(backend["name"], frozenset(backend["capabilities"]), backend["unsupported"])
    test = backend["test"].rpartition("::")[2]
    return Found(suite, declared, test, frozenset(backend["untried"]), backend["tests"], backend.get("features", {}))


def capabilities(backends: Iterable[Declared]) -> str:
    """Which backend declares what, and the reasons for what is unsupported."""
    backends = sorted(backends, key=lambda backend: backend.name)
    header = ["", *(backend.name for backend in backends)]
    rows = [
        [f"`{one.name}` {one.value}", *("yes" if one.name in backend.capabilities else "no" for backend in backends)]
        for one in Capability
    ]
    reasons = [
        f"* **{backend.name}** has no `{one.name}`: {backend.unsupported[one.name].rstrip('.')}."
        for backend in backends
        for one in Capability
        if one.name in backend.unsupported
    ]
    return "\n".join([_table(header, rows), "", *reasons])


def features(found: Iterable[Found]) -> str:
    """Which feature works on which backend."""
    rows: dict[str, dict[str, str]] = {}
    what: dict[str, str] = {}
    for one in found:
        for name, shown in one.features.items():
            what[name] = shown["what"]
            ends = rows.setdefault(name, {})
            # A backend has several test classes, such as for a TCPStore and a FileStore: it works if it works on all.
            if ends.get(one.declared.name, "yes") == "yes":
                ends[one.declared.name] = "yes" if shown["outcome"] == "passed" else shown["outcome"]
    backends = sorted({backend for ends in rows.values() for backend in ends})
    cells = {name: [ends.get(one, "not tried") for one in backends] for name, ends in sorted(rows.items())}
    return _table(["", *backends], [[f"`{name}` {what[name]}", *cells[name]] for name in cells])


def results(found: Iterable[Found]) -> str:
    """How the tests of every class ended, what deviates, and what the suite cannot try."""
    found = sorted(found, key=lambda one: (one.declared.name, one.test))
    versions = ", ".join(sorted({one.suite for one in found}))
    header = ["backend", "test class", *GOOD]
    rows = [[one.declared.name, f"`{one.test}`", *map(str, one.counts())] for one in found]
    deviations = [
        f"* **{one.declared.name}** deviates in `{test}`: {end['reason']}"
        for one in found
        for test, end in one.tests.items()
        if end["outcome"] == "deviating"
    ]
    untried = [f"* {name}: {', '.join(f'`{one}`' for one in left)}" for name, left in _untried(found) if left]
    parts = [f"With rdzv-conformance {versions}:", _table(header, rows), "\n".join(deviations)]
    if untried:
        parts += ["Declared, and beyond the suite's reach (the plugin's own tests try it):", "\n".join(untried)]
    return "\n\n".join(filter(None, parts))


def _untried(found: Iterable[Found]) -> Iterator[tuple[str, list[str]]]:
    """What every backend declares and none of its classes has tried."""
    by_name: dict[str, list[frozenset[str]]] = {}
    for one in found:
        by_name.setdefault(one.declared.name, []).append(one.untried)
    for name, untried in by_name.items():
        yield name, sorted(frozenset.intersection(*untried))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows))


def section(page: str, name: str) -> str:
    """What stands between the marks of this name."""
    return _marks(name).split(page)[2].strip("\n")


def fill(page: str, name: str, text: str) -> str:
    """The page with this text between the marks of this name."""
    before, opening, _, closing, after = _marks(name).split(page)
    return f"{before}{opening}\n\n{text}\n\n{closing}{after}"


def _marks(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- generated: {name} -->)(.*?)(<!-- end -->)", re.DOTALL)


def main(paths: Sequence[str]) -> None:
    """Write the page, if every report is good."""
    try:
        found = [one for path in paths for one in read_report(Path(path))]
    except ValueError as error:
        sys.exit(f"{error}\n{PAGE.name} is left as it was.")
    by_name: dict[str, Declared] = {}
    for one in found:
        if by_name.setdefault(one.declared.name, one.declared) != one.declared:
            sys.exit(
                f"The test classes of '{one.declared.name}' declare different capabilities; a table has one column."
            )
    page = fill(PAGE.read_text(), "capabilities", capabilities(by_name.values()))
    page = fill(page, "features", features(found))
    PAGE.write_text(fill(page, "results", results(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
