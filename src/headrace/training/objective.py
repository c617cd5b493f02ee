"""The policy loss as the trainer calls it: columns of a micro-batch in, sums out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.corrections import second_moment_mask
from headrace.algorithms.losses import Loss, value_loss
from headrace.algorithms.pieces import Pieces
from headrace.algorithms.policy_loss import PolicyLoss, PolicyTokens, interpolated
from headrace.config.algorithm import AlgorithmConfig
from headrace.config.values.name_or_function import is_own
from headrace.models.logprobs import Column, token_columns
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch
from headrace.training.protocol import LossTerms, Scalar


def policy_columns(config: AlgorithmConfig, *, own_proximal: bool = False) -> tuple[str, ...]:
    """Columns of the table, beside tokens and mask, that the policy's loss reads."""
    columns = ["logprobs", "teacher" if config.distils else "advantages", *config.loss_reads]
    if own_proximal and config.needs_proximal:
        columns.append("proximal")
    if config.needs_reference:
        columns.append("reference")
    if _interpolates(config):
        columns.append("versions")
    return tuple(dict.fromkeys(columns))


def _interpolates(config: AlgorithmConfig) -> bool:
    """Whether the proximal policy's log-probs are worked out from the current and the behaviour policy's."""
    works_out = config.proximal == "loglinear" or is_own(config.proximal)
    return config.steps_per_batch > 1 and works_out and not config.needs_proximal


class PolicyObjective:
    def __init__(
        self,
        config: AlgorithmConfig,
        loss: PolicyLoss,
        pieces: Pieces | None = None,
        columns: Sequence[Column] = ("logprob",),
    ) -> None:
        """`columns`: of the outputs that it is called with."""
        self._config = config
        self._columns = tuple(columns)
        self._loss = loss
        self._interpolated = interpolated if pieces is None or pieces.proximal is None else pieces.proximal

    def __call__(self, outputs: Tensor, micro: MicroBatch) -> LossTerms:
        """`outputs` [N, len(columns)], or [N] of one column: of the policy that is being differentiated."""
        columns = micro.columns
        found: dict[str, Tensor] = dict(zip(self._columns, outputs.view(len(outputs), -1).unbind(1), strict=True))
        logprobs = found["logprob"]
        proximal = columns.get("proximal")
        interpolates, left = _interpolates(self._config), {}
        began = columns.get("began") if proximal is None or interpolates else proximal
        has_moved = False
        if began is None:
            began = left["began"] = logprobs.detach()
            has_moved = self._config.updates_per_batch > 1 and float(columns["made"][0]) > 0
        if self._config.proximal == "behavior":
            proximal = columns["logprobs"]
        elif proximal is None and interpolates:
            versions, batch = columns["versions"].long(), int(columns["batch"][0])
            # Over several epochs, of one step each, a sample is first seen before any.
            progress = float(columns["made"][0]) / self._config.updates_per_batch
            proximal = left["proximal"] = self._interpolated(began, columns["logprobs"], versions, batch, progress)
        kept, fresh = columns.get("kept"), columns.get("fresh")
        terms = self._loss(
            logprobs,
            PolicyTokens(
                mask=micro.mask,
                sample_index=micro.sample_index,
                behavior=columns["logprobs"],
                advantages=columns.get("advantages"),
                teacher=columns.get("teacher"),
                proximal=proximal,
                trainer=began,
                fresh=None if fresh is None else fresh > 0,
                reference=columns.get("reference"),
                entropy=found.get("entropy"),
                whole_entropy=found.get("whole_entropy"),
                kept_mass=found.get("kept_mass"),
                kept=None if kept is None else kept > 0,
                columns={name: columns[name] for name in self._config.loss_reads},
            ),
        )
        stats: dict[str, Scalar] = dict(terms.stats)
        if has_moved:  # from what it began with, which is not known
            del stats["step_kl"]
        return LossTerms(
            numerator=terms.numerator,
            denominator=terms.denominator,
            stats=stats,
            maxima=dict(terms.maxima),
            # With one step an epoch the first one's are those of all: the batch begins with them.
            columns=left if self._config.updates_per_batch == 1 else {},
        )


def prepare_batch(config: AlgorithmConfig) -> Callable[[Sequence[MicroBatch]], None] | None:
    """Adds what the loss needs to know of the whole batch: M2PO's mask. None for the other losses."""

    def prepare(micros: Sequence[MicroBatch]) -> None:
        def whole(name: str) -> Tensor:
            return torch.cat([micro.columns[name] for micro in micros])

        kept = second_moment_mask(
            whole("proximal"),
            whole("logprobs"),
            torch.cat([micro.mask for micro in micros]),
            threshold=config.second_moment,
            advantages=whole("advantages"),
        )
        for micro, part in zip(micros, kept.split([micro.num_tokens for micro in micros]), strict=True):
            micro.columns["kept"] = part.float()

    return prepare if config.loss == "m2po" else None


def output_columns(config: AlgorithmConfig, *, truncated: bool, record_entropy: bool) -> tuple[Column, ...]:
    """What the policy's loss sees of each token. `truncated`: tokens are sampled under top-k or top-p."""
    return (
        "logprob",
        *(("entropy",) if config.entropy else ()),
        *(("whole_entropy",) if record_entropy else ()),
        *(("kept_mass",) if truncated else ()),
    )


class PolicyOutputs:
    """The columns of `PolicyObjective`, [N, len(columns)]."""

    def __init__(self, columns: Sequence[Column], temperature: float) -> None:
        self._columns = tuple(columns)
        self._temperature = temperature

    def __call__(self, lm: PackedLM, micro: MicroBatch) -> Tensor:
        return token_columns(lm, micro, self._columns, self._temperature)


class ValueObjective:
    """The critic's loss, a mean over tokens."""

    def __init__(self, clip: float | None, own: Callable[..., Loss] | None = None) -> None:
        """`own`: the user's own loss; see `Pieces.value_loss`."""
        self._loss = own or partial(value_loss, clip=clip)

    def __call__(self, outputs: Tensor, micro: MicroBatch) -> LossTerms:
        """`outputs`: values [N]."""
        loss = self._loss(outputs, micro.columns["values"], micro.columns["returns"], micro.mask)
        numerator, denominator = aggregate(loss.per_token, micro.mask, micro.sample_index)
        return LossTerms(numerator=numerator, denominator=denominator, stats=dict(loss.stats))
