import math
import re
from typing import Any

import pytest

from rdzv_core.parameters import RendezvousParameters


def make(**options: Any) -> RendezvousParameters:
    return RendezvousParameters("etcd-v3", "node1:2379", "job-7", 2, 4, **options)


EXPECTED = make(join_timeout="60")


# As PyTorch's.


def test_the_constructor_takes_pytorchs_arguments() -> None:
    params = RendezvousParameters(
        backend="b", endpoint="e", run_id="r", min_nodes=3, max_nodes=3, local_addr="10.0.0.7", x="1", self=2
    )
    assert (params.backend, params.endpoint, params.run_id) == ("b", "e", "r")
    assert (params.min_nodes, params.max_nodes, params.local_addr) == (3, 3, "10.0.0.7")
    assert params.config == {"x": "1", "self": 2}
    assert make().local_addr is None


def test_a_run_id_may_be_a_number() -> None:
    number: Any = 7
    assert RendezvousParameters("b", "e", number, 1, 1).run_id == "7"


@pytest.mark.parametrize("backend", [None, ""])
def test_a_backend_is_needed(backend: Any) -> None:
    with pytest.raises(ValueError, match=r"^The rendezvous backend name must be a non-empty string.$"):
        RendezvousParameters(backend, "", "r", 1, 1)


@pytest.mark.parametrize("min_nodes", [0, -5])
def test_min_nodes_is_above_zero(min_nodes: int) -> None:
    message = f"The minimum number of rendezvous nodes ({min_nodes}) must be greater than zero."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RendezvousParameters("b", "", "r", min_nodes, 1)


@pytest.mark.parametrize("max_nodes", [2, -2])
def test_max_nodes_is_not_below_min_nodes(max_nodes: int) -> None:
    message = (
        f"The maximum number of rendezvous nodes ({max_nodes}) must be greater than or equal to the minimum "
        "number of rendezvous nodes (3)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        RendezvousParameters("b", "", "r", 3, max_nodes)


def test_get_answers_what_was_given_or_the_default() -> None:
    params = make(x="1", none=None)
    assert params.get("x") == "1"
    assert params.get("y") is None
    assert params.get("y", default=5) == 5
    assert params.get("none", 5) is None
    params.config["y"] = 6
    assert params.get("y") == 6


@pytest.mark.parametrize(
    ("value", "expected"),
    [(text, True) for text in ("1", "True", "tRue", "T", "t", "yEs", "Y", 1, True)]
    + [(text, False) for text in ("0", "False", "faLse", "F", "f", "nO", "N", 0, False)]
    + [(None, None)],
    ids=repr,
)
def test_get_as_bool_reads_pytorchs_spellings(value: Any, expected: bool | None) -> None:
    assert make(x=value).get_as_bool("x") is expected


@pytest.mark.parametrize("value", ["01", "Ture", "", " 1", "on", 2, -1, 1.0, b"1", []])
def test_get_as_bool_refuses_the_rest(value: Any) -> None:
    message = "The rendezvous configuration option 'x' does not represent a valid boolean value."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(x=value).get_as_bool("x")


def test_get_as_bool_has_a_default() -> None:
    assert make().get_as_bool("x") is None
    assert make().get_as_bool("x", default=True) is True
    assert make(x=None).get_as_bool("x", True) is None


@pytest.mark.parametrize(
    ("value", "expected"), [("0", 0), ("-10", -10), (" 4 ", 4), (3, 3), (2.7, 2), (True, 1), (b"5", 5), (None, None)]
)
def test_get_as_int_reads_what_int_reads(value: Any, expected: int | None) -> None:
    assert make(x=value).get_as_int("x") == expected


@pytest.mark.parametrize("value", ["a", "0a", "3b", "", "0.5", math.nan])
def test_get_as_int_refuses_the_rest(value: Any) -> None:
    message = "The rendezvous configuration option 'x' does not represent a valid integer value."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$") as caught:
        make(x=value).get_as_int("x")
    assert isinstance(caught.value.__cause__, ValueError)


def test_get_as_int_raises_the_type_error_that_pytorchs_raises() -> None:
    with pytest.raises(TypeError):
        make(x=[]).get_as_int("x")


def test_get_as_int_has_a_default() -> None:
    assert make().get_as_int("x") is None
    assert make().get_as_int("x", default=5) == 5


# Beyond PyTorch's.


def test_equal_parameters_are_equal() -> None:
    assert make(x=1) == make(x=1)
    assert make(x=1) != make(x=2)
    assert make() != RendezvousParameters("etcd-v3", "node1:2379", "job-8", 2, 4)
    assert make() != "job-7"


def test_repr_shows_everything_but_secrets() -> None:
    params = make(user="me", password="geheim", ssl_token="geheim", join_timeout=60)
    params.endpoint = "http://me:geheim@node1:2379,you:geheim@node2"
    text = repr(params)
    assert "geheim" not in text
    for part in ("etcd-v3", "job-7", "min_nodes=2", "max_nodes=4", "node1:2379", "node2", "join_timeout=60", "'me'"):
        assert part in text


def test_defaults_are_for_what_is_not_given() -> None:
    params = make(x=1)
    assert params.with_defaults(x=2, y=3) == make(x=1, y=3)
    assert params == make(x=1)
