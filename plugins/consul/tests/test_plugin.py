"""How the backend is found, and its options."""

from typing import Any

from rdzv_conformance.users import refusing
from rdzv_core.parameters import RendezvousParameters
from rdzv_core.plugins import load_backend_plugin

from rdzv_consul import ConsulBackend, create_backend


def _create(endpoint: str = "localhost", **options: Any) -> None:
    backend, _ = create_backend(RendezvousParameters("consul", endpoint, "run", 1, 1, **options))
    assert isinstance(backend, ConsulBackend)
    backend.close()


def test_the_default_is_an_agent_on_this_machine() -> None:
    assert load_backend_plugin("consul").default_endpoint == "127.0.0.1"


def test_options_of_others_are_left_to_them() -> None:
    _create(last_call_timeout="3", prefix="team/jobs", request_timeout="0.5")


test_what_cannot_be_used_is_refused = refusing(
    create_backend,
    {
        "endpoint": {"": "endpoint is empty", "http://localhost:8500": "scheme", "localhost:0": "port '0' is not"},
        "prefix": {
            "/": "The prefix '/' is empty.*team/jobs",
            "a//b": "'a//b' has an empty part.*team/jobs",
            "a/../b": r"'a/\.\./b' has the part '\.\.'.*team/jobs",
        },
        "token": {"sec\nret": "token.*is empty, or has blanks", "": "token.*is empty"},
        "key": {__file__: "'key' needs 'cert'"},
    },
)
