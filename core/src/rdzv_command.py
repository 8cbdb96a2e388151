"""The console script ``rdzv``. It is no part of the package, so that Ctrl-C while that is imported ends quietly."""

__all__ = ["main"]


def main() -> int:
    """Run the command; returns its exit code."""
    try:
        from rdzv.cli import main as command

        return command()
    except KeyboardInterrupt:
        return 130
