"""How the backend is found, and its options."""

from typing import Any

import pytest
from rdzv.registry import get_rendezvous_handler
from rdzv_conformance.users import refusing
from rdzv_core.errors import RendezvousParameterError
from rdzv_core.parameters import RendezvousParameters

from rdzv_etcd_v2 import EtcdV2Backend
from rdzv_etcd_v2.plugin import create_backend
from rdzv_etcd_v2.wire import read_entry


def _create(endpoint: str = "localhost", **options: Any) -> None:
    backend, _ = create_backend(RendezvousParameters("etcd-v2", endpoint, "run", 1, 1, **options))
    assert isinstance(backend, EtcdV2Backend)
    backend.close()


def test_an_endpoint_is_needed() -> None:
    with pytest.raises(RendezvousParameterError, match="'etcd-v2' needs an endpoint, such as host1:2379,host2:2379,"):
        get_rendezvous_handler(RendezvousParameters("etcd-v2", "", "run", 1, 1))


def test_options_of_others_are_left_to_them() -> None:
    _create(last_call_timeout="3", prefix="team/jobs", read_timeout="0.5")


test_what_cannot_be_used_is_refused = refusing(
    create_backend,
    {
        "endpoint": {"": "endpoint is empty", "http://localhost:2379": "scheme", "localhost:0": "port '0' is not"},
        "prefix": {"/": "The prefix '/' is empty.*team/jobs", "a/../b": r"'a/\.\./b' has the part '\.\.'.*team/jobs"},
        "etcd_prefix": {"": "The etcd_prefix '' is empty.*team/jobs", "a//b": "'a//b' has an empty part.*team/jobs"},
        "read_timeout": {"abc": "'read_timeout' cannot be 'abc': a number of seconds above zero.*such as 2.5"},
        "password": {"secret": "'user' and 'password'"},
        "ssl_cert_key": {__file__: "'ssl_cert_key' needs 'ssl_cert'"},
    },
)
test_a_colon_in_a_name_is_refused = refusing(create_backend, {"user": {"a:b": "colon"}}, password="secret")


@pytest.mark.parametrize("value", ["\u00fc", "no base64", "YQ=", "\u20ac" * 4])
def test_a_value_of_another_program_is_what_it_is(value: str) -> None:
    assert read_entry({"value": value, "modifiedIndex": 5, "createdIndex": 3}).value == value.encode()
