"""The network's topic catches what a simple backend makes of its line, and says what it is."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

FILE = """
import pytest
from rdzv_conformance.proxy import FaultProxy
from rdzv_conformance.suite.network import NetworkConformance
from {package}.reference import MemoryBackend, OnMemory

class Lines(FaultProxy):
    def pass_requests(self, near, far):
        while data := near.recv(1 << 20):
            self.requests += 1
            (far if self.answer is None else near).sendall(self.answer or data)

class Simple(MemoryBackend):
    # Its calls have no deadline: each piece of an answer begins their time anew. A machine that is busy holds up the
    # proxy, which is in this process, and a piece that came too late would end them. Yet a call that gets no piece at
    # all ends within the suite's patience.
    spare = 15.0

class TestSimple(OnMemory, NetworkConformance):
    backend = Simple
    strange_answers = (b"?\\n",)
    answer_of = staticmethod(lambda body: body + b"\\n")
    shakes_hands = True
    something_else = (b"{{}}\\n", "is it")
    passing = (("503", b"?\\n"),)

    @pytest.fixture
    def proxy(self, server):
        with Lines(int(server.get_endpoint().partition(":")[2])) as proxy:
            yield proxy
"""


@pytest.fixture
def path(pytester: pytest.Pytester) -> Path:
    """A test file of a backend that is right wherever its line is."""
    tests = Path(__file__).parent.parent
    pytester.syspathinsert(tests.parent)
    return pytester.makepyfile(test_it=FILE.format(package=tests.name))


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("connection_that_broke", "a write went into a connection that had broken: PutResult(outcome=<PutOutcome.UNK"),
        ("beyond_all_bounds and deep", "only errors of the RendezvousError family leave a backend"),
        pytest.param(
            "without_end and 9", "have not ended within 20 s, whatever their timeout: *", marks=pytest.mark.soak
        ),
        ("strange_answer", "only errors of the RendezvousError family leave a backend"),
        ("something_else", "RendezvousDeniedError must be raised, and the answer was None"),
        ("what_passes", "only errors of the RendezvousError family leave a backend"),
        ("calls_at_once", "320 calls on 32 threads have left * connections open"),
    ],
)
def test_what_a_simple_backend_lacks_is_named(pytester: pytest.Pytester, path: Path, test: str, words: str) -> None:
    result = pytester.runpytest("-k", test, str(path))
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines([f"*{words}*"])


def test_what_it_does_right_passes(pytester: pytest.Pytester, path: Path) -> None:
    result = pytester.runpytest("-k", "neighbours or refused_connection or not_resolved", str(path))
    assert result.parseoutcomes()["passed"] == 3


def test_a_proxy_that_answers_nothing_is_no_fault_of_the_backend(pytester: pytest.Pytester, path: Path) -> None:
    path.write_text(path.read_text().replace("with Lines(", "with FaultProxy("))
    result = pytester.runpytest("-k", "something_else", str(path))
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*the fixture `proxy` must give a subclass of FaultProxy whose `pass_requests` *"])
