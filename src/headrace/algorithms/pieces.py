"""Functions of the user's own in the place of those that a config names, and what each must return."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.corrections import Weights
from headrace.algorithms.losses import Loss, PairLoss
from headrace.errors import HeadraceError


class PieceError(HeadraceError, RuntimeError):
    """A function of the user's own raised, or returned something else than it should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """Of a training run; None is what the config names. `[N]` are tokens, `[E]` episodes, `[S]` samples."""

    loss: Callable[..., Loss] | None = None
    """(logprobs, proximal, advantages, mask, sample_index, **columns), all [N]."""
    aggregation: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    """(per_token, mask, sample_index), all [N], to (numerator, denominator)."""
    behavior: Callable[[Tensor, Tensor, Tensor, Tensor], Weights] | None = None
    """(proximal, behavior, mask, sample_index), all [N]."""
    kl: Callable[[Tensor, Tensor], Tensor] | None = None
    """(logprobs, reference) to the estimate, all [N]; differentiated if it is in the loss."""
    kl_controller: Callable[[float, float, int], float] | None = None
    """(coefficient, mean KL of the batch's samples, samples) to the next batch's coefficient."""
    proximal: Callable[[Tensor, Tensor, Tensor, int, float], Tensor] | None = None
    """(current, behavior, versions, batch, progress), [N] but for the last two, to the proximal policy's log-probs
    [N]. `progress`: the share of the batch's optimiser steps that led to the current policy, 0 in the first."""
    advantage: Callable[..., Tensor | Mapping[str, Tensor]] | None = None
    """(data: `estimate.Compared`) to [E] or [N], or to a mapping with `advantages` and, for a critic, `returns`."""
    shaping: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """(rewards, lengths, group_index), all [E], to rewards [E]."""
    value_loss: Callable[[Tensor, Tensor, Tensor, Tensor], Loss] | None = None
    """(values, old_values, returns, mask), all [N]."""

    @property
    def has_part_in_advantages(self) -> bool:
        return any((self.advantage, self.shaping, self.kl, self.kl_controller))


def guarded(name: str, function: Callable[..., Any], wrong: Callable[..., str | None]) -> Callable[..., Any]:
    """`function`, which raises PieceError where it fails, or where `wrong` has a complaint.

    `wrong` is given what it returned and its arguments; the complaint says what it should return.
    """

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            result = function(*args, **keywords)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a Rust extension that panics, say
            raise raised(name, error) from error
        if (complaint := wrong(result, *args)) is not None:
            raise PieceError(f"{name} returned {_described(result)}; {complaint}")
        return result

    return call


def raised(name: str, error: BaseException) -> PieceError:
    """What to raise from `error`, which the function called `name` raised; says where."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the caller's
    where = f" (at {frames[0].filename}:{frames[0].lineno})" if frames else ""
    return PieceError(f"{name} raised {type(error).__name__}: {error}{where}")


def not_a_loss(result: Any, first: Tensor, *_: Any) -> str | None:
    if isinstance(result, Loss) and _has_shape(result.per_token, first.shape):
        return _not_stats(result.stats)
    return f"return headrace.algorithms.losses.Loss with per_token of shape {tuple(first.shape)}"


def not_a_pair_loss(result: Any, *args: Tensor) -> str | None:
    """The last two arguments are `pair_index` and `chosen`, [S] each."""
    pairs = args[-2].unique().numel()
    if isinstance(result, PairLoss) and _has_shape(result.per_pair, torch.Size([pairs])):
        return _not_stats(result.stats)
    return f"return headrace.algorithms.losses.PairLoss with per_pair of shape ({pairs},), one value a pair"


def not_weights(result: Any, first: Tensor, *_: Any) -> str | None:
    if isinstance(result, Weights) and _has_shape(result.per_token, first.shape):
        return _not_stats(result.stats)
    return f"return headrace.algorithms.corrections.Weights with per_token of shape {tuple(first.shape)}"


def not_alike(result: Any, first: Tensor, *_: Any) -> str | None:
    return None if _has_shape(result, first.shape) else f"return a tensor of shape {tuple(first.shape)}"


def not_sums(result: Any, *_: Tensor) -> str | None:
    if isinstance(result, tuple) and len(result) == 2 and all(_has_shape(value, torch.Size()) for value in result):
        return None
    return "return a tuple of two tensors without dimensions: numerator and denominator"


def not_an_advantage(result: Any, data: Any) -> str | None:
    given = result if isinstance(result, Mapping) else {"advantages": result}
    shapes = (data.rewards.shape, data.mask.shape)
    if "advantages" not in given or not given.keys() <= {"advantages", "returns"}:
        return "return a tensor, or a mapping with advantages and, for a critic, returns"
    for values in given.values():
        if not any(_has_shape(values, shape) for shape in shapes):
            return f"return a tensor of shape {tuple(shapes[0])}, of episodes, or {tuple(shapes[1])}, of tokens"
        if not torch.isfinite(values).all():
            return "some of its values are not finite; return finite ones"
    return None


def not_a_coefficient(result: Any, *_: Any) -> str | None:
    if isinstance(result, int | float) and math.isfinite(result) and result >= 0:
        return None
    return "return a finite number, 0 or more"


def _not_stats(stats: Any) -> str | None:
    """Complains of stats that could not be added up over micro-batches."""
    one = torch.Size()
    if isinstance(stats, Mapping) and all(
        isinstance(value, int | float) or _has_shape(value, one) for value in stats.values()
    ):
        return None
    return "its stats are no mapping of single numbers; give sums over tokens, or an empty mapping"


def _has_shape(value: Any, shape: torch.Size) -> bool:
    return isinstance(value, Tensor) and value.shape == shape


def _described(result: Any) -> str:
    """As `a Tensor of shape (3, 2)`."""
    for name in ("per_token", "per_pair"):
        inner = getattr(result, name, None)
        if isinstance(inner, Tensor):
            return f"{type(result).__name__} with {name} of shape {tuple(inner.shape)}"
    kind = type(result).__name__
    return f"{kind} of shape {tuple(result.shape)}" if isinstance(result, Tensor) else f"{kind} {result!r:.80}"
