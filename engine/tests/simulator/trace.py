"""What has happened in a run, in words."""

from .clock import Timeline

__all__ = ["Trace"]


class Trace:
    """Lines with their moments; formatted only when they are printed."""

    def __init__(self, timeline: Timeline) -> None:
        """Begin."""
        self._timeline = timeline
        self._lines: list[tuple[float, str, tuple[object, ...]]] = []

    def log(self, line: str, *values: object) -> None:
        """Add a line: a format string and its values, which must not change any more."""
        self._lines.append((self._timeline.now, line, values))

    def __str__(self) -> str:
        return "\n".join(f"{moment:9.3f}  {line.format(*values)}" for moment, line, values in self._lines)
