"""What forward and backward passes keep on a device beside the weights, worked out from shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.config.layout import MICRO_BATCHES_A_STAGE
from headrace.config.roles import CriticConfig
from headrace.controller.planning.trained_memory import OfTrainer
from headrace.engines.embedded.kept_run import MOST_WAITING
from headrace.engines.embedded.prefill import MOST_PLACES
from headrace.engines.embedded.runners.graphs import most_graphs
from headrace.engines.embedded.scheduler import LONGEST_RUN
from headrace.models.experts import experts_per_token
from headrace.models.logprobs import MAX_LOGITS

_FLOAT32 = 4
_LOGITS_TRAINED = 4
"""Copies of the logits in float32: their own, their log-softmax, and the gradients of both."""
_LOGITS_SCORED = 3
_LOGITS_CHECKED = 4
"""Those of a decode step and of the one before, and their log-softmax."""
_LOGITS_SAMPLED = 5
"""Logits, probabilities, their sums, and what sorting or comparing them takes."""
_KEPT_ID = 8
_KERNELS, _KERNEL_BYTES = 20, 2**13
"""Of a layer in a graph, and of each."""


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """Widths of a decoder of transformers, in numbers a token."""

    layers: int
    hidden: int
    attention: int
    """Queries, keys and values together."""
    mlp: int
    """Of all experts together that a token meets, where there are any."""
    vocabulary: int
    experts: int = 0
    """That a token meets: it is copied to each."""

    @classmethod
    def of(cls, model_config: Any) -> DecoderShape:
        """From a Hugging Face config."""
        text = model_config.get_text_config()
        hidden, heads = text.hidden_size, text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        head_dim = getattr(text, "head_dim", None) or hidden // heads
        mlp = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden
        experts = experts_per_token(model_config)
        if experts:  # layers without, where there are some, have the plain width
            mlp = max(mlp, experts * int(getattr(text, "moe_intermediate_size", None) or mlp))
        return cls(text.num_hidden_layers, hidden, head_dim * (heads + 2 * kv_heads), mlp, text.vocab_size, experts)

    def layer_bytes(self, itemsize: int) -> int:
        """Of one token in one layer, kept for the backward pass: what enters the products, the norms (which compute in
        float32), the rotation, attention and the gate. A little more than was measured (`benchmarks/gpu`)."""
        copies = 3 * self.experts * self.hidden  # what goes to experts, what comes of them, and that weighted
        return itemsize * (2 * self.hidden + 8 * self.attention + 4 * self.mlp + copies) + 6 * self.hidden

    def logits_bytes(self, tokens: int, copies: int) -> int:
        """Of as many logits as are held at a time."""
        return copies * _FLOAT32 * min(tokens * self.vocabulary, MAX_LOGITS)


def trained_bytes(shape: DecoderShape, tokens: int, itemsize: int, *, checkpointing: bool, cut_up: bool = False) -> int:
    """Of a forward and backward pass over a micro-batch of so many `tokens`, at its height. `itemsize`: bytes of a
    number in the compute dtype. `checkpointing`: only what enters each layer is kept, and one layer is computed again.
    `cut_up`: the model is, among ranks. One that has all of it adds gradients to sums that are counted elsewhere.
    """
    layer = shape.layer_bytes(itemsize)
    kept = shape.layers * itemsize * shape.hidden if checkpointing else shape.layers * layer
    matrix = shape.vocabulary * shape.hidden
    gradient = itemsize * matrix  # of the output layer, from as many logits as are held; later of the embedding
    if cut_up and tokens * shape.vocabulary > MAX_LOGITS:
        gradient += _FLOAT32 * matrix  # in which those of pieces are added up
    return tokens * (kept + layer) + gradient + shape.logits_bytes(tokens, _LOGITS_TRAINED)


def passes_bytes(
    own: OfTrainer | CriticConfig, shape: DecoderShape, longest: int, itemsize: int, *, checkpointing: bool
) -> int:
    """`trained_bytes` of a micro-batch of the config's size, or of one row of the `longest`; of as many as a rank holds
    at once."""
    most = max(own.max_tokens_per_microbatch, longest)
    at_once = MICRO_BATCHES_A_STAGE if own.layout.pp > 1 and own.layout.schedule == "gpipe" else 1
    cut_up = own.layout.stage != 0
    return at_once * trained_bytes(shape, most, itemsize, checkpointing=checkpointing, cut_up=cut_up)


def scored_bytes(shape: DecoderShape, tokens: int, itemsize: int) -> int:
    """Of a forward pass alone."""
    return tokens * shape.layer_bytes(itemsize) + shape.logits_bytes(tokens, _LOGITS_SCORED)


def engine_bytes(shape: DecoderShape, slots: int, prefill_tokens: int, itemsize: int, context: int) -> int:
    """Of an engine's passes: prefill, of which up to half is padding, with the keys and values of a layer that it looks
    at, by query heads, and its masks, as booleans, as what is added to scores, and this once more, padded; and
    sampling for all `slots`. `context`: tokens of the longest sequence."""
    prefill = 2 * prefill_tokens * shape.layer_bytes(itemsize)
    masks = 2 * prefill_tokens * context * (1 + 2 * itemsize)
    gathered = 2 * itemsize * shape.attention * max(min(MOST_PLACES, slots * context), context)
    return prefill + masks + gathered + _LOGITS_SAMPLED * _FLOAT32 * slots * shape.vocabulary


def checked_bytes(shape: DecoderShape, samples: int, itemsize: int) -> int:
    """Of a swap check's decode steps, each of a token of so many `samples`."""
    return samples * (shape.layer_bytes(itemsize) + _LOGITS_CHECKED * _FLOAT32 * shape.vocabulary)


def waiting_kept_bytes(slots: int, most_kept: int) -> int:
    """Of kept sets of decode steps whose tokens are not handed out yet, and their copy as that is done. `most_kept`:
    ids that one has at most."""
    step = slots * most_kept * _KEPT_ID
    return (min(LONGEST_RUN * step, MOST_WAITING + step) * 3) // 2


def graphs_bytes(shape: DecoderShape, slots: int, context: int) -> int:
    """Of an engine's CUDA graphs of decode steps, beside what they compute with: a guess, which no measurement is
    behind."""
    return most_graphs(slots, context) * shape.layers * _KERNELS * _KERNEL_BYTES
