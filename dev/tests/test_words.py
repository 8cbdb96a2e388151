"""The word list of `lint` finds what it should, and only that."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[len(Path("dev/tools").parts)]
TOOL = "words"


def test_old_words_are_found_with_their_lines(tool: Any) -> None:
    words, _ = tool.read_words()
    text = "A node waits.\nWhoever waits, waits in\n    # vain: the lane is 'lane'.\n"
    found = [(line, word) for line, word, _ in tool.found_in(text, words)]
    assert found == [(2, "Whoever"), (2, "in vain"), (3, "lane"), (3, "lane")]


def test_old_words_are_found_in_names(tool: Any) -> None:
    words, _ = tool.read_words()
    names = "_lane two_lanes LANES MANY_LANES RunningLane runningLane test_it_is_told Lane"
    assert [word for _, word, _ in tool.found_in(names, words)] == [
        "lane", "lanes", "LANES", "LANES", "Lane", "Lane", "is_told", "Lane",
    ]  # fmt: skip


def test_parts_of_words_are_no_words(tool: Any) -> None:
    words, _ = tool.read_words()
    assert list(tool.found_in("planes, explanation, heartbeats, PLANES, Planes and GitHub\n", words)) == []


def test_every_word_has_a_better_one_and_every_exception_a_reason(tool: Any) -> None:
    words, allowed = tool.read_words()
    assert all(better.strip() for better in words.values())
    assert all(word in words and reason.strip() for file in allowed.values() for word, reason in file.items())


def test_glossary_is_short(tool: Any) -> None:
    rows = [row for row in (ROOT / "docs" / "glossary.md").read_text().splitlines() if row.startswith("| ")][2:]
    assert 25 <= len(rows) <= 40
