"""The contract as an author meets it: the example of its docstring, and a plugin of long ago."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import rdzv_core
from rdzv_core import (
    ABSENT,
    ANY,
    Capability,
    KeyValueBackend,
    PutOutcome,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousParameters,
)
from rdzv_core.backend import CONTRACT

SOURCES = Path(rdzv_core.__file__).parent
PUBLISHED = Path(__file__).with_name("published")
"""Plugins as they were published once; no file there is ever changed."""

Install = Callable[[str, str, Mapping[str, str]], None]
PARAMS = RendezvousParameters("dict", "", "job/7", 1, 1)


def example() -> str:
    """The backend that the docstring of `KeyValueBackend` holds."""
    document = inspect.getdoc(KeyValueBackend) or ""
    return textwrap.dedent(document.partition("in this process::\n")[2])


def check_keys(backend: Any) -> None:
    """What the docstrings of the five methods say, in a few lines; rdzv-conformance says it in full."""
    with closing(backend):
        assert backend.read("a", timeout=1) is None
        created = backend.put("a/b", b"1", expect=ABSENT, timeout=1)
        assert created.outcome is PutOutcome.APPLIED
        assert backend.put("a/b", b"2", expect=ABSENT, timeout=1).outcome is PutOutcome.CONFLICT
        changed = backend.put("a/b", b"2", expect=created.entry.token, timeout=1)
        assert (changed.outcome, changed.entry.order) == (PutOutcome.APPLIED, created.entry.order)
        assert backend.put("a/b", b"3", expect=created.entry.token, timeout=1).entry == changed.entry
        assert backend.put("a/c", b"", expect=ANY, timeout=1).entry.order > created.entry.order
        assert backend.put("ab", b"", expect=ANY, timeout=1).outcome is PutOutcome.APPLIED
        seen = backend.read_all("a", timeout=1)
        assert seen.entries.keys() == {"a/b", "a/c"}
        assert backend.wait("a", seen, timeout=0.05) is seen
        backend.delete("a", timeout=1)
        assert backend.wait("a", seen, timeout=5).entries == {}
        assert backend.read("ab", timeout=1) is not None
        assert backend.capabilities | backend.unsupported.keys() == {*Capability}
    with pytest.raises(RendezvousConnectionError):
        backend.read("ab", timeout=1)


def test_the_example_of_the_docstring_is_a_backend(install: Install) -> None:
    install("acme-dict", example(), {"rdzv": "dict"})
    backend, store = rdzv_core.create_backend(PARAMS)
    assert store is None
    check_keys(backend)


def test_the_example_is_short() -> None:
    body = ast.parse(example()).body
    (backend,) = (node for node in body if isinstance(node, ast.ClassDef))
    assert backend.end_lineno is not None
    assert backend.end_lineno - backend.lineno < 45


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.py")), ids=lambda path: path.stem)
def test_a_plugin_that_was_published_once_loads_for_ever(path: Path, install: Install) -> None:
    install("acme-published", path.read_text(), {"rdzv": "published"})
    params = RendezvousParameters("published", "", "job/7", 1, 1, color="red")
    plugin = rdzv_core.load_backend_plugin("published")
    assert plugin.contract <= CONTRACT
    backend, _ = rdzv_core.create_backend(plugin.as_client(params))
    check_keys(backend)
    plugin.check_shared(params)
    assert plugin.describe_endpoint("me:secret@node1:1") == "***@node1:1"


def test_a_contract_that_is_no_number_is_refused_in_words(install: Install) -> None:
    install(
        "acme-other",
        "from rdzv_core import BackendPlugin\nBACKEND = BackendPlugin('', (), None, None, contract='1')",
        {"rdzv": "other"},
    )
    with pytest.raises(RendezvousError, match=r"broken: TypeError: its contract is '1', and not a number such as \d"):
        rdzv_core.load_backend_plugin("other")


@pytest.mark.parametrize(
    ("contract", "advice"),
    [
        (CONTRACT + 1, "upgrade rdzv-core, or install an earlier acme-other"),
        (CONTRACT - 1, "upgrade acme-other, or install an earlier rdzv-core"),
    ],
)
def test_a_plugin_for_another_contract_is_refused_in_words(contract: int, advice: str, install: Install) -> None:
    source = f"from rdzv_core import BackendPlugin\nBACKEND = BackendPlugin('', (), None, None, contract={contract})"
    install("acme-other", source, {"rdzv": "other"})
    message = f"'other' of the package 'acme-other' is written for version {contract} of the contract.*{advice}"
    with pytest.raises(RendezvousError, match=message):
        rdzv_core.load_backend_plugin("other")
