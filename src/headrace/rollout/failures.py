"""Why an episode gave no trainable sample, in words that can be counted."""

from __future__ import annotations

import traceback
from enum import StrEnum

_LONGEST_DETAIL = 400
"""Characters. Failures are stored with every sample, and model output can be in them."""


class FailureKind(StrEnum):
    WORKFLOW = "workflow"
    """The workflow or the environment raised, or gave something that is not a trajectory."""
    ENGINE = "engine"
    """No engine could serve a request."""
    TIMEOUT = "timeout"
    """The episode or one of its requests took too long."""
    REWARD_RAISED = "reward_raised"
    REWARD_TIMEOUT = "reward_timeout"
    REWARD_NAN = "reward_nan"
    """The reward is not a finite number."""
    REWARD_DIED = "reward_died"
    """The reward's process ended."""
    REWARD_LIMIT = "reward_limit"
    """The reward function met a limit of its sandbox that does not raise."""
    REWARD_REMOTE = "reward_remote"
    """The remote reward gave none."""
    REWARD_JUDGE = "reward_judge"
    """The judge gave no answer, or one without a number."""


def describe(kind: FailureKind, detail: str) -> str:
    """`kind: detail`, on one line and of bounded length."""
    line = " ".join(detail.split())
    if len(line) > _LONGEST_DETAIL:
        line = line[: _LONGEST_DETAIL - 1] + "…"
    return f"{kind}: {line}"


def failure_kind(failure: str) -> str:
    """The part of a sample's `failure` that is counted."""
    return failure.partition(":")[0]


def describe_exception(error: BaseException) -> str:
    """`Type: message (file.py, line 7)`; the place is where it was raised."""
    try:
        message = str(error)
    except Exception:  # user code: an exception's __str__ can raise too
        message = "(its message cannot be printed)"
    words = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    if not frames:
        return words
    file = frames[-1].filename.rpartition("/")[2]
    return f"{words[:_LONGEST_DETAIL]} ({file}, line {frames[-1].lineno})"
