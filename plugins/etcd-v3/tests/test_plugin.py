"""How the backend is found, and its options."""

from typing import Any

from rdzv_conformance.users import refusing
from rdzv_core.parameters import RendezvousParameters

from rdzv_etcd_v3 import EtcdV3Backend, create_backend


def _create(endpoint: str = "localhost", **options: Any) -> None:
    backend, _ = create_backend(RendezvousParameters("etcd-v3", endpoint, "run", 1, 1, **options))
    assert isinstance(backend, EtcdV3Backend)
    backend.close()


def test_options_of_others_are_left_to_them() -> None:
    _create(last_call_timeout="3", prefix="jobs", request_timeout="0.5")


test_what_cannot_be_used_is_refused = refusing(
    create_backend,
    {
        "endpoint": {"": "endpoint is empty", "http://localhost:2379": "scheme"},
        "prefix": {"/": "a prefix"},
        "user": {"me": "'user' and 'password'"},
        "key": {__file__: "'key' needs 'cert'"},
    },
)
