"""Keys and values of the sequences in flight, one slot each."""

from __future__ import annotations

import torch

from headrace.engines.embedded.cache_plan import SPARE_SLOTS, CachePlan, CacheShape
from headrace.engines.embedded.storage import Copy, Storage, WholeSlots

_FIRST_CAPACITY = 256
"""Tokens per slot at the start on a CPU; doubled when a sequence outgrows it."""


class KeyValueCache:
    """Per layer one tensor [2, slots, kv_heads, capacity, head_dim]: keys, then values.

    On a CPU the capacity grows with the longest sequence, up to `max_context`, and the cache is float32 even for
    bfloat16 weights: one query per row is a small matrix product, and there float32 kernels are twice as fast. On a
    device it is allocated whole, in the weights' dtype, as captured graphs hold its address. Behind the slots of
    sequences is a spare one (`SPARE_SLOTS`).
    What was never written is zero, not arbitrary: masked places still enter a product with 0.
    """

    def __init__(self, shape: CacheShape, plan: CachePlan, dtype: torch.dtype, device: torch.device) -> None:
        self.slots = plan.slots
        self.max_context = plan.max_context
        self.dtype = torch.float32 if device.type == "cpu" else dtype
        self._shape = shape
        self._device = device
        self.capacity = 0
        self.layers: list[torch.Tensor] = []
        self.experts: torch.Tensor | None = None
        """[slots + 1, capacity, layers, k], by `at`: those that each cached token was routed to, where that is
        recorded. int16 stands for uint16, which torch does not copy by index."""
        self._routing: tuple[int, int, torch.dtype] | None = None
        self.allocate()

    @property
    def storage(self) -> Storage:
        """What gives slots their room."""
        return WholeSlots()

    @property
    def _places(self) -> tuple[int, int]:
        """Parts of the cache at the start, and tokens that each holds."""
        most = self.max_context
        return self.slots + SPARE_SLOTS, min(_FIRST_CAPACITY, most) if self._device.type == "cpu" else most

    def allocate(self) -> None:
        """As it was made."""
        shape = self._shape
        parts, self.capacity = self._places
        sizes = (2, parts, shape.heads, self.capacity, shape.head_dim)
        self.layers = [torch.zeros(sizes, dtype=self.dtype, device=self._device) for _ in range(shape.layers)]
        self._allocate_experts()

    def release(self) -> None:
        """Give its memory back, until it is allocated again: nobody's keys and values are in it."""
        self.layers, self.experts, self.capacity = [], None, 0

    def keep_experts(self, layers: int, per_token: int, experts: int) -> None:
        """Have room for which of so many `experts` tokens are routed to, `per_token` in each of so many layers."""
        self._routing = layers, per_token, torch.uint8 if experts <= 256 else torch.int16
        self._allocate_experts()

    def _allocate_experts(self) -> None:
        if self._routing is not None:
            *sizes, dtype = self._routing
            _, parts, _, tokens, _ = self.layers[0].shape
            self.experts = torch.zeros((parts, tokens, *sizes), dtype=dtype, device=self._device)

    def begin(self) -> None:
        """Before what was planned is carried out."""

    def reserve(self, length: int) -> None:
        """Make room for sequences of `length` tokens."""
        if length <= self.capacity:
            return
        capacity = self.capacity
        while capacity < length:
            capacity *= 2
        capacity = min(capacity, self.max_context)
        for i, old in enumerate(self.layers):
            grown = old.new_zeros((*old.shape[:3], capacity, old.shape[4]))
            grown[:, :, :, : self.capacity] = old
            self.layers[i] = grown
        if (routed := self.experts) is not None:
            self.experts = routed.new_zeros((len(routed), capacity, *routed.shape[2:]))
            self.experts[:, : self.capacity] = routed
        self.capacity = capacity

    def copy(self, one: Copy) -> None:
        for layer in self.layers:
            layer[:, one.target, :, : one.length] = layer[:, one.source, :, : one.length]
        if self.experts is not None:
            self.experts[one.target, : one.length] = self.experts[one.source, : one.length]

    def hold(self, slots: int, length: int) -> None:
        """Give slots 0 .. n - 1, where nobody is, room for `length` tokens."""
        self.reserve(length)

    def let_go(self, slots: int, length: int) -> None:
        """Have it back, and zero."""
        for slot in range(slots):
            self.clear(slot, length)

    def at(self, slots: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of the cache's parts tokens are in, and where in it. Int64, of shapes that broadcast."""
        return slots, positions

    def clear(self, slot: int, length: int) -> None:
        """Make the first `length` tokens of a slot zero again. To be done where they may not be finite: 0 x NaN is NaN,
        so that who comes after could not use the slot."""
        for layer in self.layers:
            layer[:, slot, :, :length] = 0

    def window(self, layer: int, rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of slots 0 .. rows - 1, both [rows, kv_heads, length, head_dim], as views."""
        data = self.layers[layer][:, :rows, :, :length]
        return data[0], data[1]

    def gather(self, layer: int, slots: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of any slots (int64 [b]), both [b, kv_heads, length, head_dim], copied."""
        data = self.layers[layer][:, slots, :, :length]
        return data[0], data[1]
