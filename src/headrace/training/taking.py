"""A new version's way into a model that only scores; and the swap check, as a trainer and such a model make it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.protocol import FrozenModel
from headrace.weights.plane import WeightError, WeightReceiver
from headrace.weights.version import Version


def scored(
    logprobs: Callable[[MicroBatch], Tensor],
    tokens: NDArray[np.int32],
    experts: NDArray[np.uint16] | None = None,
) -> NDArray[np.float32]:
    """[S, T - 1]: log-probs of all but the first of each sample's `tokens` [S, T], by one pass. `experts`: [S, T,
    layers, k], that they are routed to."""
    samples, length = tokens.shape
    mask = np.arange(length) > 0
    told = [None] * samples if experts is None else experts
    rows = [PackRow(sample, mask, experts=each) for sample, each in zip(tokens, told, strict=True)]
    found: NDArray[np.float32] = logprobs(pack(rows)).float().cpu().numpy()
    return found.reshape(samples, length)[:, 1:]


def taken(model: FrozenModel, receiver: WeightReceiver) -> Version:
    """Have `model` load the newest version in place, bucket by bucket, and check it where there is a swap check. By all
    ranks of the model, if it has several: none checks before all have it. Blocking. Raises WeightError; then the model
    has weights of no version."""
    try:
        received = receiver.receive_buckets(model.take, begin=model.require_fits, share=model.share)
    except WeightError as error:
        model.of_any(str(error))
        raise
    if (fault := model.of_any(None)) is not None:
        raise WeightError(f"another rank of the model did not receive a version: {fault}")
    version, check = received.manifest.version, received.check
    if check is not None:
        fault = check.fault(scored(model.logprobs, check.tokens, check.experts()), check.dtype)
        if fault is not None:
            raise WeightError(f"{version} did not arrive as it was published: {fault}")
    return version
