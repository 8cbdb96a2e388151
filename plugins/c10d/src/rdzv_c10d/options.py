"""The options of the c10d backend."""

from typing import Final

from rdzv_core.options import PREFIX, Option

OPTIONS: Final = (
    PREFIX,
    Option(
        "store_type",
        "text",
        "tcp",
        "tcp: a TCPStore at the endpoint; file: a FileStore at the endpoint, which is a path then.",
        choices=("tcp", "file"),
    ),
    Option(
        "is_host",
        "boolean",
        None,
        "tcp: whether this process serves the store; unset: it does if it can listen at the endpoint.",
    ),
    Option("read_timeout", "seconds", 60.0, "tcp: the longest that one call of the store may take."),
    Option(
        "linger",
        "seconds",
        30.0,
        "tcp: how long a process that serves the store goes on doing so when it is done and others are not.",
    ),
)
"""Every option of this backend; the names that PyTorch has, too, mean what they mean there."""
