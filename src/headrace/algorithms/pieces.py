"""Functions of the user's own in the place of those that a config names, and what each must return."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.corrections import Weights
from headrace.algorithms.losses import Loss, PairLoss


class PieceError(RuntimeError):
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
    advantage: Callable[..., Tensor] | None = None
    """(data: `estimate.Compared`) to [E] or [N]."""
    shaping: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """(rewards, lengths, group_index), all [E], to rewards [E]."""
    value_loss: Callable[[Tensor, Tensor, Tensor, Tensor], Loss] | None = None
    """(values, old_values, returns, mask), all [N]."""


def guarded(name: str, function: Callable[..., Any], wrong: Callable[[Any, Any], str | None]) -> Callable[..., Any]:
    """`function`, which raises PieceError where it fails, or where `wrong` has a complaint.

    `wrong` is given what it returned and its first argument; the complaint says what it should return.
    """

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            result = function(*args, **keywords)
        except Exception as error:
            raise raised(name, error) from error
        if (complaint := wrong(result, args[0])) is not None:
            raise PieceError(f"{name} returned {_described(result)}; {complaint}")
        return result

    return call


def raised(name: str, error: Exception) -> PieceError:
    """What to raise from `error`, which the function called `name` raised; says where."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the caller's
    where = f" (at {frames[0].filename}:{frames[0].lineno})" if frames else ""
    return PieceError(f"{name} raised {type(error).__name__}: {error}{where}")


def not_a_loss(result: Any, first: Tensor) -> str | None:
    if isinstance(result, Loss) and _has_shape(result.per_token, first.shape):
        return None
    return f"return headrace.algorithms.losses.Loss with per_token of shape {tuple(first.shape)}"


def not_a_pair_loss(result: Any, first: Tensor) -> str | None:
    if isinstance(result, PairLoss) and isinstance(result.per_pair, Tensor) and result.per_pair.ndim == 1:
        return None
    return "return headrace.algorithms.losses.PairLoss with per_pair of shape (pairs,)"


def not_weights(result: Any, first: Tensor) -> str | None:
    if isinstance(result, Weights) and _has_shape(result.per_token, first.shape):
        return None
    return f"return headrace.algorithms.corrections.Weights with per_token of shape {tuple(first.shape)}"


def not_alike(result: Any, first: Tensor) -> str | None:
    return None if _has_shape(result, first.shape) else f"return a tensor of shape {tuple(first.shape)}"


def not_sums(result: Any, first: Tensor) -> str | None:
    if isinstance(result, tuple) and len(result) == 2 and all(_has_shape(value, torch.Size()) for value in result):
        return None
    return "return a tuple of two tensors without dimensions: numerator and denominator"


def not_an_advantage(result: Any, data: Any) -> str | None:
    shapes = (data.rewards.shape, data.mask.shape)
    if any(_has_shape(result, shape) for shape in shapes):
        return None
    return f"return a tensor of shape {tuple(shapes[0])}, of episodes, or {tuple(shapes[1])}, of tokens"


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
