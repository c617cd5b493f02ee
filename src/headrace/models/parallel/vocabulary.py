"""Log-probs, and what else is known of tokens, from logits of which each tensor rank has a part of the vocabulary.

What is exchanged is a few numbers a token, never the logits (Shoeybi et al., arXiv:1909.08053, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.models.entropy import entropy
from headrace.models.parallel.collectives import largest, spread, summed
from headrace.models.parallel.shared_pass import Ranks


@dataclass(frozen=True, slots=True)
class VocabularyShare:
    """One rank's part: as many logits as the other ranks have, the last one perhaps fewer."""

    ranks: Ranks
    size: int
    """Of the whole vocabulary."""

    def chosen(self, logits: Tensor, ids: Tensor) -> Tensor:
        """Of the logits [M, V / ranks] those of `ids` [M, K], which may be any rank's: [M, K]."""
        width = logits.shape[1]
        own = ids - self.ranks.rank * -(-self.size // self.ranks.size)
        here = (own >= 0) & (own < width)
        found = logits.gather(1, own.clamp(0, width - 1)).masked_fill(~here, 0.0)
        return summed(found, self.ranks.group)

    def mass(self, logits: Tensor) -> Tensor:
        """logsumexp over the whole vocabulary, [M]."""
        top = largest(logits.detach().amax(1), self.ranks.group)
        return top + summed((logits - top[:, None]).exp().sum(1), self.ranks.group).log()

    def entropy(self, logits: Tensor, mass: Tensor) -> Tensor:
        """Of the softmax over the whole vocabulary, in nats, [M]."""
        own = logits - spread(mass, self.ranks.group)[:, None]
        return summed(entropy(own), self.ranks.group)

    def columns(
        self, logits: Tensor, targets: Tensor, kept: tuple[Tensor, Tensor] | None, names: Sequence[str]
    ) -> Tensor:
        """[M, len(names)]: see `headrace.models.logprobs.Column`. `kept`: ids [M, K], and which of them count."""
        chosen, whole_mass = self.chosen(logits, targets[:, None])[:, 0], self.mass(logits)
        mass, cut, inside = whole_mass, None, None
        if kept is not None:
            ids, possible = kept
            cut = possible.any(1)
            inside = self.chosen(logits, ids).masked_fill(~possible, -torch.inf)
            # A row without a set has a place that is no -inf, lest its gradient be NaN; it is not taken.
            inside = torch.where(cut[:, None], inside, torch.zeros_like(inside))
            mass = torch.where(cut, inside.logsumexp(1), whole_mass)
        found = {"logprob": chosen - mass}
        if "entropy" in names:
            found["entropy"] = self.entropy(logits, whole_mass)
            if cut is not None and inside is not None:
                of_cut = entropy(inside - inside.logsumexp(1)[:, None])
                found["entropy"] = torch.where(cut, of_cut, found["entropy"])
        with torch.no_grad():
            if "whole_entropy" in names:
                found["whole_entropy"] = self.entropy(logits, whole_mass)
            if "kept_mass" in names:
                found["kept_mass"] = (mass - whole_mass).exp()
            if "first_choice" in names:
                found["first_choice"] = (chosen >= largest(logits.amax(1), self.ranks.group)).to(logits.dtype)
        return torch.stack([found[name] for name in names], dim=1)
