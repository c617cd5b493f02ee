"""What the engines' time goes to, the mean of those that there are at each moment."""

from __future__ import annotations

from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineStats


class EnginesMean:
    """Seconds since this was made. What an engine did between two looks is divided by how many there were at the first,
    so that what is counted stays when more come or some leave. Those that are gone do not count, nor those that are
    lent."""

    def __init__(self, engines: EnginePool) -> None:
        self._engines = engines
        self._known: dict[int, EngineStats] = {}
        """What each that is there had done at the last look, by index."""
        self.computes_s = 0.0
        """Without what new weights had computed again."""
        self.swaps_s = 0.0
        self.idle_s = 0.0
        self.look()

    def look(self) -> None:
        """To be called whenever there may be more engines than before, or fewer."""
        own = self._engines.own
        stats = {member.index: member.stats() for member in own}
        for index, before in self._known.items():
            now = stats[index]
            computed = now.busy_s - before.busy_s - (now.recompute_s - before.recompute_s)
            self.computes_s += computed / len(self._known)
            self.swaps_s += (now.swap_stall_s - before.swap_stall_s) / len(self._known)
            self.idle_s += (now.idle_s - before.idle_s) / len(self._known)
        self._known = {member.index: stats[member.index] for member in own if member.state is not EngineState.GONE}
