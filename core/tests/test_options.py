import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest

from rdzv_core.errors import RendezvousParameterError
from rdzv_core.options import Option, parse_options, read_options

HUGE = 16**5000
Kind = Literal["text", "integer", "seconds", "boolean", "path", "pairs"]


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("text", "a", "a"),
        ("text", 7, "7"),
        ("integer", " 7 ", 7),
        ("integer", 7, 7),
        ("seconds", "0.5", 0.5),
        ("seconds", 7, 7.0),
        ("seconds", 1e9, 1e9),
        ("boolean", "Yes", True),
        ("boolean", 0, False),
        ("boolean", True, True),
        ("pairs", "a=1; b = x=y ;", {"a": "1", "b": "x=y"}),
        ("pairs", "", {}),
        ("pairs", {"a": 1}, {"a": "1"}),
        ("path", __file__, __file__),
        ("path", Path(__file__), __file__),
        ("text", None, "default"),
    ],
)
def test_a_value_is_parsed_by_kind(kind: Kind, given: Any, expected: Any) -> None:
    parsed = Option("x", kind, "default", "Help.").parse(given)
    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("integer", "1.5"),
        ("integer", 1.5),
        ("integer", True),
        ("seconds", 0),
        ("seconds", "-1"),
        ("seconds", "inf"),
        ("seconds", "nan"),
        ("seconds", 1e10),
        ("seconds", "1 min"),
        ("seconds", False),
        ("boolean", "perhaps"),
        ("boolean", 2),
        ("path", "/no/such/file"),
        ("pairs", "a"),
        ("pairs", "=a"),
        ("pairs", "a=1;b=2;a=1"),
    ],
    ids=repr,
)
def test_an_impossible_value_names_option_and_value(kind: Kind, given: Any) -> None:
    with pytest.raises(RendezvousParameterError, match=re.escape(f"The option 'x' cannot be {given!r}: ")):
        Option("x", kind, None, "Help.").parse(given)


@pytest.mark.parametrize("kind", ["text", "integer", "seconds", "boolean", "path", "pairs"])
@pytest.mark.parametrize("given", [HUGE, -HUGE, [HUGE], {"a": HUGE}], ids=["above", "below", "listed", "mapped"])
def test_an_integer_that_python_cannot_write_down_is_refused_as_any_other_value(kind: Kind, given: Any) -> None:
    with pytest.raises(RendezvousParameterError, match=r"^The option 'x' cannot be what was given: "):
        Option("x", kind, None, "Help.").parse(given)


def test_an_integer_has_less_than_64_bits() -> None:
    option = Option("x", "integer", None, "Help.")
    for most in (2**63 - 1, 1 - 2**63):
        assert option.parse(str(most)) == option.parse(most) == most
    for more in (2**63, -(2**63), "9" * 4000):
        with pytest.raises(RendezvousParameterError, match="an integer of less than 64 bits is expected"):
            option.parse(more)


@pytest.mark.parametrize("given", [2.5, Decimal(2), Fraction(5, 2), b"3", "2.0", "", "9" * 5000])
def test_what_only_looks_like_an_integer_is_none(given: Any) -> None:
    with pytest.raises(RendezvousParameterError, match="an integer is expected, such as 3"):
        Option("x", "integer", None, "Help.").parse(given)


def test_a_value_without_end_is_shown_in_short() -> None:
    with pytest.raises(RendezvousParameterError) as refused:
        Option("x", "integer", None, "Help.").parse([0] * 10_000)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("given", ["abc", "", [], "1e999"])
@pytest.mark.parametrize(
    ("kind", "expected"), [("integer", "an integer.*such as 3"), ("seconds", "seconds above zero.*such as 2.5")]
)
def test_what_is_no_number_says_what_is_expected(kind: Kind, given: Any, expected: str) -> None:
    with pytest.raises(RendezvousParameterError, match=expected):
        Option("x", kind, None, "Help.").parse(given)


def test_a_choice_is_one_of_the_choices() -> None:
    option = Option("x", "text", "a", "Help.", choices=("a", "b"))
    assert option.parse("b") == "b"
    with pytest.raises(RendezvousParameterError, match="one of a, b is expected"):
        option.parse("c")


@pytest.mark.parametrize("given", ["DIGEST-MD5", "digest-md5", " Digest-MD5 "])
def test_a_choice_may_be_written_in_any_case_with_blanks_around_it(given: str) -> None:
    # PyTorch does the same with store_type and protocol.
    assert Option("x", "text", None, "Help.", choices=("DIGEST-MD5", "GSSAPI")).parse(given) == "DIGEST-MD5"


def test_seconds_may_be_zero_where_that_is_said() -> None:
    option = Option("x", "seconds", 0.0, "Help.", zero=True)
    assert (option.parse("0"), option.parse(0.5)) == (0.0, 0.5)
    for impossible in (-1, "inf", "nan", 1e10, False):
        with pytest.raises(RendezvousParameterError, match="x"):
            option.parse(impossible)


def test_options_are_read_together_with_their_defaults() -> None:
    known = (Option("wait", "seconds", 5.0, "Help."), Option("user", "text", None, "Help."))
    assert read_options({"user": "me"}, known, owner="b") == {"wait": 5.0, "user": "me"}


def test_an_unknown_option_gets_the_nearest_right_name_or_all() -> None:
    known = (Option("join_timeout", "seconds", 5.0, "Help."), Option("user", "text", None, "Help."))
    with pytest.raises(RendezvousParameterError, match=r"^b knows no option 'jointimeout'\. .*'join_timeout'\?$"):
        read_options({"jointimeout": "5"}, known, owner="b")
    with pytest.raises(RendezvousParameterError, match=r"^b knows no option 'xyz'\. It knows: join_timeout, user\.$"):
        read_options({"xyz": "5"}, known, owner="b")


def test_the_options_of_others_can_be_left_to_them() -> None:
    known = (Option("wait", "seconds", 5.0, "Help."),)
    assert parse_options({"color": "red"}, known) == {"wait": 5.0}
    assert parse_options({"wait": "7", "color": "red"}, known) == {"wait": 7.0}
