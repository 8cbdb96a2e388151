"""The options of the SQLite backend, apart from the endpoint."""

from typing import Final

from rdzv_core.options import PREFIX, Option

OPTIONS: Final = (
    PREFIX,
    Option(
        "create",
        "boolean",
        True,
        "Whether a database that is not there is made; rdzv status and rdzv close make none unless this is given.",
    ),
)
