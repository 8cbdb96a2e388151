"""How the backend is found, and its options."""

from typing import Any

import pytest
from rdzv_conformance.users import refusing
from rdzv_core.parameters import RendezvousParameters

from rdzv_etcd_v3 import EtcdV3Backend, create_backend
from rdzv_etcd_v3.wire import KeySpace, encode, read_entry


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


def test_the_name_of_a_key_may_be_no_text() -> None:
    keys = KeySpace("/rdzv/run/")
    pair = {"key": encode(b"/rdzv/run/nodes/\xff")}
    assert keys.key(keys.name(pair)) == pair
    assert set(keys.under(keys.name(pair))) == set(keys.below(keys.name(pair))) == {"key", "range_end"}


@pytest.mark.parametrize("number", ["-1", "9" * 20, "9" * 4301, "x", None])
def test_a_revision_that_no_etcd_has_is_refused(number: str | None) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_entry({"mod_revision": number, "create_revision": "3"})
    with pytest.raises((ValueError, TypeError)):
        read_entry({"mod_revision": "3", "create_revision": number})
