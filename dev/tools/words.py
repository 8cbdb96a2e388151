#!/usr/bin/env python3
"""Refuses words that have a better one: `words.toml` says which, and why some may stand somewhere.

Each is searched as a whole word and as a part of a name (`_lane`, `LANES`, `RunningLane`), in every Python and
Markdown file.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[len(Path("dev/tools").parts)]
WORDS: Final = Path(__file__).with_suffix(".toml")


def read_words(path: Path = WORDS) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The words with their better ones, and for each file the words that it may use, with the reason."""
    table = tomllib.loads(path.read_text())
    return table["words"], table.get("allowed", {})


def pattern_of(words: Sequence[str]) -> re.Pattern[str]:
    """Finds any of the words, also as a part of a name: `_lane`, `two_lanes_wait`, `RunningLane`, `LANES`.

    Between two words a line end or an underscore is as good as a space.
    """
    spelled = []
    for word in sorted(words, key=len, reverse=True):
        if word.islower():
            plain = re.escape(word).replace(r"\ ", r"(?:\s+(?:# )?|_)")
            spelled += [
                rf"(?<![A-Za-z])[{word[0].upper()}{word[0]}]{plain[1:]}(?![a-z])",
                rf"(?<![A-Z]){plain.upper()}(?![A-Z])",
            ]
            spelled.append(rf"(?<=[a-z])(?<!Git){word[0].upper()}{plain[1:]}(?![a-z])")
        else:
            spelled.append(rf"(?<!\w){re.escape(word)}(?!\w)")
    return re.compile("|".join(spelled))


def found_in(text: str, words: dict[str, str]) -> Iterator[tuple[int, str, str]]:
    """Line, word and better word of each old one in a text."""
    for match in pattern_of(list(words)).finditer(text):
        word = re.sub(r"\s+(?:# )?", " ", match[0])
        better = words.get(word) or words[word.replace("_", " ").lower()]
        yield text.count("\n", 0, match.start()) + 1, word, better


def main() -> int:
    """Print each old word; 1 if there is any."""
    words, allowed = read_words()
    command = [shutil.which("git") or "git", "ls-files", "*.py", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    complaints = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if not path.is_file() or path.name in ("words.py", "test_words.py"):
            continue
        here = {word: better for word, better in words.items() if word not in allowed.get(path.name, {})}
        complaints += [
            f"{name}:{line}: {word!r}: say {better}" for line, word, better in found_in(path.read_text(), here)
        ]
    print("\n".join(complaints) or "no old words")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
