"""What a classifier of tokens into one class says: a critic's values, a reward model's scores."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch


def token_values(lm: PackedLM, micro: MicroBatch) -> Tensor:
    """The value of the state in which each token was chosen (the tokens before it), [N] float32, differentiable.

    0 where `micro.mask` is False. `lm` is over a classifier of tokens into one class.
    """
    trained = micro.mask.nonzero().squeeze(1)
    return _placed(lm, micro, at=trained - 1, to=trained)


def sample_scores(lm: PackedLM, micro: MicroBatch) -> Tensor:
    """The class's logit at each sample's last token, [N] float32, differentiable; 0 at the other tokens."""
    last = micro.sequence_starts[1:].to(micro.tokens.device) - 1
    return _placed(lm, micro, at=last, to=last)


def _placed(lm: PackedLM, micro: MicroBatch, *, at: Tensor, to: Tensor) -> Tensor:
    """[N]: what the model gives at the places `at`, put at the places `to`; 0 elsewhere."""
    result = torch.zeros(micro.num_tokens, dtype=torch.float32, device=micro.tokens.device)
    if at.numel() == 0:
        return result
    row = (micro.tokens, micro.positions, micro.lengths)
    values = lm.head(lm.hidden_states(*row, at)) if lm.has_plain_head else lm.all_logits(*row).index_select(0, at)
    return result.index_put((to,), values[:, 0].float())
