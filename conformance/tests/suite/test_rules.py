"""Nothing passes silently: the rules at collection, deviations, capabilities, and the summary."""

import json

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import pytest
from rdzv_core.backend import Capability, KeyValueBackend, RendezvousBackend
from rdzv_conformance import BackendConformance, Conformance, RegisterConformance, lacks, requires
from rdzv_sqlite import SqliteBackend
"""
REGISTER = (
    HEAD
    + '''
class Register:
    """A backend as written for PyTorch: no base class of rdzv, three methods, one process."""

    states = {}
    name = "register"

    def __init__(self, run_id):
        self.run_id = run_id

    def get_state(self):
        return self.states.get(self.run_id)

    def set_state(self, state, token=None):
        there = self.states.get(self.run_id)
        if (there[1] if there else None) != token:
            return (*there, False) if there else None
        self.states[self.run_id] = (state, f"token{token}")
        return (*self.states[self.run_id], True)

class Connected:
    @pytest.fixture
    def connect(self):
        return Register
'''
)


def test_missing_connect_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + "class TestIt(BackendConformance): pass")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        [
            "*TestIt must define the fixture `connect`*",
            "*class TestIt(...):",
            "*    @pytest.fixture",
            "*    def connect(self):",
            "*        return lambda run_id: MyBackend(..., run_id)",
        ]
    )


WEAKER = "def test_register_is_empty_at_first(self): pass"
REPLACES = "*replaces 'test_register_is_empty_at_first' of the conformance suite*"
IT = "class TestIt(BackendConformance):\n    {}"
REFUSED = {
    "connect is no fixture": (IT.format("def connect(self): pass"), "*TestIt must define the fixture `connect`*"),
    **{
        f"constructor {method}": (
            f"class TestIt(Connected, RegisterConformance):\n    def {method}",
            "*TestIt has the method `__*__`, so pytest would not collect it*",
        )
        for method in ("__init__(self): pass", "__new__(cls): return super().__new__(cls)")
    },
    "base that is no test": (
        "class Base(Connected, RegisterConformance):\n    __test__ = False\nclass TestIt(Base): pass",
        "*TestIt inherits __test__ = False, so it would test nothing. Write __test__ = True in it.*",
    ),
    "name that pytest passes over": (
        "class MyBackendTests(Connected, RegisterConformance): pass",
        "*pytest passes over MyBackendTests, so it would test nothing*",
    ),
    "test defined": (IT.format(WEAKER), REPLACES),
    "test hidden": (IT.format("test_register_is_empty_at_first = None"), REPLACES),
    "test mixed in": (f"class Weak:\n    {WEAKER}\nclass TestIt(Weak, BackendConformance): pass", REPLACES),
    "test inherited": (f"class Weak(BackendConformance):\n    {WEAKER}\nclass TestIt(Weak): pass", REPLACES),
    **{
        f"fixture's {how}": (IT.format(line), "*replaces 'applicable' of the conformance suite*")
        for how, line in {
            "attribute": "applicable = None",
            "name": "@pytest.fixture(name='applicable', autouse=True)\n    def mine(self): pass",
        }.items()
    },
    **{
        f"deviations {deviations}": (IT.format(f"deviations = {deviations!r}"), message)
        for deviations, message in (
            ({"test_register_is_emty_at_first": "x"}, "*Did you mean 'test_register_is_empty_at_first'?*"),
            ({"clients": "x"}, "*declares a deviation from 'clients', which the suite does not have*"),
            ({"test_register_is_empty_at_first": " "}, "*without a reason*"),
            ({"test_register_is_empty_at_first": None}, "*without a reason*"),
            (["test_register_is_empty_at_first"], "*TestIt.deviations must be a dict of tests and reasons*"),
        )
    },
    "deviation from an unknown parameter": (
        "class TestIt(Connected, RegisterConformance):\n    deviations = {'test_register_keeps_every_byte[gone]': 'x'}",
        "*deviation from 'test_register_keeps_every_byte?gone?'*It has: *every_byte?zero?*",
    ),
    "server and no_server": (
        IT.format("no_server = 'it is a file'\n    @pytest.fixture\n    def server(self): pass"),
        "*TestIt has a fixture `server`, and says in `no_server` why not*",
    ),
    **{
        f"lease_delay {delay}": (
            IT.format(f"lease_delay = {delay}"),
            "*TestIt.lease_delay must be seconds above 0 and the reason*",
        )
        for delay in ("2.0", "(0.0, 'x')", "(2.0, ' ')", "('x', 2.0)")
    },
}
"""What would let faults pass, and the words by which it is refused."""


@pytest.mark.parametrize(("body", "words"), REFUSED.values(), ids=list(REFUSED))
def test_class_that_would_let_faults_pass_is_refused(pytester: pytest.Pytester, body: str, words: str) -> None:
    pytester.makepyfile(f"{REGISTER}\n{body}\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([words])


@pytest.mark.parametrize(
    ("base", "connect", "message"),
    [
        ("RegisterConformance", "object()", "*`connect` of TestIt must return a function that makes clients*"),
        ("BackendConformance", "Register", "*derive TestIt from RegisterConformance instead of BackendConformance*"),
    ],
    ids=["client", "register"],
)
def test_wrong_connect_is_reported_in_words(pytester: pytest.Pytester, base: str, connect: str, message: str) -> None:
    body = f"class TestIt({base}):\n    @pytest.fixture\n    def connect(self):\n        return {connect}\n"
    pytester.makepyfile(REGISTER + body)
    result = pytester.runpytest("-k", "at_first")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([message])


def test_wait_that_returns_nothing_is_reported_in_words(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CAPABLE + SERVED.format(line="") + "\nCapable.wait = lambda *args, **options: None\n")
    result = pytester.runpytest("-k", "wait_may_be_on_one_key")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*wait returned None: it returns a Snapshot*"])


@pytest.mark.parametrize("rest", ["    pass\nclass TestIt(Shared): pass\n", "    __test__ = False\n"])
def test_base_of_others_may_have_any_name(pytester: pytest.Pytester, rest: str) -> None:
    body = "class Shared(Connected, RegisterConformance):\n"
    pytester.makepyfile(REGISTER + body + rest + "def test_other_at_first(): pass\n")
    assert pytester.runpytest("-k", "at_first").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("mark", ["skip(reason='x')", "skipif(True, reason='x')", "xfail(reason='x')"])
@pytest.mark.parametrize("place", ["@pytest.mark.{mark}", "pytestmark = pytest.mark.{mark}"], ids=["class", "module"])
def test_marks_that_let_faults_pass_are_refused(pytester: pytest.Pytester, place: str, mark: str) -> None:
    pytester.makepyfile(f"{REGISTER}\n{place.format(mark=mark)}\nclass TestIt(Connected, RegisterConformance): pass\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*The mark '{mark.partition('(')[0]}' is on tests of the conformance suite*"])


def test_deviation_of_a_fixture_suggests_no_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + "class TestIt(BackendConformance):\n    deviations = {'run_id': 'x'}\n")
    pytester.runpytest().stdout.no_fnmatch_line("*Did you mean 'run_id'*")


def test_deviation_is_a_strict_xfail(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        REGISTER
        + """
