"""Random batches, flat as Headrace takes them, and padded `[S, T]` as other packages do."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

F64 = torch.float64
SEEDS = range(8)


@dataclass(frozen=True)
class Batch:
    lengths: Tensor
    """`[S]`."""
    mask: Tensor
    """`[N]`; holes in the middle of samples, and every sample has at least one token inside."""
    sample_index: Tensor
    groups: Tensor
    """`[S]`: uneven, interleaved, each of two samples or more."""
    generator: torch.Generator

    @staticmethod
    def of(seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, 9, (11,), generator=generator)
        sample_index = torch.repeat_interleave(torch.arange(11), lengths)
        mask = torch.rand(int(lengths.sum()), generator=generator) < 0.7
        mask[lengths.cumsum(0) - 1] = True
        groups = torch.tensor([2, 0, 2, 5, 0, 5, 5, 2, 5, 0, 5])
        return Batch(lengths, mask, sample_index, groups, generator)

    def tokens(self, scale: float = 1.0) -> Tensor:
        """`[N]`."""
        return torch.randn(self.mask.numel(), generator=self.generator, dtype=F64) * scale

    def samples(self) -> Tensor:
        """`[S]`."""
        return torch.randn(self.lengths.numel(), generator=self.generator, dtype=F64)

    def padded(self, flat: Tensor) -> Tensor:
        """`[N]` to `[S, T]`, differentiable."""
        rows = flat.split(self.lengths.tolist())
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)

    @property
    def padded_mask(self) -> Tensor:
        return self.padded(self.mask.to(F64))

    def flat(self, padded: Tensor) -> Tensor:
        """`[S, T]` to `[N]`."""
        return torch.cat([row[:length] for row, length in zip(padded, self.lengths.tolist(), strict=True)])

    def on_the_last_token(self, rewards: Tensor) -> Tensor:
        """`[S]` to `[S, T]`: the last token inside the mask, which here is the sample's last."""
        per_token = torch.zeros(self.mask.numel(), dtype=F64)
        per_token[self.lengths.cumsum(0) - 1] = rewards
        return self.padded(per_token)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=tolerance, atol=tolerance)
