"""What work says of how it gets on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.runtime.progress import Marks, Progress, Unit, marked_by


class Said(Marks):
    def __init__(self) -> None:
        super().__init__(Progress())
        self.units: list[Unit] = []
        """That have begun, in their order."""

    @property
    def rests(self) -> bool:
        """Whether nothing is to be expected of it."""
        return self.now[1] is None

    def mark(self, unit: Unit) -> None:
        self.units.append(unit)
        super().mark(unit)


@contextmanager
def said() -> Iterator[Said]:
    """Of what this thread does within; it has to be at rest behind it."""
    found = Said()
    with marked_by(found):
        yield found
    assert found.rests
