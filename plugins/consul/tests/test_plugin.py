"""How the backend is found, and its options."""

from typing import Any

import pytest
from rdzv.errors import RendezvousParameterError
from rdzv.parameters import RendezvousParameters
from rdzv.plugins import load_backend_plugin

from rdzv_consul import ConsulBackend, create_backend


def _create(endpoint: str = "localhost", **options: Any) -> None:
    backend, _ = create_backend(RendezvousParameters("consul", endpoint, "run", 1, 1, **options))
    assert isinstance(backend, ConsulBackend)
    backend.close()


def test_the_default_is_an_agent_on_this_machine() -> None:
    assert load_backend_plugin("consul").default_endpoint == "127.0.0.1"


def test_options_of_others_are_left_to_them() -> None:
    _create(last_call_timeout="3", prefix="team/jobs", request_timeout="0.5")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endpoint": ""}, "endpoint is empty"),
        ({"endpoint": "http://localhost:8500"}, "scheme"),
        ({"endpoint": "localhost:0"}, "port '0' is not a number from 1 to 65535"),
        ({"prefix": "/"}, "The prefix '/' is empty.*team/jobs"),
        ({"prefix": "a//b"}, "'a//b' has an empty part.*team/jobs"),
        ({"prefix": "a/../b"}, r"'a/\.\./b' has the part '\.\.'.*team/jobs"),
        ({"token": "sec\nret"}, r"token.*is empty, or has blanks"),
        ({"token": ""}, r"token.*is empty"),
        ({"key": __file__}, "'key' needs 'cert'"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(RendezvousParameterError, match=complaint) as refused:
        _create(**options)
    assert "ret" not in str(refused.value) or "token" not in options
