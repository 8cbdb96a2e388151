"""What all simulated nodes share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .clock import Timeline
from .network import Weather
from .plan import Plan
from .service import SimulatedService
from .story import Story
from .strand import Strands

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["Scene"]


@dataclass
class Scene:
    """The stage of one run.

    Attributes:
        plan: What the run is to be.
        timeline: Virtual time.
        service: The service.
        weather: How bad the ways to it are.
        story: What has happened.
        strands: What blocks.
        machines: Every node there ever was.
        attempt: The attempt that new nodes belong to.
        rough: The weather is, or was, such that even a node that was never disturbed may have been
            out of touch for a time to live.
        corrupt: The state was overwritten for a while, so nodes may have to say so.
        closers: The ids of the nodes that were told to close the run.
        amnesia: The service has forgotten what it had confirmed: who relied on it may be wrong.
        stores: Whether programs use the store of their round.
        arrive: Lets a new node come.
    """

    plan: Plan
    timeline: Timeline
    service: SimulatedService
    weather: Weather
    story: Story
    strands: Strands = field(default_factory=Strands)
    machines: list["Machine"] = field(default_factory=list)
    attempt: int = 0
    rough: bool = False
    corrupt: bool = False
    closers: set[str] = field(default_factory=set)
    amnesia: bool = False
    stores: bool = True
    arrive: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, plan: Plan) -> "Scene":
        """Set the stage for a plan."""
        timeline = Timeline()
        service = SimulatedService(timeline, leases_sleep=plan.leases_sleep, lag=plan.lag)
        weather = Weather(plan.delay, plan.lost, plan.late, plan.mute)
        # A slow network leaves too little of a time to live for two attempts.
        rough = plan.lost > 0 or plan.late > 0 or plan.delay * 100 > plan.ttl / 3
        return cls(plan, timeline, service, weather, Story(timeline), rough=rough)

    def living(self, attempt: int | None = None) -> list["Machine"]:
        """The nodes that run, of one attempt or of all."""
        return [one for one in self.machines if one.alive and attempt in (None, one.settings.attempt)]
