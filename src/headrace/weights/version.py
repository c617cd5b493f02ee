"""Names of weight versions."""

from __future__ import annotations

from typing import NamedTuple


class Version(NamedTuple):
    """(branch, number), ordered lexicographically.

    The number grows by one per trained batch; a restore after a crash opens a new branch.
    """

    branch: int
    number: int

    def __str__(self) -> str:
        return f"v{self.number}" if self.branch == 0 else f"v{self.number}~{self.branch}"


INITIAL = Version(0, 0)
