"""What is done after a failure: a pure function of a policy and of how often it failed in a row.

A policy is a ladder: so many failures are answered by one measure, the next ones by a stronger one, and whatever comes
after its last rung stops the run, with the reason and a checkpoint. Progress (a token, a swap, a group, a commit; what
counts is said with each policy) begins the count anew. Nothing is tried again without a pause, which grows with every
failure on a rung.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0


class Measure(StrEnum):
    AGAIN = "again"
    """The same is tried again; what failed is left as it is."""
    RESTART = "restart"
    """It is made anew in its place."""
    FROM_COMMIT = "from_commit"
    """All goes on from the last commit."""
    STOP = "stop"
    """The run ends, with the reason and a checkpoint. Of several that do the same: this one is given up."""


@dataclass(frozen=True, slots=True)
class Rung:
    measure: Measure
    failures: int | None = None
    """In a row, that it answers; None: all that come."""


Policy = tuple[Rung, ...]


@dataclass(frozen=True, slots=True)
class Next:
    measure: Measure
    pause_s: float = 0.0
    """Before the measure is taken."""


START: Policy = (Rung(Measure.RESTART, 2),)
"""Losses of a worker before the run is under way: one that is lost at each start will be again."""
ENGINE: Policy = (Rung(Measure.RESTART, 4),)
"""Deaths, without a token between: an engine that dies so often is gone."""
SWAP: Policy = (Rung(Measure.AGAIN, 2), Rung(Measure.RESTART))
"""Swaps that failed, without one that went well between. How long a run bears with it, the engine watch decides."""
RETURN: Policy = (Rung(Measure.RESTART),)
"""Attempts at building an engine anew. The engine watch decides here too."""
ROLLOUT_WORKER: Policy = (Rung(Measure.RESTART, 7),)
"""Losses, without a group that it finished between; see `roles/reissue.py` for which count."""
FUNCTIONS: Policy = (Rung(Measure.RESTART, 7),)
"""Losses of the functions worker, without an answer between."""
SCORER: Policy = (Rung(Measure.RESTART, 7),)
"""Losses of a model that only scores, without an answer between."""
TRAINER: Policy = (Rung(Measure.FROM_COMMIT, 3),)
"""Losses, without a commit between."""

BATCH: Policy = (Rung(Measure.AGAIN, 7),)
"""Times that a batch began, and columns were gone, without another batch between."""


def after_failure(policy: Policy, failures: int) -> Next:
    """After so many failures in a row, at least 1."""
    if failures < 1:
        raise ValueError(f"{failures} failures: nothing has failed")
    before = 0
    for rung in policy:
        if rung.failures is None or failures <= before + rung.failures:
            return Next(rung.measure, pause_after(failures - before))
        before += rung.failures
    return Next(Measure.STOP)


def pause_after(failures: int) -> float:
    """Seconds before what failed so often in a row is tried again."""
    return float(min(FIRST_PAUSE_S * 2 ** min(max(failures - 1, 0), 32), LONGEST_PAUSE_S))


class Restarts:
    """When what is made anew in its place is so too often, by role: a role that was restarted `most` times within
    `window_s`, or in a row without progress, is the `most`-th time not healed, but all goes on from the last commit.
    That is too often once it comes again within `window_s`, or without a commit since: the run stops."""

    def __init__(self, most: int, window_s: float) -> None:
        self.most = most
        self.window_s = window_s
        self._restarts: dict[str, list[tuple[float, int]]] = {}
        """Of each role those since all went on from a commit: when, and how far the run was."""
        self._from_commit: tuple[float, int] | None = None
        """When all did last, and the commit."""

    def after(self, role: str, now: float, *, batches: int, committed: int) -> Measure:
        """The role has failed, at `now`, in seconds. `batches`: that the run has trained, its progress. `committed`:
        the number of its last commit."""
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
