"""A service that never answers costs one failure, and not one for each test."""

import json

import pytest

pytest_plugins = ["pytester"]

FILE = """
import pytest
from rdzv_conformance import BackendConformance
from rdzv_core.errors import RendezvousConnectionError
from rdzv_sqlite import SqliteBackend

class Backend(SqliteBackend):
    def read(self, key, *, timeout):
        {read}
        return super().read(key, timeout=timeout)

class Absent(SqliteBackend):
    def __init__(self, path, run_id):
        {made}
        super().__init__(path, run_id)

    def read(self, *args, **kwargs):
        raise RendezvousConnectionError("localhost:1 cannot be reached")

    read_all = put = delete = wait = open_lease = read

class TestIt(BackendConformance):
    {line}

    @pytest.fixture
    def connect(self, tmp_path):
        return lambda run_id: {backend}(str(tmp_path / "db"), run_id)

    def test_of_its_own(self): pass
"""
WORDS = "no client of this class has ever got an answer: {}"


def _run(pytester: pytest.Pytester, *args: str, **texts: str) -> pytest.RunResult:
    given = {"backend": "Absent", "made": "pass", "read": "pass", "line": "", **texts}
    pytester.makepyfile(test_it=FILE.format(**given))
    return pytester.runpytest(*args)


def test_service_that_never_answers_ends_the_class(pytester: pytest.Pytester) -> None:
    result = _run(pytester, "--rdzv-report=report.json")
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) == 1
    assert outcomes["skipped"] > 200
    remark = f"not tried: {WORDS.format('RendezvousConnectionError: localhost:1 cannot be reached')}"
    assert result.outlines.count(remark) == 1
    (backend,) = json.loads((pytester.path / "report.json").read_text())["backends"]
    assert sum(counts.get("failed", 0) for counts in backend["topics"].values()) == 1
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_failure_says_that_the_rest_is_left_out(pytester: pytest.Pytester) -> None:
    result = _run(pytester, "-k", "missing_key or many_keys")
    result.assert_outcomes(failed=1, errors=1, skipped=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*no client of this class has ever got an answer: *; the rest of it is not tried*"])


def test_client_that_cannot_be_made_ends_the_class(pytester: pytest.Pytester) -> None:
    result = _run(pytester, "-k", "key", made="raise ValueError('no such user')")
    assert result.parseoutcomes()["errors"] == 1
    result.stdout.fnmatch_lines([f"*not tried: {WORDS.format('ValueError: no such user')}"])


@pytest.mark.parametrize(
    "texts",
    [
        {"backend": "Backend", "read": "if key == 'suite/key': raise RendezvousConnectionError('lost')"},
        {"backend": "Backend", "read": "if key == 'suite/key': return 7"},
    ],
    ids=["raises", "answers wrongly"],
)
def test_service_that_has_answered_is_tried_on(pytester: pytest.Pytester, texts: dict[str, str]) -> None:
    result = _run(pytester, "-k", "empty_at_first or missing_key or created_again or many_keys", **texts)
    outcomes = result.parseoutcomes()
    assert (outcomes["failed"], outcomes["passed"]) == (2, 2)


def test_error_that_is_asked_for_is_no_first_contact(pytester: pytest.Pytester) -> None:
    result = _run(pytester, "-k", "too_large or many_keys", backend="Backend")
    assert result.parseoutcomes()["passed"] == 2
    result.stdout.no_fnmatch_line(f"*{WORDS.format('')}*")


def test_known_failure_ends_nothing(pytester: pytest.Pytester) -> None:
    line = "deviations = {'test_missing_key_is_none': 'issue 1', 'test_names_are_kept_apart': 'issue 1'}"
    read = "raise RendezvousConnectionError('lost')"
    result = _run(pytester, "-k", "missing_key or names_are_kept", backend="Backend", read=read, line=line)
    assert result.parseoutcomes()["xfailed"] == 2
