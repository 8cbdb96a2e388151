"""The options of the SQLite backend, apart from the endpoint."""

from typing import Final

from rdzv.options import Option

__all__ = ["OPTIONS"]

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "What the keys of every run begin with; runs with different ones never meet."),
    Option(
        "create",
        "boolean",
        True,
        "Whether a database that is not there is made; rdzv status and rdzv close make none unless this is given.",
    ),
)
