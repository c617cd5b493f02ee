"""Names of weight versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Version(NamedTuple):
    """(branch, number), ordered lexicographically.

    The number grows by one per trained batch; a restore after a crash opens a new branch.
    """

    branch: int
    number: int

    def __str__(self) -> str:
        return f"v{self.number}" if self.branch == 0 else f"v{self.number}~{self.branch}"

    def reaches(self, floor: Version) -> bool:
        """Whether an engine that holds this may serve what asks for `floor` or newer: of a branch as new, and of a
        number as great. As tuples (1, 0) would come after (0, 7), whose successor it is not."""
        return self.branch >= floor.branch and self.number >= floor.number


INITIAL = Version(0, 0)


class Lineage:
    """Which versions the present branch descends from. Where a branch forked off, its parent's later versions were
    taken back."""

    def __init__(self, branch: int, last_kept: Mapping[int, int]) -> None:
        """`branch`: the present one. `last_kept`: for each branch of its line, the last number that was kept."""
        self.branch = branch
        self._last_kept = dict(last_kept)

    def holds(self, version: Version) -> bool:
        """Whether it is a version of this line."""
        return version.branch == self.branch or version.number <= self._last_kept.get(version.branch, -1)

    def lost(self, branches: NDArray[np.int32], versions: NDArray[np.int32]) -> NDArray[np.bool_]:
        """True where (branch, number) is no version of this line. All arrays have shape [T]; -1 is not lost."""
        lost = branches >= 0
        for branch, last in self._last_kept.items():
            lost &= ~((branches == branch) & (versions <= last))
        return lost
