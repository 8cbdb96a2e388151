"""The pytest plugin: its markers, its options, the rules at collection, the summary at the end."""

import inspect
import math
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Final, TypeGuard

import pytest
from rdzv_core.backend import Lease, RendezvousBackend
from rdzv_core.errors import RendezvousError

from .catalogue import look_at
from .report import Report
from .suite.base import CONNECT, Conformance, Verdict, is_fixture, leave_out
from .suite.contact import contact_of
from .watchdog import DEFAULT, Watchdog

_SUITE: Final = "rdzv_conformance.suite."
_QUICK: Final = frozenset({"capabilities", "register", "fencing", "keys", "order", "store"})
"""The topics of ``-m quick``, but for tests that need processes of their own."""
_WEAKENING: Final = frozenset({"skip", "skipif", "xfail"})
_REPORT: Final = pytest.StashKey[Report]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("rdzv")
    group.addoption(
        "--rdzv-report",
        type=Path,
        metavar="FILE",
        help="write what the conformance suite found, per backend and topic, as JSON into FILE",
    )
    what = "seconds after which a test of the conformance suite is ended, with what every thread does; 0: never"
    group.addoption("--rdzv-timeout", metavar="SECONDS", help=f"{what} (default: {DEFAULT:g})")
    parser.addini("rdzv_timeout", what, default=f"{DEFAULT:g}")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and begin to collect results."""
    path = config.getoption("rdzv_report")
    if path is not None:
        _refuse_unwritable(path)
    config.addinivalue_line("markers", "rdzv_requires(capability): makes sense with this capability only")
    config.addinivalue_line("markers", "rdzv_lacks(capability): makes sense without this capability only")
    config.addinivalue_line("markers", "rdzv_feature(name, what): shows this feature of rdzv on the backend")
    config.addinivalue_line("markers", "quick: the suite's first stage: calls of healthy clients, in about ten seconds")
    report = config.stash[_REPORT] = Report()
    config.pluginmanager.register(report, "rdzv-conformance-report")
    if not (config.getoption("usepdb") or config.getoption("trace")):
        config.pluginmanager.register(Watchdog(_seconds(config)), "rdzv-conformance-watchdog")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> Generator[None, object, object]:
    """Refuse a class that would test nothing, and deviations from parameters that a test does not have."""
    if inspect.isclass(obj) and issubclass(obj, Conformance):
        _refuse_heir_of_a_base(obj)
        if collector.istestclass(obj, name):
            _refuse_unconnected(name, obj)
        else:
            _refuse_uncollected(collector, obj)
    made = yield
    if isinstance(collector, pytest.Class) and issubclass(collector.obj, Conformance) and isinstance(made, list):
        _refuse_unknown_parameters(collector.obj, name, [item.name for item in made])
    return made


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test of the suite its topic and its stage, and a strict xfail where a deviation is declared."""
    for item in items:
        if _is_of_suite(item):
            topic = _topic(item)
            _refuse_weakening_marks(item)
            Report.assign(item, topic)
            if topic in _QUICK and "processes" not in item.fixturenames:
                item.add_marker(pytest.mark.quick)
            reason = item.cls.deviations.get(item.originalname, item.cls.deviations.get(item.name))
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a test out where no client of its class has ever got an answer: it would say the same once more."""
    if _is_of_suite(item) and (failure := contact_of(item).failure):
        leave_out(item, Verdict.NOT_TRIED, failure)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Name the rule that an error breaks which left a backend as it was."""
    report = yield
    if _is_of_suite(item) and report.when == "call" and not report.failed:
        contact_of(item).forgive()
    elif _is_of_suite(item) and report.failed:
        if failure := contact_of(item).failure:
            report.sections.append(("rdzv conformance", f"{failure}; the rest of it is not tried."))
        headings = ", ".join(f"'{one}'" for one in look_at(_topic(item), item.originalname))
        report.sections.append(("rdzv conformance", f'What is usually behind it: {headings}, in "Writing a backend".'))
    if call.excinfo is not None and _is_of_suite(item) and _left_a_backend(call.excinfo):
        report.sections.append(
            (
                "rdzv conformance",
                f"{call.excinfo.typename} left the backend as it was: only errors of the RendezvousError family may, "
                "raised from the client's own (rdzv_core.backend.KeyValueBackend).",
            )
        )
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the summary, and write it for programs."""
    report = config.stash[_REPORT]
    report.write_terminal(terminalreporter)
    path = config.getoption("rdzv_report")
    if path is not None:
        report.write_json(path)


def _is_of_suite(item: pytest.Item) -> TypeGuard[pytest.Function]:
    """Whether it is a test of the suite's own, in a class of an author."""
    if not (isinstance(item, pytest.Function) and item.cls and issubclass(item.cls, Conformance)):
        return False
    return str(item.function.__module__).startswith(_SUITE)


