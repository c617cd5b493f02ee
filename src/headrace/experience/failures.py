"""Why an episode gave no trainable sample, in words that can be counted."""

from __future__ import annotations

from enum import StrEnum

_LONGEST_DETAIL = 400
"""Characters. Failures are stored with every sample, and model output can be in them."""


class FailureKind(StrEnum):
    WORKFLOW = "workflow"
    """The workflow or the environment raised, or gave something that is not a trajectory."""
    ENGINE = "engine"
    """No engine could serve a request."""
    WORKER_LOST = "worker_lost"
    """The worker that played it ended, each time that it did."""
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
