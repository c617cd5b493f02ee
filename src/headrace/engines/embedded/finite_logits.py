"""Rows whose logits are not numbers: each costs its own request, and nobody else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.engines.embedded.request_state import Sequence
from headrace.engines.protocol import EngineError
from headrace.weights.version import Version


def finite_steps(logprobs: NDArray[np.float32]) -> NDArray[np.int64]:
    """[n]: how many steps each row made before the first whose log-prob is not finite, of log-probs [steps, n].

    A row with a logit that is NaN or +inf has no finite log-prob; one whose logits are all right always has.
    """
    bad = ~np.isfinite(logprobs)
    steps: NDArray[np.int64] = np.where(bad.any(axis=0), bad.argmax(axis=0), len(logprobs))
    return steps


def not_finite(sequence: Sequence, steps: int, version: Version) -> EngineError:
    """What a request is told that made `steps` steps more and then got logits that are not finite."""
    return EngineError(
        f"the logits after its token {sequence.length + steps} are not finite, under {version} and temperature "
        f"{sequence.request.sampling.temperature:g}: what the model computes there overflows; look at the weights, or "
        "use dtype float32"
    )
