"""What a simulated engine takes, and what goes wrong with it: plain data, in seconds of the run's clock."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """What an engine takes, in seconds."""

    slots: int = 64
    max_context: int = 1 << 20
    prefill_s: float = 2e-5
    """Of a token."""
    step_s: float = 0.02
    """Of a decode step with one sequence."""
    sequence_s: float = 1e-4
    """Of each further sequence in it."""
    receive_s: float = 0.5
    """Of new weights; decoding goes on meanwhile."""
    flip_s: float = 0.05
    """In which the weights are exchanged, and nothing is decoded."""
    sleep_s: float = 0.1
    """To give memory back, or to have it again."""
    stream_steps: int = 64
    """Decode steps of which those who stream hear together."""

    def step(self, sequences: int) -> float:
        return self.step_s + (sequences - 1) * self.sequence_s


@dataclass(frozen=True, slots=True)
class EngineFaults:
    """What goes wrong with an engine, by the seconds of the clock, and by the number of a version."""

    dies_at: float | None = None
    late_swaps: dict[int, float] = field(default_factory=dict)
    """Seconds that receiving a version takes longer."""
    failing_swaps: frozenset[int] = frozenset()
    """Versions that cannot be received the first time."""
    lost_swaps: frozenset[int] = frozenset()
    """Versions that it receives the first time, and loses: nobody is told."""
    slow: tuple[tuple[float, float, float], ...] = ()
    """(from, to, how many times slower)."""

    def slowness(self, now: float) -> float:
        return next((times for begin, end, times in self.slow if begin <= now < end), 1.0)


NO_FAULTS = EngineFaults()
