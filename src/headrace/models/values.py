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
    return _placed(micro, _values(lm, micro, trained - 1), trained)


def values_and_last(lm: PackedLM, micro: MicroBatch) -> Tensor:
    """[N, 2] float32: `token_values`, and at a sample's last token the value of the state after all of its tokens.

    The latter where the column `truncated` is above 0; a sample that ended leads to no state, and has 0.
    """
    trained = micro.mask.nonzero().squeeze(1)
    last = micro.sequence_starts[1:].to(micro.tokens.device) - 1
    last = last[micro.columns["truncated"][last] > 0]
    values = _values(lm, micro, torch.cat([trained - 1, last])).split([len(trained), len(last)])
    both = [_placed(micro, part, to) for part, to in zip(values, (trained, last), strict=True)]
    return torch.stack(both, dim=1)


def sample_scores(lm: PackedLM, micro: MicroBatch) -> Tensor:
    """The class's logit at each sample's last token, [N] float32, differentiable; 0 at the other tokens."""
    last = micro.sequence_starts[1:].to(micro.tokens.device) - 1
    return _placed(micro, _values(lm, micro, last), last)


def _values(lm: PackedLM, micro: MicroBatch, at: Tensor) -> Tensor:
    """[P] float32: the class's logit at the places `at` [P]."""
    if at.numel() == 0:
        return torch.zeros(0, dtype=torch.float32, device=micro.tokens.device)
    row = (micro.tokens, micro.positions, micro.lengths)
    if not lm.has_plain_head:
        return lm.all_logits(*row).index_select(0, at)[:, 0].float()
    own = at if lm.shared is None else lm.shared.own(at)
    found = lm.head(lm.hidden_states(*row, own))[:, 0].float()
    return found if lm.shared is None else lm.shared.all(found, len(at))


def _placed(micro: MicroBatch, values: Tensor, to: Tensor) -> Tensor:
    """[N]: `values` [P] at the places `to` [P], 0 elsewhere."""
    result = torch.zeros(micro.num_tokens, dtype=torch.float32, device=micro.tokens.device)
    return result.index_put((to,), values)
