"""What an operating system can do to a node."""

from collections.abc import Callable

__all__ = ["Process"]


class Process:
    """The process that a node lives in: everything that the node does, it does through this.

    Attributes:
        alive: It has not been killed and has not ended.
        stopped: It stands still.
        stops: How often it was stopped.
    """

    def __init__(self) -> None:
        """Begin to live."""
        self.alive = True
        self.stopped = False
        self.stops = 0
        self._held_back: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def does(self, action: Callable[..., None], *arguments: object) -> None:
        """Act now, or later if it stands still, or never if it is dead."""
        if not self.alive:
            return
        if self.stopped:
            self._held_back.append((action, arguments))
        else:
            action(*arguments)

    def kill(self) -> None:
        """End, as kill -9 does."""
        self.alive = False

    def stop(self) -> None:
        """Stand still, as SIGSTOP does."""
        self.stopped = True
        self.stops += 1

    def go_on(self) -> None:
        """Go on, as SIGCONT does: whatever it missed happens now."""
        self.stopped = False
        while self._held_back and not self.stopped:
            action, arguments = self._held_back.pop(0)
            self.does(action, *arguments)
