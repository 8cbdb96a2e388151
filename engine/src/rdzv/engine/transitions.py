"""The form of a table of states, from which its picture is drawn: what leads from one state to another."""

from enum import Enum
from typing import Generic, NamedTuple, TypeVar

StateT = TypeVar("StateT", bound=Enum)
TriggerT = TypeVar("TriggerT", bound=Enum)


class Transition(NamedTuple, Generic[StateT, TriggerT]):
    """One line of the table.

    Attributes:
        source: The state before.
        trigger: What happens.
        target: The state after.
        effects: The effects, or calls to the service, that bring it about; none: it happens by itself.
    """

    source: StateT
    trigger: TriggerT
    target: StateT
    effects: str = ""
