"""What the scheduler asks of the KV cache: room for the tokens of each slot. Knows numbers, nothing of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Copy:
    """The first `length` tokens of one place of the cache, a slot or a page, to another."""

    source: int
    target: int
    length: int


class Storage(Protocol):
    """Whose room is in parts: a slot takes as many as its tokens need."""

    @property
    def free(self) -> int:
        """Parts that nobody has."""

    def lacks(self, slot: int | None, tokens: int, shared: int = 0) -> int:
        """Parts that the slot would have to take for so many tokens, the first `shared` of which another slot has.
        None: one that has nothing."""

    def extend(self, slot: int, tokens: int) -> None:
        """Give the slot room for so many tokens. There have to be as many parts free as it lacks."""

    def share(self, source: int, target: int, tokens: int) -> list[Copy]:
        """Let an empty slot have the first tokens of another; returns what is to be copied for it."""

    def move(self, source: int, target: int, tokens: int) -> list[Copy]:
        """Let an empty slot have all that another has, which is empty then; returns what is to be copied for it."""

    def release(self, slot: int, *, unseen: bool = False) -> None:
        """The slot is empty: what it had, and nobody shares, is free. `unseen`: no decode step showed that it is
        finite."""


class WholeSlots:
    """Each slot has room for the longest sequence, always."""

    free = 0

    def lacks(self, slot: int | None, tokens: int, shared: int = 0) -> int:
        return 0

    def extend(self, slot: int, tokens: int) -> None:
        pass

    def share(self, source: int, target: int, tokens: int) -> list[Copy]:
        return [Copy(source, target, tokens)]

    def move(self, source: int, target: int, tokens: int) -> list[Copy]:
        return [Copy(source, target, tokens)]

    def release(self, slot: int, *, unseen: bool = False) -> None:
        pass