class TestIt(Connected, RegisterConformance):
    deviations = {
        "test_register_is_empty_at_first": "said to fail, and passes",
        "test_register_is_set_if_empty": "said to fail, and fails",
        "test_register_keeps_every_byte[zero]": "one of several, which passes",
    }

    @pytest.fixture(autouse=True)
    def corrupt(self, request, monkeypatch):
        if request.node.name == "test_register_is_set_if_empty":
            monkeypatch.setattr(Register, "set_state", lambda self, state, token=None: None)
"""
    )
    result = pytester.runpytest("-k", "at_first or set_if_empty or every_byte")
    result.assert_outcomes(failed=2, xfailed=1, passed=4)
    result.stdout.fnmatch_lines(
        [
            "*said to fail, and passes*",
            "*rdzv conformance: register*",
            "register *4 passed, 1 deviating, 2 failed",
            "deviates in test_register_is_set_if_empty: said to fail, and fails",
        ]
    )


def test_class_written_for_pytorch_passes_as_a_register_backend_unchanged(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(REGISTER + "class TestIt(Connected, RegisterConformance): pass\n")
    # This register lives in one process, and has no `wait_state`.
    result = pytester.runpytest("-k", "not processes")
    outcomes = result.parseoutcomes()
    assert outcomes.keys() == {"passed", "skipped", "deselected"}
    assert outcomes["skipped"] == 2
    assert outcomes["passed"] > 20
    result.stdout.fnmatch_lines(["*rdzv conformance: register*", "register *passed, 2 skipped"])


CAPABLE = (
    HEAD
    + """
