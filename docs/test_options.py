"""The tables of options, in docs/cli.md, are made of the options that there are."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from rdzv_cli.command import make_parser
from rdzv_cli.sources import CONFIG, Options, key_of, options_of, variable_of
from rdzv_cli.torchrun import OPTIONS, RENAMED

PAGE: Final = Path(__file__).parent / "cli.md"


def _options_of_run() -> Options:
    (commands,) = (action.choices for action in make_parser()._actions if isinstance(action.choices, dict))
    return options_of(commands["run"])


def _torchrun() -> Iterator[str]:
    yield "| torchrun | `rdzv run` | |"
    yield "| --- | --- | --- |"
    for name, renamed in RENAMED.items():
        yield f"| `{name}` | `{renamed}` | |"
    for name, option in OPTIONS.items():
        ours, why = f" `{option.ours}`" if option.ours else "", f" {option.why}" if option.why else ""
        yield f"| `{name}` |{ours} |{why} |"


def _variables() -> Iterator[str]:
    yield "| option | variable | key of a file |"
    yield "| --- | --- | --- |"
    for name, action in _options_of_run().items():
        flag = next(option for option in action.option_strings if option.startswith("--"))
        yield f"| `{flag}` | `{variable_of(name)}` | {f'`{key_of(name)}`' if name != CONFIG else ''} |".replace(
            "|  |", "| |"
        )


@pytest.mark.parametrize(("name", "rows"), [("torchrun", _torchrun()), ("variables", _variables())])
def test_the_table_is_of_the_options(name: str, rows: Iterator[str]) -> None:
    made = "\n".join(rows)
    _, mark, rest = PAGE.read_text().partition(f"\n<!-- made by docs/test_options.py: {name} -->\n")
    assert mark
    shown = rest.partition("\n\n")[0]
    if shown != made:
        pytest.fail(f"The table of {PAGE.name} has to be:\n{made}", pytrace=False)


def test_the_help_names_no_variable_that_is_not_in_the_table() -> None:
    named = {name for action in _options_of_run().values() for name in re.findall(r"RDZV_\w+", action.help or "")}
    assert named <= {variable_of(name) for name in _options_of_run()}
