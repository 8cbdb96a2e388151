"""What torchrun's command line says arrives as PyTorch's own backends understand it."""

import time
from typing import Any

import pytest
import rdzv
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import _parse_rendezvous_config

from rdzv_torchrun.config import our_parameters


def told(conf: str, backend: str = "sqlite", endpoint: str = "127.0.0.1:1") -> RendezvousParameters:
    """What torchrun makes of ``--rdzv-conf``; it adds a timeout itself."""
    config: dict[str, Any] = {**_parse_rendezvous_config(conf)}
    config.setdefault("timeout", 900)
    return RendezvousParameters(backend, endpoint, "job", 1, 1, **config)


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("join_timeout=5,attempt=1", {"join_timeout": "5", "attempt": "1"}),
        # As PyTorch's own launcher tests write it, in a list that no shell reads.
        ("'join_timeout=5,attempt=1,timeout=5'", {"join_timeout": "5", "attempt": "1", "timeout": "5"}),
        ('"join_timeout=5,attempt=1"', {"join_timeout": "5", "attempt": "1"}),
        ("'join_timeout=5'", {"join_timeout": "5"}),
        ("join_timeout='5',node_name=\"a\"", {"join_timeout": "5", "node_name": "a"}),
        ("node_name=''a''", {"node_name": "'a'"}),
        # These are not options of rdzv.
        ("node_name=it's", {"node_name": "it's"}),
        ("node_name='a", {"node_name": "'a"}),
        ("node_name='", {"node_name": "'"}),
    ],
)
def test_quotes_that_no_shell_took_off_are_taken_off(conf: str, expected: dict[str, Any]) -> None:
    assert our_parameters(told(conf)).config == {"timeout": 900, **expected}


def test_a_quote_alone_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"knows no option ''join_timeout'\. Did you mean 'join_timeout'"):
        get_rendezvous_handler(told("'join_timeout=5,attempt=1"))


@pytest.mark.parametrize(
    ("backend", "conf", "join_timeout"),
    [
        ("rdzv-etcd", "timeout=5", "5"),
        ("rdzv-etcd", "last_call_timeout=5", 900),
        ("rdzv-etcd", "timeout=5,join_timeout=7", "7"),
        ("rdzv-etcd-v2", "timeout=5", None),
        ("sqlite", "timeout=5", None),
    ],
)
def test_the_timeout_is_that_of_joining_where_it_is_so_in_pytorch(backend: str, conf: str, join_timeout: Any) -> None:
    assert our_parameters(told(conf, backend)).get("join_timeout") == join_timeout


def test_the_timeout_of_the_legacy_backend_ends_the_join() -> None:
    pytest.importorskip("rdzv_etcd_v2")
    with pytest.warns(DeprecationWarning, match="etcd-v2"):
        handler = get_rendezvous_handler(told("timeout=1", "rdzv-etcd"))
    started = time.monotonic()
    with pytest.raises(RendezvousError):
        handler.next_rendezvous()
    assert time.monotonic() - started < 60
    handler.shutdown()


@pytest.mark.parametrize("conf", ["on_shutdown=LEAVE ", "on_shutdown= Leave"])
def test_a_choice_is_taken_as_pytorch_takes_it(conf: str, database: str) -> None:
    assert get_rendezvous_handler(told(conf, endpoint=database)).shutdown()
    assert rdzv.RendezvousSettings.from_parameters(our_parameters(told(conf))).on_shutdown == "leave"
