"""Keys and values in pages, so that memory follows tokens, and a prompt that several sequences have is there once."""

from __future__ import annotations

import numpy as np
import torch

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.cache_plan import SPARE_PAGES, CachePlan, CacheShape
from headrace.engines.embedded.pages import PageTable, pages_for

_ZERO, _SPARE = -2, -1
"""Of the spare pages: for where a slot has none; and of the slot behind the last, which padding rows write to."""


class PagedCache(KeyValueCache):
    """Per layer one tensor [2, pages, kv_heads, tokens of a page, head_dim]. See `PageTable`: which slot has which.

    It is allocated whole, and its addresses stay, for captured graphs. A slot's free places read as pages of zeros.
    """

    def __init__(self, shape: CacheShape, plan: CachePlan, dtype: torch.dtype, device: torch.device) -> None:
        assert plan.pages is not None
        self._pages = plan.pages
        self.pages = PageTable(plan.slots, plan.pages)
        self._host = np.empty((plan.slots + 1, pages_for(plan.max_context)), dtype=np.int32)
        self.table = torch.empty(self._host.shape, dtype=torch.int32, device=device)
        """[slots + 1, pages of the longest sequence]: the page of each of a slot's places, a multiple of the tokens of
        a page apart."""
        super().__init__(shape, plan, dtype, device)

    @property
    def page_tokens(self) -> int:
        return self.pages.page_tokens

    @property
    def storage(self) -> PageTable:
        return self.pages

    @property
    def _places(self) -> tuple[int, int]:
        return self._pages + SPARE_PAGES, self.page_tokens

    def allocate(self) -> None:
        self.pages.take_soiled()
        self.pages.has_changed = True
        super().allocate()
        self.capacity = self.max_context
        self.begin()

    def begin(self) -> None:
        pages = self.pages
        if soiled := pages.take_soiled():
            at = torch.tensor(soiled, device=self.table.device)
            for layer in self.layers:
                layer[:, at] = 0
        if pages.has_changed:
            self._host.fill(self._pages + SPARE_PAGES + _ZERO)
            self._host[-1] = self._pages + SPARE_PAGES + _SPARE
            for slot, those in enumerate(pages.slots):
                self._host[slot, : len(those)] = those
            self.table.copy_(torch.from_numpy(self._host))
            pages.has_changed = False

    def reserve(self, length: int) -> None:
        """Whoever plans gives each slot its pages."""

    def clear(self, slot: int, length: int) -> None:
        """Once nobody has them any more: what the slot shares, others read."""
        self.pages.soil(slot)

    def hold(self, slots: int, length: int) -> None:
        for slot in range(slots):
            self.pages.extend(slot, length)
        self.begin()

    def let_go(self, slots: int, length: int) -> None:
        for slot in range(slots):
            self.pages.soil(slot)
            self.pages.release(slot)
        self.begin()

    def at(self, slots: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.table[slots, positions // self.page_tokens].long(), positions % self.page_tokens

    def window(self, layer: int, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._read(layer, self.table[:rows], length)

    def gather(self, layer: int, slots: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._read(layer, self.table[slots], length)

    def _read(self, layer: int, table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [b, kv_heads, length, head_dim]; table [b, pages]."""
        by_head = self.layers[layer].transpose(1, 2)
        copied = by_head[:, :, table[:, : pages_for(length, self.page_tokens)].long()]
        keys, values = copied.flatten(3, 4)[:, :, :, :length].transpose(1, 2)
        return keys, values
