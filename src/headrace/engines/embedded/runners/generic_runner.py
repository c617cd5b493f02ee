"""The forward pass of any Hugging Face causal language model whose attention goes through the library's interfaces.

Three of them are used: `Cache.update` writes keys and values to the slots, an `AttentionInterface` function reads them,
and position ids are given explicitly. The model builds no mask for an attention function that the mask interface does
not know; the function makes its own from the positions and from the sliding window that the layer passes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.runners.runner import PrefillPass
from headrace.engines.embedded.runners.slot_attention import decode_attention, decode_bias, prefill_attention, visible
from headrace.models.attention import UnsupportedAttention, window_of
from headrace.models.fast_linear import use_fast_products
from headrace.models.routing import attach_routing

_IMPLEMENTATION = "headrace_slots"


class GenericRunner:
    """See `Runner`. Takes the model over: its attention is switched to the slots. Raises TypeError if it cannot be."""

    def __init__(self, model: Any, cache: KeyValueCache) -> None:
        AttentionInterface.register(_IMPLEMENTATION, _attend)
        model.set_attn_implementation(_IMPLEMENTATION)
        # transformers only warns where a model does not look at what is set.
        if (taken := model.config.get_text_config()._attn_implementation) != _IMPLEMENTATION:
            raise TypeError(f"its attention stays transformers' {taken}")
        self._model = model
        self._cache = cache
        self._told: torch.Tensor | None = None
        use_fast_products(model, model.device, model.dtype)
        if layers := attach_routing(model):
            text = model.config.get_text_config()
            cache.keep_experts(layers, text.num_experts_per_tok, text.num_experts)

    def prefill(self, work: PrefillPass) -> None:
        body = getattr(self._model, self._model.base_model_prefix)
        for batch in work:
            current = _Pass(self._cache, batch.positions, batch.length, batch.slots, self._told)
            self._forward(body, batch.tokens, current)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        current = _Pass(self._cache, positions[:, None], length, None, self._told)
        logits = self._forward(self._model, tokens[:, None], current).logits
        return logits[:, -1].float()

    def capture(self) -> None:
        """Nothing is captured."""

    def route(self, experts: torch.Tensor | None) -> None:
        if experts is not None and self._cache.experts is None:
            raise ValueError(f"{type(self._model).__name__} cannot be told which experts to route to")
        self._told = experts

    def prepare(self, weights: Mapping[str, torch.Tensor], *, lasts: bool = True) -> Any:
        return {name: tensor if lasts else tensor.clone() for name, tensor in weights.items()}

    def beside(self, cache: KeyValueCache, prepared: Any = None) -> GenericRunner:
        if prepared is None:
            return GenericRunner(self._model, cache)
        # What the copy is told that it holds already is not copied; a tied parameter is one object with two names.
        parameters = self._model.named_parameters()
        told = {id(own): torch.nn.Parameter(prepared[name], requires_grad=False) for name, own in parameters}
        return GenericRunner(copy.deepcopy(self._model, told), cache)

    def flip(self, prepared: Any) -> None:
        for name, parameter in self._model.named_parameters():
            parameter.data = prepared[name]
            if parameter.is_cuda:  # of the publisher's stream, whose allocator must not reuse it while this one reads
                parameter.data.record_stream(torch.cuda.current_stream(parameter.device))

    def forget_cache(self) -> None:
        """See `Runner.forget_cache`: each pass looks where it is."""

    def drop(self) -> None:
        for parameter in self._model.parameters():
            parameter.data = parameter.data.new_empty(0)

    @staticmethod
    def _forward(module: Any, tokens: torch.Tensor, current: _Pass) -> Any:
        return module(
            input_ids=tokens,
            position_ids=current.positions,
            past_key_values=_SlotCache(current),
            use_cache=True,
            slot_pass=current,
            **({} if current.cache.experts is None else {"routing": current}),
        )


class _Pass:
    """What one forward pass reads and writes: slots 0 .. n-1 if `slots` is None, one query each; else a prefill."""

    def __init__(
        self,
        cache: KeyValueCache,
        positions: torch.Tensor,
        length: int,
        slots: torch.Tensor | None,
        told: torch.Tensor | None,
    ) -> None:
        self.cache = cache
        self.positions = positions
        self.length = length
        self.slots = slots
        self._told = told
        self._where: tuple[torch.Tensor, torch.Tensor] | None = None
        self._masks: dict[int | None, torch.Tensor] = {}

    @property
    def is_decode(self) -> bool:
        return self.slots is None

    def write_and_read(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`keys` and `values` [b, kv_heads, T, d] of the new tokens; returns all that the queries may need."""
        batch, cache = len(keys), self.cache
        slots = torch.arange(batch, device=keys.device) if self.slots is None else self.slots
        keys_in, values_in = cache.layers[layer]
        parts, within = self._at(slots)
        keys_in[parts, :, within] = keys.transpose(1, 2).to(cache.dtype)
        values_in[parts, :, within] = values.transpose(1, 2).to(cache.dtype)
        if self.slots is None:
            return cache.window(layer, batch, self.length)
        return cache.gather(layer, slots, self.length)

    def experts(self, layer: int, chosen: torch.Tensor) -> torch.Tensor | None:
        """See `Routing`: records those of the new tokens beside their keys and values."""
        batch = len(self.positions)
        slots = torch.arange(batch, device=chosen.device) if self.slots is None else self.slots
        if self._told is not None:
            return self._told[slots[:, None], self.positions, layer].view(-1, chosen.shape[1])
        if (cached := self.cache.experts) is not None:
            parts, within = self._at(slots)
            cached[parts, within, layer] = chosen.view(batch, -1, chosen.shape[1]).to(cached.dtype)
        return None

    def _at(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Where in the cache the new tokens are; the same in all layers."""
        if self._where is None:
            self._where = self.cache.at(slots[:, None], self.positions)
        return self._where

    def mask(self, window: int | None) -> torch.Tensor:
        """Decode: what to add, [n, L]. Prefill: what to keep, bool [b, 1, T, L]. Made once per kind of layer."""
        if window not in self._masks:
            if self.is_decode:
                made = decode_bias(self.positions[:, 0], self.length, window, self.cache.dtype)
            else:
                made = visible(self.positions, self.length, window)[:, None]
            self._masks[window] = made
        return self._masks[window]


class _SlotCache(Cache):
    """The library's cache interface over one pass."""

    def __init__(self, current: _Pass) -> None:
        super().__init__(layers=[_SlotLayer(current, i) for i in range(len(current.cache.layers))])


class _SlotLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, current: _Pass, index: int) -> None:
        super().__init__()
        self._pass = current
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """The slots are there already."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pass.write_and_read(self._index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._pass.length, 0

    def get_seq_length(self) -> int:
        return self._pass.length - self._pass.positions.shape[1]

    def get_max_length(self) -> int:
        return self._pass.cache.max_context


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    slot_pass: _Pass,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """An attention function of the library: `query` [b, heads, T, d]; returns [b, T, heads, d]. Raises
    UnsupportedAttention for a mask of the model's own, as Doge's, which depends on the values."""
    if attention_mask is not None:
        raise UnsupportedAttention(f"{type(module).__name__} makes an attention mask of its own")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mask = slot_pass.mask(window_of(module, sliding_window))
    wide = query.to(key.dtype)
    if slot_pass.is_decode:
        out = decode_attention(wide[:, :, 0], key, value, mask, scale, softcap)[:, None]
    else:
        out = prefill_attention(wide, key, value, mask, scale, softcap).transpose(1, 2)
    return out.to(query.dtype).contiguous(), None
