"""The pytest plugin: its markers, its option, the rules at collection, the summary at the end."""

import inspect
from pathlib import Path
from typing import Final

import pytest

from .report import Report
from .suite.base import Conformance

_SUITE: Final = "rdzv_conformance.suite."
_REPORT: Final = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the option."""
    parser.getgroup("rdzv").addoption(
        "--rdzv-report",
        type=Path,
        metavar="FILE",
        help="write what the conformance suite found, per backend and topic, as JSON into FILE",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and begin to collect results."""
    config.addinivalue_line("markers", "rdzv_requires(capability): makes sense with this capability only")
    config.addinivalue_line("markers", "rdzv_lacks(capability): makes sense without this capability only")
    report = config.stash[_REPORT] = Report()
    config.pluginmanager.register(report, "rdzv-conformance-report")


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Refuse a class that does not say how to connect: it would test nothing."""
    if (
        inspect.isclass(obj)
        and issubclass(obj, Conformance)
        and collector.istestclass(obj, name)
        and not hasattr(obj, "connect")
    ):
        raise pytest.Collector.CollectError(
            f"{name} must define the fixture `connect`, which returns a function that makes a new client:\n\n"
            "    @pytest.fixture\n"
            "    def connect(self, run_id):\n"
            "        return lambda: MyBackend(..., run_id)\n"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of the suite its topic, and a strict xfail where a deviation is declared."""
    for item in items:
        if not (isinstance(item, pytest.Function) and item.cls and issubclass(item.cls, Conformance)):
            continue
        module = item.function.__module__
        if module.startswith(_SUITE):
            Report.assign(item, module.removeprefix(_SUITE))
            reason = item.cls.deviations.get(item.originalname, item.cls.deviations.get(item.name))
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the summary, and write it for programs."""
    report = config.stash[_REPORT]
    report.write_terminal(terminalreporter)
    path = config.getoption("rdzv_report")
    if path is not None:
        report.write_json(path)
