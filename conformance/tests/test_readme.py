"""The README's examples work."""

import re
from pathlib import Path

import pytest

from rdzv_conformance.servers import EtcdServer, require_service

pytest_plugins = ["pytester"]

EXAMPLES = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text(), re.DOTALL)


def example(words: str) -> str:
    """The one example that has these words."""
    (found,) = (text for text in EXAMPLES if words in text)
    return str(found)


MY_PACKAGE = """
from rdzv_core.backend import KeyValueBackend

class MyBackend(KeyValueBackend):
    name = "mine"
    def __init__(self, url, run_id): assert url == "my://localhost:1" and run_id
    def close(self): pass
    def delete(self, prefix, *, timeout): pass
    def read(self, key, *, timeout): pass
    def read_all(self, prefix, *, timeout): raise NotImplementedError
    def put(self, key, value, *, expect, lease=None, timeout): raise NotImplementedError
"""


def test_example_of_a_test_file(pytester: pytest.Pytester) -> None:
    pytester.syspathinsert()
    pytester.makepyfile(my_package=MY_PACKAGE, test_it=EXAMPLES[0])
    result = pytester.runpytest("-k", "test_register_is_empty_at_first")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])


SERVED = """
from contextlib import contextmanager
from rdzv_conformance.processes import Processes
from {package}.reference import MemoryBackend as MyBackend, MemoryServer

@contextmanager
def MyServer():
    with Processes() as processes:
        yield MemoryServer(processes)
"""


def test_example_of_a_server(pytester: pytest.Pytester) -> None:
    tests = Path(__file__).parent
    pytester.syspathinsert(tests.parent)
    pytester.syspathinsert()
    head = EXAMPLES[0].partition("class")[0].replace("MyBackend", "MyBackend, MyServer")
    imports = "from collections.abc import Iterator\nfrom rdzv_conformance import ConnectTo\n"
    pytester.makepyfile(my_package=SERVED.format(package=tests.name), test_it=imports + head + EXAMPLES[1])
    result = pytester.runpytest("-k", "whose_reply_is_lost_is_unknown")
    result.assert_outcomes(passed=2, deselected=result.parseoutcomes()["deselected"])


def test_example_of_a_deviation(pytester: pytest.Pytester) -> None:
    pytester.syspathinsert()
    head = EXAMPLES[0].partition("class")[0]
    body = EXAMPLES[0].partition("(BackendConformance):\n")[2]
    pytester.makepyfile(my_package=MY_PACKAGE, test_it=f"{head}\n{example('deviations =')}{body}")
    result = pytester.runpytest("-k", "test_order_outlives_overwriting")
    result.assert_outcomes(xfailed=1, deselected=result.parseoutcomes()["deselected"])


@pytest.mark.parametrize("words", ["lease_delay =", "def cluster(", "def secured(", "def parameters("])
def test_example_of_more_in_a_class(pytester: pytest.Pytester, words: str) -> None:
    pytester.syspathinsert()
    head = EXAMPLES[0].partition("class")[0]
    body = EXAMPLES[0].partition("(BackendConformance):\n")[2]
    more = example(words).partition("(BackendConformance):\n")
    names = "from rdzv_core import Capability, RendezvousParameters\nfrom rdzv_conformance import Parameters, Secured\n"
    text = f"{names}{head}\nclass TestMyBackend(BackendConformance):\n{more[2] or more[0]}\n{body}"
    pytester.makepyfile(my_package=MY_PACKAGE, test_it=text)
    result = pytester.runpytest("-k", "test_name_is_reported")
    result.assert_outcomes(passed=1, deselected=result.parseoutcomes()["deselected"])


def test_example_of_servers() -> None:
    require_service(EtcdServer)
    exec(compile(example("EtcdCluster(3)"), "README.md", "exec"), {})