class Capable(SqliteBackend):
    name = "capable"
    capabilities = frozenset({Capability.WATCH})
    unsupported = {Capability.LEASE: "it is only an example"}
    def __init__(self, run_id):
        super().__init__("capable.db", run_id)
"""
)


def test_capabilities_decide_what_is_tested(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        CAPABLE
        + """
class TestIt(BackendConformance):
    @pytest.fixture
    def connect(self):
        return Capable

    @requires(Capability.WATCH)
    def test_with_watch(self): pass

    @lacks(Capability.WATCH)
    def test_without_watch(self): raise AssertionError

    @requires(Capability.LEASE)
    def test_with_lease(self): raise AssertionError

    @lacks(Capability.LEASE)
    def test_without_lease(self): pass
"""
    )
    result = pytester.runpytest("-rs", "-k", "test_with_ or test_without_")
    result.assert_outcomes(passed=2, skipped=2, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*'capable' has WATCH*", "*'capable' has no LEASE: it is only an example*"])


def test_report_tells_what_was_found(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        REGISTER
        + """
class TestIt(Connected, RegisterConformance):
    deviations = {"test_register_is_set_if_empty": "it never is"}

    @pytest.fixture(autouse=True)
    def corrupt(self, request, monkeypatch):
        if request.node.name == "test_register_is_set_if_empty":
            monkeypatch.setattr(Register, "set_state", lambda self, state, token=None: None)

    def test_of_its_own(self): pass

def test_of_no_class(): pass
"""
    )
    result = pytester.runpytest("-k", "at_first or set_if_empty or wait_ends or of_", "--rdzv-report=out/report.json")
    assert result.ret == 0
    report = json.loads((pytester.path / "out/report.json").read_text())
    (backend,) = report["backends"]
    assert backend["test"] == "test_report_tells_what_was_found.py::TestIt"
    assert backend["name"] == "register"
    assert backend["topics"] == {"register": {"passed": 1, "deviating": 1, "skipped": 1}}
    assert backend["untried"] == []
    assert backend["features"] == {}
    assert backend["tests"] == {
        "test_register_is_empty_at_first": {"outcome": "passed", "reason": ""},
        "test_register_is_set_if_empty": {"outcome": "deviating", "reason": "it never is"},
        "test_register_wait_ends_in_time": {"outcome": "skipped", "reason": "without `wait_state` rdzv polls"},
    }


def test_report_that_cannot_be_written_is_refused_at_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest("--rdzv-report=.")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--rdzv-report: '.' cannot be written*"])


SERVED = """
class TestIt(BackendConformance):
    {line}

    @pytest.fixture
    def connect(self):
        return Capable
