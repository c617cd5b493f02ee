"""Whether the trainer's devices are lent while it waits for a batch: pure, of what the last batches and lendings took.

Of n engines that have devices of their own, and m that are lent, the lent ones are expected to make a share
s = m / (n + m) of the tokens, or what they made lately, if that was less. A wait of W seconds, of which they need b to
begin, is so shortened by (W - b) * s; against that stand the seconds until they are taken back and the trainer has its
memory, and those in which other engines compute again what the lent ones had in flight.

Lending begins where it gives twice what it takes, and goes on while it gives more: else what the last batches differ by
would begin and end it all the time.

It ends before the batch is there, where the others alone make what is missing while the devices are on their way back.
With L the seconds that this much took lately, lent engines included, others need L / (1 - s) for it, and the seconds a
in which they compute again what was in flight; the way back takes w: it is time once L / (1 - s) + a <= w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_NEWS = 0.5
"""Weight of what was measured last, in the means that the rule goes by."""
_FORGOTTEN = 0.125
"""By so much the share that was measured falls back to the expected one with each batch without lending: what engines
have to do changes, and a share that is never tried again would be believed for ever."""
_ENOUGH = 2.0


@dataclass(frozen=True, slots=True)
class Lent:
    """One lending that is over."""

    seconds: float
    """From when the trainer had nothing to do until its batch was there."""
    begin_s: float | None
    """Of these, until a lent engine served; None if none did, or it served already."""
    share: float | None
    """Of the tokens that all engines sampled since then, those of the lent ones; None if there were none."""
    back_s: float
    """Until all lent ones slept, and the trainer had its memory."""
    again_s: float = 0.0
    """In which others compute again what was in flight."""
    early_s: float = 0.0
    """By which the way back began before the batch was there."""
    left_s: Mapping[int, float] = field(default_factory=dict)
    """By the number of groups that the batch lacked, the time from then until it was there; of some numbers."""


class LendingRule:
    """Told of each wait; asked before the next one."""

    def __init__(self, own: int, lent: int) -> None:
        """Numbers of engines."""
        self._expected = lent / (own + lent)
        self._share = self._expected
        self._wait: float | None = None
        """Without lending."""
        self._begin: float | None = None
        self._takes: float | None = None
        self._back = self._again = 0.0
        self._left: dict[int, float] = {}
        """By the number of groups that are missing, the time until none is, while devices are lent."""
        self._lends = True

    def waited(self, seconds: float) -> None:
        """The trainer waited so long for a batch, and nothing was lent."""
        self._wait = _mean(self._wait, seconds)
        self._share += _FORGOTTEN * (self._expected - self._share)

    def lent(self, lending: Lent) -> None:
        """It waited, and its devices were lent."""
        if lending.share is not None:
            self._share = _mean(self._share, self._of(lending))
        if lending.begin_s is not None:
            self._begin = _mean(self._begin, lending.begin_s)
        known = self._takes is not None
        self._back = _mean(self._back if known else None, lending.back_s)
        self._again = _mean(self._again if known else None, lending.again_s)
        self._takes = _mean(self._takes, max(lending.back_s - lending.early_s, 0.0) + lending.again_s)
        served = max(lending.seconds - lending.early_s - (lending.begin_s or 0.0), 0.0)
        share = self._of(lending)
        # What the lent ones made, the others would have made behind the rest.
        self._wait = _mean(self._wait, lending.seconds + served * share / (1 - share))
        for missing, seconds in lending.left_s.items():
            alone = min(seconds, lending.early_s)
            made = max(alone - lending.again_s, 0.0) * (1 - self._share)
            self._left[missing] = _mean(self._left.get(missing), seconds - alone + made)

    def _of(self, lending: Lent) -> float:
        """Their share. Where others had nothing to do, they would have made the rest beside it."""
        return 0.0 if lending.share is None else min(lending.share, self._expected)

    @property
    def gives_s(self) -> float:
        """By which lending is expected to shorten the next wait, without what it takes. 0 before any wait is known."""
        return max((self._wait or 0.0) - (self._begin or 0.0), 0.0) * self._share

    @property
    def takes_s(self) -> float:
        """What it is expected to take of the trainer's time, and of the other engines'."""
        return self._takes or 0.0

    def lends(self) -> bool:
        """Whether to lend now. The first time it is tried: nothing is known."""
        if self._wait is not None:
            self._lends = self.gives_s > self.takes_s * (1.0 if self._lends else _ENOUGH)
        return self._lends

    def ends(self, missing: int) -> bool:
        """Whether to take the devices back now, though the batch lacks so many groups. Not while nothing is known of
        how long these take."""
        left = self._left.get(missing)
        return left is not None and left <= (self._back - self._again) * (1 - self._share)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + _NEWS * (now - before)
