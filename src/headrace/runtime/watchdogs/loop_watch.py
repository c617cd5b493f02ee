"""What the watchdog makes of beats, dumps and signals: a state machine without a clock and without I/O.

The loop of the run beats once in a while. If it stops, where the run's threads are is dumped, again and again until
the next beat: by a thread of the run, or at a signal where the interpreter gives that thread no turn. A signal to end
the run is seen here too, whatever the run's interpreter is busy with.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

BEAT, TURN = 0, 255
"""What is written for a beat, and for the thread's turn; else it is the number of a signal."""
DUMP_SIGNAL: int | None = getattr(signal, "SIGRTMAX", None)
"""At which `faulthandler` dumps; None where the system has none that is nobody's."""
HEADING = "Timeout ("
"""Of a dump of the thread's."""
BEAT_S = 1.0
"""Between two beats."""
BLOCKED_S = 5.0
"""A loop that did not beat for so long is blocked."""
SETTLE_S = 2.0
"""A process that was stopped or swapped out dumps and beats at once when it goes on: that is no block."""
LOOK_S = 0.5
"""Between two looks at what is to be told."""
_ANSWER_S = 2 * BEAT_S
"""A loop that turns has beaten by then."""
_GRACE_S = 2.0
"""In which a process that is told to end a second time may do so by itself."""
_MEND = (
    "nothing else of the run goes on meanwhile. What is slow must be awaited, or handed to a thread with `await "
    "asyncio.to_thread(...)`. Two signals (Ctrl-C twice) end the process at once, and --resume goes on"
)


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people must hear of."""

    words: str
    mend: str = ""
    """What to do about it."""
    kind: str | None = None
    """Of the event in the run's record; None is none."""
    blocked_s: float = 0.0
    """How long the loop had been blocked."""


class LoopWatch:
    """Is told what happens, with the time, and asked for `notices` afterwards; monotonic seconds throughout."""

    def __init__(self, now: float, *, ends_after_s: float) -> None:
        """A loop that is blocked for `ends_after_s` ends the process."""
        self._ends_after_s = ends_after_s
        self._last_beat = now
        self._place: str | None = None
        """Where the loop is blocked, by the last dump."""
        self._dumped_at = now
        self._dumps = 0
        """Since the last beat."""
        self._next_s = BLOCKED_S
        """Of a block's length: when it is told again."""
        self._told = False
        self._signals = 0
        self._signal = ""
        self._turned = self._asked = now
        """When the interpreter was last seen to go on, and when a dump was last asked for."""
        self._signalled_at = now
        self._unanswered = False

    def beat(self, now: float) -> list[Notice]:
        """The loop went round."""
        blocked, place = self._blocked_s(now), self._place if self._told else None
        self._last_beat, self._next_s, self._dumps = now, BLOCKED_S, 0
        self._told, self._place, self._unanswered = False, None, False
        self._turned = now
        if place is None:
            return []
        words = f"the event loop goes on, which had been blocked for {blocked:.0f} s, {place}"
        return [Notice(words, kind="went_on", blocked_s=blocked)]

    def turned(self, now: float) -> None:
        """The interpreter goes on, or is not to: the process is stopped."""
        self._turned = now

    def asks(self, now: float) -> bool:
        """Whether the process is to be asked for a dump, since the interpreter has given no thread a turn for long.
        Once for each answer of True."""
        if now - max(self._turned, self._asked) < BLOCKED_S:
            return False
        self._asked = now
        return True

    def dumped(self, place: str | None, now: float) -> None:
        """A dump has come; `place` as of `blocked_at`."""
        self._place, self._dumped_at = place, now
        self._dumps += 1

    def signalled(self, number: int, now: float) -> None:
        """The run's process got this signal."""
        self._signals += 1
        self._signal = signal.Signals(number).name
        self._signalled_at = now
        self._unanswered = self._signals == 1

    def notices(self, now: float) -> list[Notice]:
        """What is to be told by now. Call about every `LOOK_S`."""
        told = []
        blocked = self._blocked_s(now)
        where = "" if self._place is None else f", {self._place}"
        if self._place is not None and now - self._dumped_at >= SETTLE_S and blocked >= self._next_s:
            while self._next_s <= blocked:
                self._next_s *= 2
            words = f"the event loop has been blocked for {blocked:.0f} s{where}"
            told.append(Notice(words, "" if self._told else _MEND, "blocked", blocked))
            self._told = True
        if self._unanswered and now - self._signalled_at >= _ANSWER_S and blocked >= _ANSWER_S:
            self._unanswered = False
            words = f"told to stop by {self._signal}, but the event loop has not answered for {blocked:.0f} s{where}"
            told.append(Notice(words, "a second signal ends the process at once, and --resume goes on"))
        return told

    def must_end(self, now: float) -> Notice | None:
        """That the process has to be killed now, if it has to."""
        if self._signals > 1 and now - self._signalled_at >= _GRACE_S:
            return Notice(f"ended by {self._signal}")
        blocked = self._blocked_s(now)
        if self._told and self._place is not None and blocked >= self._ends_after_s:
            words = f"the event loop has been blocked for {blocked:.0f} s (runtime.stall_timeout_s), {self._place}"
            return Notice(words, "the run is ended; mend that, and --resume it", "ended_blocked", blocked)
        return None

    def _blocked_s(self, now: float) -> float:
        """How long the loop has not beaten, as far as dumps bear it out, one every `BLOCKED_S`: none are made while the
        process is stopped."""
        return min(now - self._last_beat, BLOCKED_S * (self._dumps + 1))
