"""What a user can tell this backend, apart from the endpoint."""

from typing import Final

from rdzv.options import Option

__all__ = ["OPTIONS"]

OPTIONS: Final = (
    Option("prefix", "text", "rdzv", "What the keys of every run begin with; runs with different ones never meet."),
)
