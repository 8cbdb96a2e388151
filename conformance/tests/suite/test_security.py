"""The topics TLS and AUTH: what a third party declares is tried, and a refusal that is none is named."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

FILE = """
import pytest
from rdzv_core import BackendPlugin, Capability, Option
from rdzv import RendezvousParameters, registered_backends
from rdzv_core.errors import RendezvousConnectionError, RendezvousDeniedError
from rdzv_core.options import parse_options
from rdzv_conformance import BackendConformance, Secured, Stranger
from {package}.reference import MemoryBackend, OnMemory

class Guarded(MemoryBackend):
    capabilities = MemoryBackend.capabilities | {{Capability.AUTH}}
    password, follows = "right", {follows}
    local_address = "127.0.0.1"

    def call(self, timeout, *request):
        again = getattr(self.password, "again", None) if self.follows else None
        password = again() if again else self.password
        if password == "reading" and request[0] in {writes}:
            raise RendezvousDeniedError("You may not write.")
        if password not in ("right", "reading"):
            raise {error}
        return super().call(timeout, *request)

OPTIONS = (Option("passphrase", "text", None, "What lets in.", secret=True),)

def create(params):
    backend = Guarded(params.endpoint, params.run_id)
    backend.password = parse_options(params.config, OPTIONS)["passphrase"]
    return backend, None

class TestGuarded(OnMemory, BackendConformance):
    backend = Guarded

    @pytest.fixture(autouse=True)
    def installed(self, monkeypatch):
        monkeypatch.setitem(registered_backends, "memory", BackendPlugin("For tests.", OPTIONS, create, Guarded))
{secured}
"""
SECURED = """
    @pytest.fixture
    def secured(self, server):
        def having(**options):
            return lambda run_id: RendezvousParameters("memory", server.get_endpoint(), run_id, 1, 1, **options)
        return {
            Capability.AUTH: Secured(
                having(passphrase="right"),
                {"wrong passphrase": Stranger(having(passphrase="hunter2"), (".",))},
                reader=having(passphrase="reading"),
            )
        }
"""


def _run(
    pytester: pytest.Pytester,
    error: str,
    secured: str = SECURED,
    writes: str = "('put', 'create_all', 'delete', 'delete_version')",
    *,
    follows: bool = False,
    tests: str = "credentials or reader",
) -> pytest.RunResult:
    here = Path(__file__).parent.parent
    pytester.syspathinsert(here.parent)
    text = FILE.format(package=here.name, error=error, secured=secured, writes=writes, follows=follows)
    pytester.makepyfile(test_it=text)
    return pytester.runpytest("-k", tests)


def test_a_right_refusal_passes(pytester: pytest.Pytester) -> None:
    _run(pytester, "RendezvousDeniedError('wrong')").stdout.fnmatch_lines(["AUTH *3 passed"])


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("RendezvousConnectionError('wrong')", "RendezvousDeniedError must be raised, and this was: Rendezvous"),
        ("RendezvousDeniedError(f'not {self.password}')", "wrong passphrase: the error repeats the passphrase"),
        ("PermissionError('wrong')", "only errors of the RendezvousError family leave a backend"),
    ],
    ids=["connection", "secret", "raw"],
)
def test_a_wrong_refusal_is_named(pytester: pytest.Pytester, error: str, words: str) -> None:
    result = _run(pytester, error)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines([f"*{words}*"])


@pytest.mark.parametrize(
    ("writes", "words"),
    [("('put',)", "the answer was None"), ("('delete',)", "the answer was PutResult(outcome=")],
    ids=["deletes", "puts"],
)
def test_a_reader_who_writes_is_named(pytester: pytest.Pytester, writes: str, words: str) -> None:
    result = _run(pytester, "RendezvousDeniedError('wrong')", writes=writes)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines([f"*RendezvousDeniedError must be raised, and {words}*"])


def test_a_refusal_that_does_not_say_why_is_named(pytester: pytest.Pytester) -> None:
    secured = SECURED.replace('(".",)', '("ask .* for it",)')
    result = _run(pytester, "RendezvousDeniedError('wrong')", secured)
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["*wrong passphrase: the error does not say 'ask .[*] for it': wrong*"])


def test_a_secret_in_a_file_is_not_repeated_either(pytester: pytest.Pytester, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hunter2\n")
    file.chmod(0o600)
    secured = SECURED.replace('having(passphrase="hunter2")', f'having(passphrase_file="{file}")')
    result = _run(pytester, "RendezvousDeniedError(f'not {self.password}')", secured)
    result.stdout.fnmatch_lines(["*wrong passphrase: the error repeats the passphrase*"])


def test_what_is_declared_and_not_tried_is_said(pytester: pytest.Pytester) -> None:
    result = _run(pytester, "RendezvousDeniedError('wrong')", secured="")
    result.stdout.fnmatch_lines(["AUTH *3 not tried", "declares AUTH, *", "not tried: *brings no fixture `secured`*"])


FOLLOWING = SECURED.replace("reader=", "follows_files=True, reader=")


@pytest.mark.parametrize("follows", [True, False])
def test_a_secret_that_is_read_once_is_named(pytester: pytest.Pytester, follows: bool) -> None:
    result = _run(pytester, "RendezvousDeniedError('wrong')", FOLLOWING, follows=follows, tests="read_again")
    if follows:
        result.stdout.fnmatch_lines(["AUTH *1 passed"])
    else:
        result.stdout.fnmatch_lines(["*wrong passphrase: the file is right now, and was not read again: wrong*"])


def test_what_is_not_said_to_be_read_again_is_not_tried(pytester: pytest.Pytester) -> None:
    result = _run(pytester, "RendezvousDeniedError('wrong')", tests="read_again")
    result.stdout.fnmatch_lines(["not tried: *does not say `follows_files`*"])
