"""An aggregation of one's own: layer by layer, while backward pauses (what overlap is compared
with).

osucaffe train --solver S --ranks 4 --aggregation paused:Paused
"""

from typing import Any

from osucaffe.parallel.exchange import Collectives
from osucaffe.parallel.plan import CollectivePlan, Event, Pass, Send, Wait


class PausedPlan(CollectivePlan):
    """Waits for gradients where they are sent, not ahead of the update."""

    def of_pass(self, *, accumulate: bool, update: bool, finish: bool = True) -> Pass:
        """All else is as in the plan that it is made of."""
        made = super().of_pass(accumulate=accumulate, update=update, finish=finish)
        sent = {Wait(send.number) for send in self.gradients}
        for layer, events in made.after.items():
            made.after[layer] = [each for event in events for each in self.paused(event)]
        if made.after:
            made.then = [event for event in made.then if event not in sent]
        return made

    def paused(self, event: Event) -> list[Event]:
        """An event, and the wait for what it sends."""
        return [event, Wait(event.number)] if isinstance(event, Send) else [event]


class Paused(Collectives):
    """Carries out this plan, and all else as osucaffe does."""

    @classmethod
    def plan_of(cls, net: Any, config: Any, group: Any, **given: bool) -> PausedPlan:
        """`osucaffe predict` asks for it, too."""
        return PausedPlan(net, config, group, **given)
