"""What is done after a failure: a pure function of a policy, and of the number of failures in a row.

A policy is a ladder. Each rung answers so many failures by one measure, the next rung those that follow by a stronger
one; a failure beyond the last rung stops the run, with the reason and a checkpoint. Progress sets the count back to 0:
what counts as progress (a token, a swap, a group, a commit) is said with each policy. Nothing is tried again without a
pause, which doubles with every failure on a rung. Beside that, losses that come too often within a time, whatever came
between, have a bound (`LossWindow`, `Restarts`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0


class Measure(StrEnum):
    AGAIN = "again"
    """The same is tried again, by the same part."""
    RESTART = "restart"
    """The part is made anew in its place."""
    FROM_COMMIT = "from_commit"
    """All goes on from the last commit."""
    STOP = "stop"
    """The run ends, with the reason and a checkpoint. A part that others can stand in for, as an engine, is given up
    instead, and so is a request."""


@dataclass(frozen=True, slots=True)
class Rung:
    measure: Measure
    failures: int | None = None
    """How many in a row it answers; None: all that follow."""


Policy = tuple[Rung, ...]


@dataclass(frozen=True, slots=True)
class Next:
    measure: Measure
    pause_s: float = 0.0
    """Before the measure is taken."""


START: Policy = (Rung(Measure.RESTART, 2),)
"""Losses of a worker before the run is under way. Few: one that is lost at each start will be lost at the next."""
ENGINE: Policy = (Rung(Measure.RESTART, 4),)
"""Deaths without a token between them. An engine that dies more often is given up."""
SWAP: Policy = (Rung(Measure.AGAIN, 2), Rung(Measure.RESTART))
"""Failed swaps without a good one between them. When a run must end for it is the engine watch's to decide."""
RETURN: Policy = (Rung(Measure.RESTART),)
"""Attempts at making an engine anew. When a run must end for it is the engine watch's to decide, too."""
REQUEST: Policy = (Rung(Measure.AGAIN, 2),)
"""Failures of a request by engines that live, without a token between them. Others are asked at once, and the same ones
after the pause; then they are not asked any more."""
ROLLOUT_WORKER: Policy = (Rung(Measure.RESTART, 7),)
"""Losses without a group finished between them; `roles/reissue.py` says which of them count."""
FUNCTIONS: Policy = (Rung(Measure.RESTART, 7),)
"""Losses of the functions worker without an answer between them."""
SCORER: Policy = (Rung(Measure.RESTART, 7),)
"""Losses of a model that only scores, without an answer between them."""
TAKE: Policy = (Rung(Measure.AGAIN, 5),)
"""Versions that such a model could not take, though they were offered, without a good one between them: 8 seconds, in
which the loss of whoever had it is known. A fault that lasts is then told."""
TRAINER: Policy = (Rung(Measure.FROM_COMMIT, 3),)
"""Losses of a trainer without a commit between them."""

BATCH: Policy = (Rung(Measure.AGAIN, 7),)
"""Times that columns of one batch were found to be lost, so that it was begun again."""


def after_failure(policy: Policy, failures: int) -> Next:
    """`failures`: in a row, this one included. Raises ValueError for fewer than 1."""
    if failures < 1:
        raise ValueError(f"{failures} failures: nothing has failed")
    before = 0
    for rung in policy:
        if rung.failures is None or failures <= before + rung.failures:
            return Next(rung.measure, pause_after(failures - before))
        before += rung.failures
    return Next(Measure.STOP)


def pause_after(failures: int) -> float:
    """Seconds before the next attempt, after so many failures in a row."""
    return float(min(FIRST_PAUSE_S * 2 ** min(max(failures - 1, 0), 32), LONGEST_PAUSE_S))


@dataclass(frozen=True, slots=True)
class Often:
    """Losses of one worker that are too many within a time, whatever it did between them."""

    most: int
    """The last of so many is."""
    window_s: float


class LossWindow:
    """Losses of one worker."""

    def __init__(self, often: Often | None) -> None:
        """None: however many there are."""
        self._often = often
        self._losses: list[tuple[float, Hashable]] = []

    def lost(
        self, now: float, what: Hashable = None, is_explained: Callable[[Any], bool] = lambda what: False
    ) -> str | None:
        """It was lost at `now`, in seconds. If that is too often, how often it was, in words. `what` it was at: a
        loss that `is_explained` by that, now or later, does not count."""
        if self._often is None:
            return None
        most, window_s = self._often.most, self._often.window_s
        self._losses = [
            (at, which) for at, which in (*self._losses, (now, what)) if now - at < window_s and not is_explained(which)
        ]
        if len(self._losses) < most:
            return None
        return f"{most} times within {window_s:g} s (runtime.restarts.workers)"


class Restarts:
    """Escalates restarts that come too often, role by role. The `most`-th failure of a role within `window_s`, or in a
    row without a batch trained between them, is no longer answered by a restart of the role: all goes on from the last
    commit. Where that is due once more within `window_s`, or before another commit, the run stops."""

    def __init__(self, most: int, window_s: float) -> None:
        self.most = most
        self.window_s = window_s
        self._restarts: dict[str, list[tuple[float, int]]] = {}
        """Of each role those since all last went on from a commit: when (seconds), and after how many batches."""
        self._from_commit: tuple[float, int] | None = None
        """When all last went on from a commit (seconds), and from which."""

    def after(self, role: str, now: float, *, batches: int, committed: int) -> Measure:
        """How the failure of `role` at `now`, in seconds, is answered. `batches`: how many the run has trained, its
        progress. `committed`: the number of its last commit."""
        known = self._restarts.setdefault(role, [])
        known[:] = [(at, then) for at, then in known if now - at < self.window_s or then == batches]
        known.append((now, batches))
        within = sum(now - at < self.window_s for at, _ in known)
        in_a_row = sum(then == batches for _, then in known)
        if max(within, in_a_row) < self.most:
            return Measure.RESTART
        self._restarts.clear()
        last, self._from_commit = self._from_commit, (now, committed)
        again = last is not None and (now - last[0] < self.window_s or last[1] == committed)
        return Measure.STOP if again else Measure.FROM_COMMIT
