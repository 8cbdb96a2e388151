"""What the suite found, per backend and topic: for the end of the terminal, and as JSON for programs."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

from .suite.base import DECLARED, VERDICT, Verdict

_TOPIC: Final = "rdzv_topic"
_FEATURE: Final = "rdzv_feature"
_OPTIONAL: Final = ("deleting", "creating")
"""The topics of optional methods that are no capability."""
_OUTCOMES: Final = ("passed", "unsupported", "not tried", "deviating", "skipped", "failed")
_TRIED: Final = frozenset({"passed", "deviating", "failed"})


@dataclass
class _Result:
    """One test."""

    topic: str
    outcome: str
    reason: str
    feature: tuple[str, str] | None = None


@dataclass
class _Backend:
    """One test class, which stands for one backend."""

    declared: dict[str, Any] = field(default_factory=dict)
    results: dict[str, _Result] = field(default_factory=dict)
    not_needed: set[str] = field(default_factory=set)

    def topics(self) -> dict[str, dict[str, int]]:
        """How many tests of each topic ended how."""
        topics: dict[str, Counter[str]] = {}
        for result in self.results.values():
            topics.setdefault(result.topic, Counter())[result.outcome] += 1
        return {topic: {one: counts[one] for one in _OUTCOMES if counts[one]} for topic, counts in topics.items()}

    def tried(self, topic: str) -> bool:
        """Whether a test of a topic was run."""
        return any(one.topic == topic and one.outcome in _TRIED for one in self.results.values())

    def untried(self) -> list[str]:
        """The capabilities that are declared, and that no test of this run was about."""
        return [name for name in self.declared.get("capabilities", ()) if not self.tried(name)]

    def features(self) -> dict[str, dict[str, str]]:
        """What each feature of rdzv does, and how its test ended."""
        return {
            result.feature[0]: {"what": result.feature[1], "outcome": result.outcome}
            for result in self.results.values()
            if result.feature
        }

    def remarks(self) -> Iterator[str]:
        """What a reader of the summary should know."""
        if self.not_needed:
            count = len(self.not_needed)
            tests = "1 skipped test is" if count == 1 else f"{count} skipped tests are"
            yield f"{tests} about the lack of what it has"
        for capability, reason in self.declared.get("unsupported", {}).items():
            yield f"has no {capability}: {reason}"
        # Optional, and no capability: a backend gives no reason of its own.
        optional = (one for one in self.results.values() if one.topic in _OPTIONAL and one.outcome == "unsupported")
        yield from dict.fromkeys(one.reason for one in optional)
        if untried := self.untried():
            yield f"declares {', '.join(untried)}: nothing here has tried it"
        for reason in dict.fromkeys(one.reason for one in self.results.values() if one.outcome == "not tried"):
            yield f"not tried: {reason}"
        if reason := self.declared.get("no_server"):
            yield f"has no server to stop: {reason}"
        if delay := self.declared.get("lease_delay"):
            yield f"ends leases up to {delay[0]} s later than a second after their time: {delay[1]}"
        for test, result in self.results.items():
            if result.outcome == "deviating":
                yield f"deviates in {test}: {result.reason}"


class Report:
    """Collects the suite's results from pytest's reports, whichever process ran the tests."""

    def __init__(self) -> None:
        self._backends: dict[str, _Backend] = {}

    @staticmethod
    def assign(item: pytest.Item, module: str) -> None:
        """Have the reports of a test of the suite tell its feature, and its topic: its capability, else its file."""
        marks = [mark for name in ("rdzv_requires", "rdzv_lacks") for mark in item.iter_markers(name)]
        item.user_properties.append((_TOPIC, marks[0].args[0].name if marks else module))
        item.user_properties += [(_FEATURE, mark.args) for mark in item.iter_markers("rdzv_feature")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in one phase of one test."""
        properties: dict[str, Any] = dict(report.user_properties)
        if _TOPIC not in properties:
            return
        node, _, test = report.nodeid.rpartition("::")
        backend = self._backends.setdefault(node, _Backend())
        if properties.get(VERDICT) == Verdict.NOT_NEEDED:
            backend.not_needed.add(test)
            return
        backend.declared = properties.get(DECLARED, backend.declared)
        outcome, reason = _outcome(report, properties)
        if outcome and backend.results.get(test, _Result("", "passed", "")).outcome != "failed":
            feature = properties.get(_FEATURE)
            backend.results[test] = _Result(properties[_TOPIC], outcome, reason, tuple(feature) if feature else None)

    def _has_no_line(self, backend: _Backend) -> bool:
        """Whether a backend has a server that was stopped, and no class of this run broke the line to it."""
        name = backend.declared.get("name")
        lines = (one for one in self._backends.values() if one.declared.get("name") == name and one.tried("network"))
        return backend.tried("outages") and not any(lines)

    def write_terminal(self, terminal: pytest.TerminalReporter) -> None:
        """Show the summary at the end of the terminal."""
        for node, backend in self._backends.items():
            terminal.section(f"rdzv conformance: {backend.declared.get('name', 'unknown')} ({node})")
            topics = backend.topics()
            width = max(map(len, topics), default=0)
            for topic, counts in topics.items():
                terminal.line(f"{topic:{width}}  {', '.join(f'{count} {one}' for one, count in counts.items())}")
            for remark in backend.remarks():
                terminal.line(remark)
            if self._has_no_line(backend):
                terminal.line("not tried: network: no class of this run derives from NetworkConformance for it")

    def write_json(self, path: Path) -> None:
        """Write the same as JSON."""
        backends = [
            {
                "test": node,
                **backend.declared,
                "untried": backend.untried(),
                "topics": backend.topics(),
                "features": backend.features(),
                "tests": {
                    test: {"outcome": result.outcome, "reason": result.reason}
                    for test, result in backend.results.items()
                },
            }
            for node, backend in self._backends.items()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"suite": version("rdzv-conformance"), "backends": backends}, indent=2) + "\n")


def _outcome(report: pytest.TestReport, properties: dict[str, Any]) -> tuple[str, str]:
    """How a test ended and why, as far as this phase of it tells; else nothing."""
    if report.failed:
        return "failed", ""
    if report.skipped and hasattr(report, "wasxfail"):
        return "deviating", str(report.wasxfail)
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        return properties.get(VERDICT, "skipped"), reason.removeprefix("Skipped: ")
    return ("passed", "") if report.when == "call" else ("", "")
