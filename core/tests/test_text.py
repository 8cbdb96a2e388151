import pytest

from rdzv.text import printable


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
