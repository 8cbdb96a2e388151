import pytest

from rdzv_core.keys import escape, unescape
from rdzv_core.text import listed, printable, shown


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("job-7 of Zoë's", "job-7 of Zoë's"),
        ("a\x1b[31m\n\t\x00b", r"a\x1b[31m\n\t\x00b"),
        ("back\u202ewards", r"back\u202ewards"),
        ("\udcff", r"\udcff"),
        ("x" * 80, "x" * 80),
        ("ab" * 2500, "ab" * 19 + "..." + "ab" * 19),
    ],
)
def test_what_is_shown_is_one_short_line(text: str, line: str) -> None:
    assert printable(text) == line


def test_the_first_are_listed_and_the_others_counted() -> None:
    names = [f"n{number}" for number in range(21)]
    assert listed(names[:2]) == "n0, n1"
    assert listed(names[:20], "; ") == "; ".join(names[:20])
    assert listed(names) == f"{', '.join(names[:20])}, and 1 more"
    assert listed(names, total=70) == f"{', '.join(names[:20])}, and 50 more"
    assert listed(names, most=3) == "n0, n1, n2, and 18 more"
    assert listed([]) == ""


def test_a_value_is_shown_as_it_is_written_as_far_as_it_can_be() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown("a\n") == r"'a\n'"
    assert len(shown([0] * 1000)) == 79
    assert shown(16**5000) == shown(deep) == "what was given"


@pytest.mark.parametrize("name", ["a", ".", "..", "a b", "\u20ac", "\ud800", "=FF", "\x00/"])
def test_a_name_comes_back_from_its_segment(name: str) -> None:
    assert unescape(escape(name)) == name


@pytest.mark.parametrize("segment", ["=FF", "a=C3", "\u20ac=FF", "=ff", "\ud800", "="])
def test_a_segment_that_no_name_has_stands_for_itself(segment: str) -> None:
    assert unescape(segment) == segment
