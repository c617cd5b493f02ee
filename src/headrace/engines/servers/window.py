"""How many requests a server is given at once: as many as its KV cache holds, and no more.

A server takes whatever it is sent. Once its cache is full it throws sequences out and computes them again from their
first token when there is room: what it had computed of them is lost, and the longest suffer most. So the rest wait with
us, where waiting costs nothing and an update has less to interrupt.

The window opens by steps and shuts by a factor, as TCP's does (Chiu and Jain, 1989): of the four ways it is the one
that neither oscillates for ever nor starves.
"""

from __future__ import annotations

from dataclasses import dataclass

SOFT = 0.80
"""KV use below which there is room. What runs goes on growing: of sequences that are half done on average, the cache at
four fifths holds all that are there to their end only if some end first, which they do."""
HIGH = 0.95
"""KV use above which the next look may come too late: within a second a sequence grows by some hundred tokens, and of
a cache that holds 64 sequences of 2,000 that is a twentieth."""
_STEPS = 64
"""From nothing to all slots, at one look a second: a minute, as long as long sequences live. What begins now takes its
whole room only then, so a window that opens faster overshoots by what it has not seen yet."""
_FACTOR = 0.75


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What a server says of itself."""

    kv_use: float
    """Share of its KV cache that is taken, from 0 to 1."""
    running: int
    """Sequences that it computes."""
    preempted: int
    """Sequences that it threw out to make room, since it started."""


@dataclass(frozen=True, slots=True)
class Window:
    slots: int
    """The most, whatever room there is."""
    size: int
    """Requests that the server may have now; at least 1."""
    preempted: int | None = None
    """As it was told last."""

    @classmethod
    def open(cls, slots: int) -> Window:
        """Of a server that has nothing yet: it is taken to hold what it says that it does."""
        return cls(slots, slots)

    def after(self, load: ServerLoad, in_flight: int) -> Window:
        """Once the server has said how it fares, with so many requests."""
        thrown = self.preempted is not None and load.preempted > self.preempted
        if in_flight > self.size:  # it was shut, and what was begun before is still there
            return Window(self.slots, self.size, load.preempted)
        if thrown or load.kv_use >= HIGH:
            return Window(self.slots, max(1, int(min(self.size, self._would_fit(load)) * _FACTOR)), load.preempted)
        if load.kv_use < SOFT and in_flight >= self.size:
            return Window(self.slots, min(self.slots, self.size + max(1, self.slots // _STEPS)), load.preempted)
        return Window(self.slots, self.size, load.preempted)

    def _would_fit(self, load: ServerLoad) -> float:
        """Sequences such as it computes now: what waits there is not what fills it, and what it computes may be few, or
        nothing, for a moment, as where many end at once."""
        return load.running / load.kv_use if load.running and load.kv_use > 0 else self.size
