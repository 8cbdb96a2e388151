"""What a service may send that nothing of rdzv has written, as strategies of hypothesis."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

DEEP = 100_000
DIGITS = 4301
"""One more than Python reads, or writes, as an integer."""

_LEAVES = [
    *("null", "true", "0", "-1", "1", "0.5", "1e999", "-1e999", "NaN", '""', "[]", "{}", "[[]]", '{"":0}'),
    *(str(2**bits + more) for bits in (31, 53, 63, 64) for more in (-1, 0, 1)),
    *("9" * digits for digits in (18, 19, 20, 400, DIGITS - 1, DIGITS)),
    *('"' + "9" * digits + '"' for digits in (19, 20, DIGITS - 1, DIGITS)),
    *(f'"{text}"' for text in (r"\ud800", r"\u0000", r"\u001b[2J\n", "a/../b", "//", ".", "x" * 70_000)),
    *('"\u0663"', '"=FF"'),
    "[" * DEEP + "]" * DEEP,
    "[" * DEEP,
    "[" + "0," * 50_000 + "0]",
]
_PLACE = "<the place of the hostile value>"

SEGMENTS = st.sampled_from(
    [
        *(
            "",
            ".",
            "..",
            "0",
            "1",
            "01",
            "-1",
            "\u0663",
            "9" * 19,
            "9" * 20,
            "9" * DIGITS,
            "=FF",
            "=ED=A0=80",
            "\u20ac",
        ),
        *("a b", "\x00", "\x1b[2J", "%", "x" * 3000, "x@0123456789abcdef", "state", "status", "leader", "store"),
    ]
) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/"), max_size=8)
"""Parts of the names of keys."""


def mutated(valid: Any) -> st.SearchStrategy[bytes]:
    """JSON like this, but that something in it is another value, or its bytes are changed."""
    places = list(_places(valid))

    def replaced(place: int, leaf: str) -> bytes:
        text = json.dumps(places[place](_PLACE))
        return text.replace(json.dumps(_PLACE), leaf).encode("utf-8", "surrogatepass")

    place = st.integers(0, len(places) - 1)
    other = st.text(max_size=20).map(json.dumps) | st.integers().map(str)
    known = st.builds(replaced, place, st.sampled_from(_LEAVES))
    return known | known | st.builds(replaced, place, other) | damaged(json.dumps(valid).encode())


def damaged(data: bytes) -> st.SearchStrategy[bytes]:
    """The same bytes with some of them changed, or cut off."""

    def apply(start: int, length: int, other: bytes) -> bytes:
        return data[:start] + other + data[start + length :]

    return st.builds(apply, st.integers(0, len(data)), st.integers(0, 8), st.binary(max_size=8))


def _places(value: Any) -> Iterator[Callable[[Any], Any]]:
    """For each part of a value what puts another one there."""
    yield lambda other: other
    if isinstance(value, dict):
        for key, part in value.items():
            for put in _places(part):
                yield lambda other, key=key, put=put: {**value, key: put(other)}  # type: ignore[misc]
            yield lambda other, key=key: {(other if one == key else one): there for one, there in value.items()}  # type: ignore[misc]
    elif isinstance(value, list):
        for index, part in enumerate(value):
            for put in _places(part):
                yield lambda other, index=index, put=put: [*value[:index], put(other), *value[index + 1 :]]  # type: ignore[misc]
        yield lambda other: [*value, other]


def fuzzed(examples: int) -> settings:
    """So many examples, however long they take: what hangs the limits of the test itself find."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
        database=None,
        print_blob=True,
        # What the soak passes it passes the next time, too; `python3 dev.py fuzz` looks for more.
        derandomize="RDZV_FUZZ" not in os.environ,
    )
