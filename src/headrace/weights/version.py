"""Names of weight versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Version(NamedTuple):
    """(branch, number), ordered lexicographically.

    The number grows by one per trained batch; a restore after a crash opens a new branch.
    """

    branch: int
    number: int

    def __str__(self) -> str:
        return f"v{self.number}" if self.branch == 0 else f"v{self.number}~{self.branch}"

    def serves(self, floor: Version) -> bool:
        """Whether an engine that holds this, and knows no line, may serve a request that was made with `floor`: if it
        is as new on its branch, or if the run went back since. Whatever ran then has been given a deadline that every
        version of the later branch meets (`Lineage.floor`). Whether this is of the run's line, the pool knows."""
        return self >= floor


INITIAL = Version(0, 0)


class Lineage:
    """Which versions the present branch descends from. Where a branch forked off, its parent's later versions were
    taken back."""

    def __init__(self, branch: int, last_kept: Mapping[int, int]) -> None:
        """`branch`: the present one. `last_kept`: for each branch of its line, the last number that was kept."""
        self.branch = branch
        self._last_kept = dict(last_kept)
        self._forks: list[Version] = []
        """Where the run went on from each time that it went back since this was made: the first version of the branch
        that it was on from then on."""
        self._left: list[int] = []
        """The branches that it was on before."""

    def go_back(self, begun: Version, last_kept: Mapping[int, int]) -> None:
        """The run goes on from `begun`, the first version of a new branch; whoever holds this knows. `last_kept`: as at
        the beginning, of the new branch's line."""
        self._left.append(self.branch)
        self.branch = begun.branch
        self._last_kept = dict(last_kept)
        self._forks.append(begun)

    def floor(self, version: Version) -> int:
        """The number of the oldest version of this line that may serve what asks for `version` or newer. Where the run
        went back behind `version` since, that is where it went on from: what is generated from there on has to be."""
        if not self._forks:
            return version.number
        later = [fork.number for fork in self._forks if fork.branch > version.branch]
        return min([version.number, *later])

    def holds(self, version: Version) -> bool:
        """Whether it is a version of this line."""
        return version.branch == self.branch or not self.lost(*version)

    def held(self, version: Version) -> bool:
        """Whether it is a version of this line, or was one until the run went back: what was in flight then may have
        been served by it."""
        return version.branch in self._left or self.holds(version)

    def lost(self, branch: int, number: int) -> bool:
        """Whether (branch, number) is no version of this line."""
        return number > self._last_kept.get(branch, -1)
