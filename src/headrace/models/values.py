"""A critic's values at the tokens of a packed row."""

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
    result = torch.zeros(micro.num_tokens, dtype=torch.float32, device=micro.tokens.device)
    if trained.numel() == 0:
        return result
    row = (micro.tokens, micro.positions, micro.lengths)
    if lm.has_plain_head:
        values = lm.head(lm.hidden_states(*row, trained - 1))
    else:
        values = lm.all_logits(*row).index_select(0, trained - 1)
    return result.index_put((trained,), values[:, 0].float())
