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


INITIAL = Version(0, 0)


class Lineage:
    """Which versions the present branch descends from.

    A branch forks from (parent, number): the parent's versions after that number were taken back.
    """

    def __init__(self, branch: int, forks: Mapping[int, Version]) -> None:
        """`forks`: where each branch but the first began."""
        self.branch = branch
        self._last_kept: dict[int, int] = {}
        child = branch
        while (fork := forks.get(child)) is not None:
            earlier = self._last_kept.get(child)
            self._last_kept[fork.branch] = fork.number if earlier is None else min(fork.number, earlier)
            child = fork.branch

    def lost(self, branches: NDArray[np.int32], versions: NDArray[np.int32]) -> NDArray[np.bool_]:
        """True where (branch, number) is no version of this lineage. Both arrays have shape [T]; -1 is not lost."""
        lost = (branches >= 0) & (branches != self.branch)
        for branch, last in self._last_kept.items():
            lost &= ~((branches == branch) & (versions <= last))
        return lost