def _topic(item: pytest.Function) -> str:
    """The file of the suite in which a test stands."""
    return str(item.function.__module__).removeprefix(_SUITE)


def _left_a_backend(excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
    """Whether an error other than an assertion of the suite was raised below a method of a backend or lease."""
    if isinstance(excinfo.value, (RendezvousError, AssertionError)) or not isinstance(excinfo.value, Exception):
        return False
    owners = (entry.frame.f_locals.get("self") for entry in excinfo.traceback)
    return any(isinstance(owner, (RendezvousBackend, Lease)) for owner in owners)


def _seconds(config: pytest.Config) -> float:
    given = config.getoption("rdzv_timeout") or config.getini("rdzv_timeout")
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= threading.TIMEOUT_MAX:
        raise pytest.UsageError(f"--rdzv-timeout, rdzv_timeout: {given!r} is no number of seconds from 0 (never) on.")
    return seconds


def _refuse_heir_of_a_base(cls: type[Conformance]) -> None:
    """Refuse a class that says nothing of ``__test__``, and inherits False: pytest passes over it without a word."""
    if "__test__" not in vars(cls) and not getattr(cls, "__test__", True):
        raise pytest.Collector.CollectError(
            f"{cls.__name__} inherits __test__ = False, so it would test nothing. Write __test__ = True in it."
        )


def _refuse_unconnected(name: str, cls: type[Conformance]) -> None:
    if not is_fixture(getattr(cls, "connect", None)):
        raise pytest.Collector.CollectError(
            f"{name} must define the fixture `connect`, which returns a function that makes a new client:\n\n"
            f"class {name}(...):\n"
            "    @pytest.fixture\n"
            "    def connect(self):\n"
            f"        {CONNECT}\n"
        )


def _refuse_uncollected(collector: pytest.Module | pytest.Class, cls: type[Conformance]) -> None:
    """Refuse a class whose name pytest passes over, unless others derive from it, or it says ``__test__ = False``."""
    module = collector.getparent(pytest.Module)
    is_defined_here = module is not None and cls.__module__ == module.obj.__name__
    if is_defined_here and not cls.__subclasses__() and getattr(cls, "__test__", True):
        wanted = " or ".join(collector.config.getini("python_classes"))
        raise pytest.Collector.CollectError(
            f"pytest passes over {cls.__name__}, so it would test nothing: pytest collects classes named {wanted}... "
            "(its setting python_classes). Rename it; a base for other files says __test__ = False."
        )


def _refuse_unknown_parameters(cls: type[Conformance], name: str, tests: list[str]) -> None:
    for test in cls.deviations:
        if test.startswith(f"{name}[") and test not in tests:
            raise pytest.Collector.CollectError(
                f"{cls.__name__} declares a deviation from '{test}', which the suite does not have. "
                f"It has: {', '.join(tests)}."
            )


def _refuse_weakening_marks(item: pytest.Function) -> None:
    for mark in item.iter_markers():
        if mark.name in _WEAKENING:
            raise pytest.UsageError(
                f"The mark '{mark.name}' is on tests of the conformance suite ({item.nodeid}), so faults would pass. "
                "If the backend is known to fail a test, say why: deviations = {'test_...': 'the reason'}. "
                "Where the service cannot run, the fixture `connect` or `server` may skip, and say why."
            )


def _refuse_unwritable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a").close()
    except OSError as error:
        raise pytest.UsageError(f"--rdzv-report: '{path}' cannot be written ({error}). Name another file.") from error