"""


@pytest.mark.parametrize(
    ("line", "outcome", "remark"),
    [
        ("", "not tried", "not tried: TestIt brings no fixture `server`, so nothing can be stopped"),
        ("no_server = 'it is a file'", "unsupported", "has no server to stop: it is a file"),
    ],
    ids=["missing", "explained"],
)
def test_without_a_server_outages_are_not_tried_and_it_is_said(
    pytester: pytest.Pytester, line: str, outcome: str, remark: str
) -> None:
    pytester.makepyfile(CAPABLE + SERVED.format(line=line))
    result = pytester.runpytest("-k", "reply or name_is_reported", "--rdzv-report=report.json")
    result.assert_outcomes(passed=1, skipped=3, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines([f"outages *3 {outcome}", f"*{remark}"])
    (backend,) = json.loads((pytester.path / "report.json").read_text())["backends"]
    assert backend["topics"]["outages"] == {outcome: 3}
    assert backend["untried"] == ["WATCH"]


def test_processes_of_xdist_report_the_same_as_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CAPABLE + SERVED.format(line=""))
    reports = []
    for processes in (0, 2):
        result = pytester.runpytest("-k", "reply or name_is_reported", f"-n{processes}", "--rdzv-report=report.json")
        assert result.ret == 0
        result.stdout.fnmatch_lines(["outages *3 not tried"])
        (backend,) = json.loads((pytester.path / "report.json").read_text())["backends"]
        # Whichever process is done first.
        reports.append({**backend, "tests": sorted(backend["tests"].items())})
    assert reports[0] == reports[1]


def test_connect_must_take_an_endpoint_where_there_is_a_server(pytester: pytest.Pytester) -> None:
    server = "@pytest.fixture\n    def server(self):\n        return Server()"
    get_endpoint = "class Server:\n    def get_endpoint(self): return 'localhost:1'\n"
    pytester.makepyfile(CAPABLE + get_endpoint + SERVED.format(line=server))
    result = pytester.runpytest("-k", "reply and register")
    result.assert_outcomes(errors=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["*must take an endpoint as its second argument*"])


def test_without_host_and_port_lines_are_not_tried_and_it_is_said(pytester: pytest.Pytester) -> None:
    server = "class Server:\n    def get_endpoint(self): return '/run/socket'\n"
    fixture = "@pytest.fixture\n    def server(self): return Server()"
    body = SERVED.format(line=fixture).replace("return Capable", "return lambda run_id, endpoint='': Capable(run_id)")
    pytester.makepyfile(CAPABLE + server + body)
    result = pytester.runpytest("-k", "reply and register")
    result.assert_outcomes(skipped=1, deselected=result.parseoutcomes()["deselected"])
    result.stdout.fnmatch_lines(["outages *1 not tried", "not tried: *needs a host:port, *'/run/socket'"])


def test_declared_capabilities_that_nothing_tries_are_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CAPABLE + SERVED.format(line=""))
    result = pytester.runpytest("-k", "name_is_reported")
    result.stdout.fnmatch_lines(["declares WATCH: nothing here has tried it"])


def test_sessions_without_the_suite_see_nothing_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest("--strict-markers")
    result.stdout.no_fnmatch_line("*rdzv conformance*")
    result.assert_outcomes(passed=1)


def test_slow_leases_are_in_the_summary(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CAPABLE + SERVED.format(line="lease_delay = (2.0, 'it looks every 2 s')"))
    result = pytester.runpytest("-k", "name_is_reported")
    result.stdout.fnmatch_lines(["ends leases up to 2.0 s later than a second after their time: it looks every 2 s"])


@pytest.mark.parametrize("inherits", [True, False])
def test_inherited_delete_version_is_in_the_summary(pytester: pytest.Pytester, inherits: bool) -> None:
    line = "    delete_version = KeyValueBackend.delete_version\n" if inherits else ""
    pytester.makepyfile("from rdzv_core import KeyValueBackend\n" + CAPABLE + line + SERVED.format(line=""))
    result = pytester.runpytest("-k", "name_is_reported or delete_of_an_earlier_version")
    said = "'capable' inherits `delete_version`: keys that are deleted from a store leave some bytes"
    assert result.outlines.count(said) == inherits


def test_skips_that_are_no_lack_are_explained(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CAPABLE + SERVED.format(line=""))
    result = pytester.runpytest("-k", "name_is_reported or polling_is_quick or service_without_leases")
    result.stdout.fnmatch_lines(["1 skipped test is about the lack of what it has"])
