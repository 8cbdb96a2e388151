"""The command ``rdzv``, and the agent that ``rdzv run`` is.

Nothing is imported before `main` is called, so that Ctrl-C while the command is imported ends it quietly.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Run the command; returns its exit code.

    Args:
        arguments: What the user has typed after ``rdzv``; None: those of this process, which ends then: a scheduler's
            SIGTERM and SIGUSR1 do not change its exit code any more.
    """
    try:
        from .command import main as command

        return command(arguments)
    except KeyboardInterrupt:
        return 130
