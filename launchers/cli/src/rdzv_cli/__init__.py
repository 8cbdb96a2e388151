"""The command ``rdzv``, and the agent that ``rdzv run`` is.

Nothing is imported before `main` is called, so that Ctrl-C while the command is imported ends it quietly.
"""

__all__ = ["main"]


def main() -> int:
    """Be the command: run what the arguments of this process say; returns the exit code with which it is to end."""
    try:
        from .command import be_process

        return be_process()
    except KeyboardInterrupt:
        return 130
