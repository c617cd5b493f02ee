"""Which pages of the KV cache hold the tokens of which slot (Kwon et al., "PagedAttention", arXiv:2309.06180)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.engines.embedded.storage import Copy

PAGE_TOKENS = 64
"""That one page holds: as many as a program of attention on a CUDA device looks at together."""


def pages_for(tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    return -(-tokens // page_tokens)


class PageTable:
    """Implements `Storage` by pages 0 .. n-1. Whole pages may be several slots'; the last, which is written to, is one
    slot's alone, so that nobody writes what another reads."""

    def __init__(self, slots: int, pages: int, page_tokens: int = PAGE_TOKENS) -> None:
        self.page_tokens = page_tokens
        self.slots: list[list[int]] = [[] for _ in range(slots)]
        """The pages of each, in order."""
        self.has_changed = True
        """Since whoever follows it looked, and made it False."""
        self._users: NDArray[np.int64] = np.zeros(pages, dtype=np.int64)
        self._free = list(reversed(range(pages)))
        self._soiled: set[int] = set()
        self._to_clear: list[int] = []

    @property
    def free(self) -> int:
        return len(self._free)

    def lacks(self, slot: int | None, tokens: int, shared: int = 0) -> int:
        had = 0 if slot is None else len(self.slots[slot])
        return max(pages_for(tokens, self.page_tokens) - had - shared // self.page_tokens, 0)

    def extend(self, slot: int, tokens: int) -> None:
        for _ in range(self.lacks(slot, tokens)):
            self.slots[slot].append(self._take())

    def share(self, source: int, target: int, tokens: int) -> list[Copy]:
        """Of the last page, if it is not whole, the target has a copy."""
        self._check_empty(target)
        whole, rest = divmod(tokens, self.page_tokens)
        own = self.slots[source][:whole]
        self._users[own] += 1
        self.slots[target] = own
        self.has_changed = True
        if not rest:
            return []
        own.append(self._take())
        return [Copy(self.slots[source][whole], own[-1], rest)]

    def move(self, source: int, target: int, tokens: int) -> list[Copy]:
        self._check_empty(target)
        self.slots[target], self.slots[source] = self.slots[source], []
        self.has_changed = True
        return []

    def _check_empty(self, slot: int) -> None:
        if self.slots[slot]:
            raise RuntimeError(f"slot {slot} is not empty: it has the pages {self.slots[slot]}")

    def release(self, slot: int, *, unseen: bool = False) -> None:
        if unseen:
            self.soil(slot)
        pages, self.slots[slot] = self.slots[slot], []
        for page in reversed(pages):
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)
                if page in self._soiled:
                    self._soiled.discard(page)
                    self._to_clear.append(page)
        self.has_changed |= bool(pages)

    def soil(self, slot: int) -> None:
        """What it has may not be finite: none of its pages goes to anybody else before it is cleared."""
        self._soiled.update(self.slots[slot])

    def take_soiled(self) -> list[int]:
        """Free pages that have to be cleared before anything else is done."""
        pages, self._to_clear = self._to_clear, []
        return pages

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        self.has_changed = True
        return page
