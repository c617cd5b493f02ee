"""A causal language model that reads packed rows: the fastest of three ways that is exact for its architecture."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headrace.models.attention import KNOWN_LAYERS, PACKED_ATTENTION, UnsupportedAttention, register_packed_attention
from headrace.models.length_batches import SegmentPlan
from headrace.models.parallel.shared_pass import SharedPass
from headrace.models.parallel.vocabulary import VocabularyShare
from headrace.models.prefixes import SharedPrefixes
from headrace.models.routing import Replayed, attach_routing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE_LENGTHS = (7, 4)
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Largest deviation that is rounding, as a share of the largest value."""


class PackedForward(StrEnum):
    """How the samples of a packed row are kept apart."""

    SEGMENTS = "segments"
    """`packed_attention`: no mask at all."""
    MASKED = "masked"
    """transformers' own block-diagonal mask, which it derives from positions that begin anew."""
    SEPARATE = "separate"
    """One forward pass per sample; for architectures that mix tokens outside of attention."""


class PackedLM(nn.Module):
    """Hidden states and logits of packed rows.

    When built, it runs two short samples through the model, separately and packed, and takes the first of
    `PackedForward` that agrees with the model's own logits. An output layer that makes these of the last hidden states
    is plain. Where a new one makes 0 of all, hidden states are compared, and it is plain if it takes as many numbers as
    they have: a scale between the two would not be seen.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device | None = None) -> None:
        """`device`: where it computes, if its parameters are not there yet."""
        super().__init__()
        self.model = model
        self.device: torch.device = model.device if device is None else device
        """Where it computes; its weights may be elsewhere between passes."""
        self._own_attention = model.config._attn_implementation
        self._softcap: float | None = None
        if model.get_output_embeddings() is not None:  # what a classifier says is not capped
            self._softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        self.shared: SharedPass | None = None
        """With whom a pass is shared; only where samples are kept apart by segments, and the output layer is plain."""
        self.gradient_sums: Mapping[nn.Parameter, Tensor] = {}
        """Float32 sums of gradients, by parameter, where somebody keeps them: whoever makes a gradient in parts may add
        these up there."""
        self._before: Tensor | None = None
        self._routed_layers = attach_routing(model)
        self.forward_kind, self.has_plain_head = self._probe()

    @property
    def vocabulary(self) -> VocabularyShare | None:
        """Of the logits of `head`, where it has a part of them."""
        if self.shared is None or self.shared.tensor is None:
            return None
        return VocabularyShare(self.shared.tensor, int(self.model.config.get_text_config().vocab_size))

    @property
    def routed(self) -> tuple[int, int, int] | None:
        """In how many layers each token is routed, to how many experts, of how many; None where it cannot be told."""
        if not self._routed_layers or self.forward_kind is not PackedForward.SEGMENTS or not self.has_plain_head:
            return None
        text = self.model.config.get_text_config()
        return self._routed_layers, int(text.num_experts_per_tok), int(text.num_experts)

    def prefixes(self, tokens: Tensor, lengths: list[int], experts: Tensor | None = None) -> SharedPrefixes:
        """What a pass over N tokens that make up samples of these lengths computes once. `experts`: see
        `hidden_states`."""
        if self.forward_kind is not PackedForward.SEGMENTS or not self.has_plain_head:
            return SharedPrefixes.none(len(tokens))
        routed = None if experts is None else experts.flatten(1).cpu().numpy()
        return SharedPrefixes.of(tokens.cpu().numpy(), lengths, routed)

    def hidden_states(
        self, tokens: Tensor, positions: Tensor, lengths: list[int], at: Tensor, experts: Tensor | None = None
    ) -> Tensor:
        """Last hidden states, [P, hidden], at the places `at` [P] of N tokens that make up samples of these lengths.

        Where the model's attention allows it, what samples have in common at their beginning is computed once.
        `experts` [N, layers, k]: that tokens are routed to; see `Replayed`. Raises ValueError where they cannot be.
        """
        module = self.model.base_model
        if experts is not None:
            self._check_routed(experts)
        if self.forward_kind is not PackedForward.SEGMENTS:
            return self._run(module, tokens, positions, lengths, self.forward_kind).index_select(0, at)
        computed, source = self._computed(tokens, positions, lengths, experts)
        own, shared = computed[0], self.shared
        return (own if shared is None else shared.hidden(own)).index_select(0, source[at])

    @contextmanager
    def behind(self, states: Tensor | None) -> Iterator[None]:
        """Begin, for a while, with what the layers before those of this process made, in the place of embeddings: what
        `carried` gave there, perhaps filled up. None: with tokens."""
        self._before = states
        try:
            yield
        finally:
            self._before = None

    def carried(self, tokens: Tensor, positions: Tensor, lengths: list[int], experts: Tensor | None = None) -> Tensor:
        """What the layers of this process make of N tokens that make up samples of these lengths, for whoever has the
        next ones: [1, `carried_tokens`, hidden]. `experts`, and what is raised: see `hidden_states`."""
        if experts is not None:
            self._check_routed(experts)
        return self._computed(tokens, positions, lengths, experts)[0]

    def carried_tokens(self, tokens: Tensor, lengths: list[int], experts: Tensor | None = None) -> int:
        """Of how many tokens this process has hidden states, between its layers."""
        return self._own(len(self.prefixes(tokens, lengths, experts).kept))

    def _own(self, computed: int) -> int:
        shared = self.shared
        return computed if shared is None else shared.padded(computed) // shared.size

    def _computed(
        self, tokens: Tensor, positions: Tensor, lengths: list[int], experts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states of the tokens that are computed, [1, own, hidden], as far as this process has them; and which
        of all of them each of the N tokens is, [N]."""
        prefixes = self.prefixes(tokens, lengths, experts)
        kept, source = (torch.from_numpy(places).to(tokens.device) for places in (prefixes.kept, prefixes.source))
        segments = SegmentPlan.of(lengths, tokens.device, prefixes)
        ids, places = tokens[kept], positions[kept]
        experts = None if experts is None else experts[kept]
        if (shared := self.shared) is not None:
            segments = replace(segments, shared=shared)
            ids, places = shared.tokens(ids), shared.tokens(places)
            experts = None if experts is None else shared.part(shared.tokens(experts))
        if self._before is None:
            given: dict[str, Any] = {"input_ids": ids[None]}
        else:
            given = {"inputs_embeds": self._before[:, : self._own(len(kept))]}
        if experts is not None:
            given["routing"] = Replayed(experts)
        module = self.model.base_model
        return module(**given, position_ids=places[None], use_cache=False, segments=segments)[0], source

    def all_logits(self, tokens: Tensor, positions: Tensor, lengths: list[int]) -> Tensor:
        """The model's own logits, [N, vocabulary]; for models whose output layer is not a plain one."""
        return self._run(self.model, tokens, positions, lengths, self.forward_kind)

    def head(self, hidden: Tensor) -> Tensor:
        """[M, hidden] to logits [M, vocabulary]. Only where `has_plain_head`."""
        head = output_layer(self.model)
        assert head is not None
        logits = head(hidden)
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    @property
    def head_parameters(self) -> list[nn.Parameter]:
        """Those that `head` computes with and that are trained."""
        return [own for own in output_layer(self.model).parameters() if own.requires_grad]

    def _check_routed(self, experts: Tensor) -> None:
        if self.routed is None:
            raise ValueError(f"{type(self.model).__name__} cannot be told which experts to route to")
        layers, per_token, count = self.routed
        if experts.shape[1:] != (layers, per_token) or experts.max() >= count:
            raise ValueError(
                f"experts {list(experts.shape[1:])} up to {int(experts.max())} were recorded for each token, and the "
                f"model routes to {per_token} of {count} in {layers} layers"
            )

    def _run(
        self,
        module: nn.Module,
        tokens: Tensor,
        positions: Tensor,
        lengths: list[int],
        kind: PackedForward,
        experts: Tensor | None = None,
    ) -> Tensor:
        """Without sharing what samples have in common."""

        def run(tokens: Tensor, experts: Tensor | None, **given: Any) -> Tensor:
            if experts is not None:
                given["routing"] = Replayed(experts)
            found: Tensor = module(input_ids=tokens[None], use_cache=False, **given)[0][0]
            return found

        if kind is PackedForward.SEPARATE:
            parts = [None] * len(lengths) if experts is None else experts.split(lengths)
            return torch.cat([run(*each) for each in zip(tokens.split(lengths), parts, strict=True)])
        extra = {"segments": SegmentPlan.of(lengths, tokens.device)} if kind is PackedForward.SEGMENTS else {}
        return run(tokens, experts, position_ids=positions[None], **extra)

    @torch.no_grad()
    def _probe(self) -> tuple[PackedForward, bool]:
        lengths = list(_PROBE_LENGTHS)
        tokens = torch.arange(1, 1 + sum(lengths), device=self.device) % self.model.config.get_text_config().vocab_size
        positions = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        experts = self._prescribed(tokens)
        told: nn.Module = self.model
        expected = logits = self._run(told, tokens, positions, lengths, PackedForward.SEPARATE, experts)
        if not logits.any():  # a new head of 0, which says nothing of what comes before it
            told = self.model.base_model
            expected = self._run(told, tokens, positions, lengths, PackedForward.SEPARATE, experts)
        for kind in self._candidates():
            self._set_attention(kind)
            try:
                if agree(self._run(told, tokens, positions, lengths, kind, experts), expected):
                    break
            except UnsupportedAttention:
                continue
        hidden = self._run(self.model.base_model, tokens, positions, lengths, kind, experts)
        head = output_layer(self.model)
        width = getattr(head, "in_features", None) or getattr(head, "nx", None)
        # Of logits that are all 0 the last says nothing.
        return kind, head is not None and width == hidden.shape[-1] and agree(self.head(hidden), logits)

    def _prescribed(self, tokens: Tensor) -> Tensor | None:
        """Experts for a probe, [N, layers, k], where they can be told: two ways of computing round differently, and
        routers that chose for themselves would choose others of experts that are as good as alike."""
        if not self._routed_layers:
            return None
        text = self.model.config.get_text_config()
        places = torch.arange(self._routed_layers * text.num_experts_per_tok, device=self.device)
        found = (tokens[:, None] + places) % text.num_experts
        return found.view(len(tokens), self._routed_layers, text.num_experts_per_tok)

    def _candidates(self) -> list[PackedForward]:
        if "position_ids" not in inspect.signature(self.model.forward).parameters:
            return [PackedForward.SEPARATE]
        by_segments = [PackedForward.SEGMENTS] if may_keep_segments(self.model) else []
        return [*by_segments, PackedForward.MASKED, PackedForward.SEPARATE]

    def _set_attention(self, kind: PackedForward) -> None:
        register_packed_attention()
        chosen = PACKED_ATTENTION if kind is PackedForward.SEGMENTS else self._own_attention
        if self.model.config._attn_implementation != chosen:
            self.model.set_attn_implementation(chosen)


def may_keep_segments(model: Any) -> bool:
    """Whether `packed_attention` could be its attention, as far as its class and config tell."""
    layers = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    return takes_positions and bool(model._supports_attention_backend) and layers <= KNOWN_LAYERS


def output_layer(model: Any) -> Any:
    """What turns hidden states into logits: over the vocabulary, or of a classifier of tokens into its classes."""
    head: nn.Module | None = model.get_output_embeddings()
    return head or getattr(model, "score", None) or getattr(model, "classifier", None)


def agree(value: Tensor, expected: Tensor) -> bool:
    """Whether they differ by no more than rounding in their dtype."""
    if value.shape != expected.shape:
        return False
    bound = _TOLERANCE[expected.dtype] * expected.abs().max().clamp(min=1e-6)
    return bool((value - expected).abs().max() <= bound)
