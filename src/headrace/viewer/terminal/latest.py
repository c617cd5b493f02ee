"""The latest rollouts that a run keeps, for the live view."""

from __future__ import annotations

from pathlib import Path

from headrace.store import StoreError
from headrace.store.rollouts import Query, Rollout, RolloutsReader
from headrace.viewer.terminal.rollout_pane import MOST

_LOOKED_AT = 8


class LatestRollouts:
    """Reads when there is a new version. That record can be lost: then there are none."""

    def __init__(self, run: Path) -> None:
        """`run`: the run's folder."""
        self._run = run
        self._number = -1
        self._found: tuple[Rollout, ...] = ()

    def read(self, number: int) -> tuple[Rollout, ...]:
        """The best and the worst of the last batch first; `number`: of the run's newest version."""
        if number != self._number:
            self._number, self._found = number, self._read()
        return self._found

    def _read(self) -> tuple[Rollout, ...]:
        if not RolloutsReader.exists(self._run):
            return ()
        try:
            with RolloutsReader(self._run) as reader:
                newest = reader.read(Query(order="batch", descending=True, limit=_LOOKED_AT))
        except StoreError:
            return ()
        batch = max((rollout.batch for rollout in newest), default=0)
        scored = sorted(
            (rollout for rollout in newest if rollout.batch == batch and rollout.reward is not None),
            key=lambda rollout: (rollout.reward or 0.0, rollout.key, rollout.episode),
        )
        ends = [scored[-1], scored[0]] if len(scored) > 1 else scored
        rest = [rollout for rollout in newest if all(rollout is not end for end in ends)]
        return tuple([*ends, *rest][:MOST])
