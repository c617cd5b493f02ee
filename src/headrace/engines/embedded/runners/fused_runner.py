"""The forward pass of Llama-like decoders (Llama, Mistral, Qwen2, Qwen3) over fused weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.plain_decoder import is_plain_decoder
from headrace.engines.embedded.runners.fused_weights import FusedShape, FusedWeights, Projection, fuse, fused_names
from headrace.engines.embedded.runners.graphs import DecodeGraphs
from headrace.engines.embedded.runners.operations import Operations, TokenPlaces, TorchOperations
from headrace.engines.embedded.runners.rope import RotaryTable
from headrace.engines.embedded.runners.runner import PrefillPass
from headrace.engines.embedded.runners.slot_attention import prefill_attention, visible
from headrace.models.device_lanes import FIRST

_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")

Attend = Callable[[int, torch.Tensor], torch.Tensor | None]
"""(layer, queries [N, heads, head_dim]) -> [N, heads x head_dim]; None ends the pass."""
MakeOperations = Callable[[FusedShape, RotaryTable, KeyValueCache, torch.dtype], Operations]


class FusedRunner:
    """See `Runner`."""

    def __init__(
        self,
        weights: FusedWeights,
        shape: FusedShape,
        rotary: RotaryTable,
        cache: KeyValueCache,
        *,
        graphs: bool = True,
        make: MakeOperations = TorchOperations,
    ) -> None:
        """`graphs`: whether decode steps on a CUDA device are captured. `make`: the operations between products."""
        self._weights: FusedWeights | None = weights
        self._shape = shape
        self._rotary = rotary
        self._cache = cache
        self._dtype = weights.embedding.dtype
        self._make = make
        self.operations = make(shape, rotary, cache, self._dtype)
        self._rows = torch.arange(cache.slots + 1, device=weights.embedding.device)
        self._vocab_size = len(weights.embedding)
        self._captures = graphs and weights.embedding.is_cuda
        self._graphs: DecodeGraphs | None = None
        """Made by `capture`, or when one is first needed."""
        self._side: torch.cuda.Stream | None = None
        """For captures: one, however often the cache is made anew. cuBLAS keeps a workspace for each stream, and torch
        hands out some 30, after which one is another lane's."""

    @classmethod
    def of(cls, model: Any, cache: KeyValueCache, make: MakeOperations = TorchOperations) -> FusedRunner | None:
        """For a Hugging Face model; None if its architecture, or anything in its config, is not of this kind."""
        config = model.config
        parameters = dict(model.named_parameters())
        if type(model).__name__ not in _ARCHITECTURES or not is_plain_decoder(config):
            return None
        heads = config.num_attention_heads
        shape = FusedShape(
            layers=config.num_hidden_layers,
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            norm_eps=config.rms_norm_eps,
            tied="lm_head.weight" not in parameters,
        )
        if fused_names(shape, frozenset(parameters)) != frozenset(parameters):
            return None
        rotary = model.model.rotary_emb
        table = RotaryTable(rotary.inv_freq, rotary.attention_scaling, cache)
        weights = fuse({name: p.detach() for name, p in parameters.items()}, shape)
        return cls(weights, shape, table, cache, make=make)

    def route(self, experts: torch.Tensor | None) -> None:
        if experts is not None:
            raise ValueError("a decoder without experts cannot be told which to route to")

    def prepare(self, weights: Mapping[str, torch.Tensor], *, lasts: bool = True) -> Any:
        return fuse(weights, self._shape)

    def beside(self, cache: KeyValueCache, prepared: Any = None) -> FusedRunner:
        weights = prepared or self._loaded
        return FusedRunner(weights, self._shape, self._rotary, cache, graphs=False, make=self._make)

    def flip(self, prepared: Any) -> None:
        if self._graphs is None or self._weights is None:
            self._weights = prepared
        else:  # captured graphs hold the addresses of the present ones
            self._weights.overwrite(prepared)

    def forget_cache(self) -> None:
        self._graphs = None

    def drop(self) -> None:
        self._weights = self._graphs = None

    @property
    def _loaded(self) -> FusedWeights:
        assert self._weights is not None, "its weights are asleep"
        return self._weights

    def capture(self) -> None:
        if self._captures:
            self._made_graphs().capture()

    def _made_graphs(self) -> DecodeGraphs:
        if self._graphs is None:
            if self._side is None:
                # What is captured keeps the priority of the stream that it was captured on.
                self._side = torch.cuda.Stream(self._rows.device, priority=FIRST)
            self._graphs = DecodeGraphs(self._decode, self._cache, self._rows, self._vocab_size, self._side)
        return self._graphs

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        if self._captures:
            return self._made_graphs().decode(tokens, positions, length)
        return self._decode(tokens, positions, self._rows[: len(tokens)], length).float()

    def prefill(self, work: PrefillPass) -> None:
        shape, cache = self._shape, self._cache
        counts = [batch.count for batch in work]
        tokens = torch.cat([batch.unpadded(batch.tokens.flatten()) for batch in work])
        positions = torch.cat([batch.unpadded(batch.positions.flatten()) for batch in work])
        slots = torch.cat([batch.unpadded(batch.slots.repeat_interleave(batch.tokens.shape[1])) for batch in work])
        masks = [None if batch.from_start else visible(batch.positions, batch.length, None)[:, None] for batch in work]
        scale = shape.head_dim**-0.5

        def attend(layer: int, query: torch.Tensor) -> torch.Tensor | None:
            if layer == shape.layers - 1:
                return None  # prefilling wants no more than the keys and values
            outs = []
            for batch, mask, those in zip(work, masks, query.split(counts), strict=True):
                rows = batch.padded(those).unflatten(0, batch.tokens.shape).transpose(1, 2)
                keys, values = cache.gather(layer, batch.slots, batch.length)
                out = prefill_attention(rows, keys, values, mask, scale).transpose(1, 2)
                outs.append(batch.unpadded(out.flatten(0, 1)))
            return (outs[0] if len(outs) == 1 else torch.cat(outs)).flatten(1)

        self._layers(tokens, TokenPlaces(positions, slots), attend)

    def _decode(self, tokens: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, length: int) -> torch.Tensor:
        """Logits [n, V] in the weights' dtype. `rows` [n]: the slots that row i writes to; it reads slot i."""
        attend = self.operations.attention(positions, length)
        hidden = self._layers(tokens, TokenPlaces(positions, rows), attend)
        return self._loaded.head(self.operations.norm(self._loaded.norm, hidden))

    def _layers(self, tokens: torch.Tensor, places: TokenPlaces, attend: Attend) -> torch.Tensor:
        """Hidden states [N, hidden] after the last layer, before the last norm; or where `attend` ended the pass."""
        operations, dtype = self.operations, self._dtype
        turned = operations.turn(places)
        hidden = F.embedding(tokens, self._loaded.embedding).to(self._cache.dtype)
        for i, layer in enumerate(self._loaded.layers):
            qkv = layer.qkv(operations.norm(layer.input_norm, hidden))
            attended = attend(i, turned(i, qkv, layer.qk_norm))
            if attended is None:
                break
            hidden = self._add(hidden, attended.to(dtype), layer.out)
            gate_up = layer.gate_up(operations.norm(layer.post_norm, hidden))
            hidden = self._add(hidden, operations.gated(gate_up), layer.down)
        return hidden

    def _add(self, hidden: torch.Tensor, x: torch.Tensor, projection: Projection) -> torch.Tensor:
        return projection.onto(hidden, x) if hidden.dtype == x.dtype else hidden.add_(projection(x))
