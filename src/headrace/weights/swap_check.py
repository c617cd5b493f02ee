"""The swap check: ids, and the log-probs that whoever made a version computed under it.

Whoever takes the version scores the same ids by the way that it computes with, and refuses it where the two are too far
apart: a tensor that was lost, mixed up, left as it was, or converted wrongly. It finds gross faults, not a rounding.

Ids are arbitrary, so a model may all but exclude some: of a logit of -10,000 one rounding in bfloat16 is 64 nats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

PREDICTED = 256
"""Tokens, of all samples."""
SHORT, LONG = 5, 33
"""Tokens of a sample: for who decodes it, in few wide passes, and for who scores it as a prompt, in few requests."""
_LEAST = -100.0
"""Of a log-prob that is compared: what is below is never sampled, and counts as this."""
_BOUNDS = {"float32": 1e-4}
_COARSE = 0.03
"""Of bfloat16, and of what is as coarse, where log-probs of arbitrary ids have a standard deviation of 1 nat at most.
With unchanged weights 0.009 was measured at 1, and 0.05 at 4; other weights are as far away as the deviation, and a
tenth."""
_COARSE_CHOICES = 0.1
"""Of these where routers choose: with another expert a token's log-prob is another. Of small random models 0.013 and
0.027 were measured, of such without experts 0.009 and 0.011."""


@dataclass(frozen=True, slots=True)
class SwapCheck:
    tokens: NDArray[np.int32]
    """[S, T]"""
    logprobs: NDArray[np.float32]
    """[S, T - 1]: of each token but the first, given those before it in its sample."""
    temperature: float
    """Of the distribution that they are of: softmax(logits / temperature)."""
    dtype: str
    """That they were computed in, as `bfloat16`."""
    routed: tuple[int, int, int] | None = None
    """Of a model with experts: in how many layers each token is routed, to how many, of how many. Then whoever computes
    routes to `experts`: which of two a router takes may be a matter of rounding, and no fault of the weights."""
    routers_choose: bool = False
    """Of a model with experts, where nothing is prescribed to them: for whoever cannot be told."""

    def experts(self) -> NDArray[np.uint16] | None:
        """[S, T, layers, k]: arbitrary but fixed, those of a token distinct; None where nothing is routed."""
        if self.routed is None:
            return None
        layers, per_token, experts = self.routed
        token = np.arange(self.tokens.size, dtype=np.int64).reshape(self.tokens.shape)
        first = token[..., None] * 7919 + np.arange(layers) * 104_729
        return ((first[..., None] + np.arange(per_token)) % experts).astype(np.uint16)

    def fault(self, found: NDArray[np.float32], dtype: str) -> str | None:
        """What is wrong with log-probs [S, T - 1] that somebody else computed in `dtype`: None if their mean absolute
        difference is within the bound of the coarser of the two. A rounding of logits weighs more where they are
        divided by a temperature below 1, and in bfloat16 where they are far apart."""
        bound = bound_in((self.dtype, dtype), routers_choose=self.routers_choose)
        sharper = 1 / min(self.temperature, 1.0)
        bound *= sharper if bound in _BOUNDS.values() else max(sharper, self._spread())
        theirs, ours = np.maximum(found, _LEAST), np.maximum(self.logprobs, _LEAST)
        with np.errstate(invalid="ignore"):
            each = np.abs(theirs.astype(np.float64) - ours)
        each[(theirs == ours) | (np.isnan(theirs) & np.isnan(ours))] = 0.0
        apart = float(each.mean())
        if apart <= bound:
            return None
        return (
            f"it gives {self.logprobs.size} tokens log-probs that are {apart:.3g} from the trainer's in the mean, and "
            f"{bound:g} is the bound in {dtype if _BOUNDS.get(dtype) is None else self.dtype}"
        )

    def _spread(self) -> float:
        """Standard deviation of the log-probs, in nats: that of the logits, with which their roundings grow, since
        what is rounded does."""
        told = self.logprobs[np.isfinite(self.logprobs) & (self.logprobs > _LEAST)]
        return float(told.std(dtype=np.float64)) if told.size else 0.0


def bound_in(dtypes: Iterable[str], *, routers_choose: bool) -> float:
    """Of the mean absolute difference of log-probs at temperature 1, in nats, where both sides compute in one of
    `dtypes`. `routers_choose`: see `SwapCheck`."""
    coarse = _COARSE_CHOICES if routers_choose else _COARSE
    return max(_BOUNDS.get(dtype, coarse) for dtype in dtypes)


def check_tokens(vocabulary: int, longest: int = SHORT) -> NDArray[np.int32]:
    """[S, T] of arbitrary but fixed ids below `vocabulary`, PREDICTED of them behind another. T is at most `longest`,
    and at least SHORT."""
    length = SHORT
    while 2 * length - 1 <= min(longest, LONG):
        length = 2 * length - 1
    samples = PREDICTED // (length - 1)
    numbers = np.arange(samples * length, dtype=np.int64).reshape(samples, length)
    return ((numbers * 7919 + 13) % vocabulary).astype(np.int32)


def make_check(
    tokens: NDArray[np.int32],
    score: Callable[..., NDArray[np.float32]],
    *,
    temperature: float,
    dtype: str,
    routed: tuple[int, int, int] | None = None,
    routers_choose: bool = False,
) -> SwapCheck:
    """`score`: log-probs [S, T - 1] of `tokens` under the present weights, computed in `dtype`; with `routed`, see
    `SwapCheck`, it is called with the experts as well."""
    nothing = np.zeros((len(tokens), tokens.shape[1] - 1), np.float32)
    check = SwapCheck(tokens, nothing, temperature, dtype, routed, routers_choose)
    found = score(tokens, *([] if routed is None else [check.experts()]))
    return replace(check, logprobs=np.asarray(found, dtype=np.float32))


def to_json(check: SwapCheck) -> bytes:
    values = {
        "tokens": check.tokens.tolist(),
        "logprobs": check.logprobs.tolist(),
        "temperature": check.temperature,
        "dtype": check.dtype,
        "routed": check.routed,
        "routers_choose": check.routers_choose,
    }
    return json.dumps(values).encode()


def from_json(text: bytes) -> SwapCheck:
    """Inverse of `to_json`. Raises ValueError."""
    try:
        values = json.loads(text)
        tokens = np.array(values["tokens"], dtype=np.int32)
        logprobs = np.array(values["logprobs"], dtype=np.float32)
        if tokens.ndim != 2 or logprobs.shape != (tokens.shape[0], tokens.shape[1] - 1):
            raise ValueError(f"tokens {tokens.shape} and log-probs {logprobs.shape} do not go together")
        routed = None
        if values["routed"] is not None:
            layers, per_token, experts = map(int, values["routed"])
            routed = layers, per_token, experts
        told = float(values["temperature"]), str(values["dtype"]), routed, bool(values["routers_choose"])
        return SwapCheck(tokens, logprobs, *told)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"it is no swap check: {error}") from error
