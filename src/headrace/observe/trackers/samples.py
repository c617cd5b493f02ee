"""The samples that a run keeps of a batch, as a table for trackers."""

from __future__ import annotations

from pathlib import Path

from headrace.observe.trackers.protocol import Cell
from headrace.store import StoreError
from headrace.store.rollouts import Query, Rollout, RolloutsReader


def samples_of(run: Path, batch: int) -> list[dict[str, Cell]]:
    """Rows of one batch, best first; none where nothing was kept, or can be read. `run`: the run's folder."""
    if not RolloutsReader.exists(run):
        return []
    try:
        with RolloutsReader(run) as reader:
            kept = reader.read(Query(first_batch=batch, last_batch=batch, order="reward", descending=True))
    except StoreError:  # that record may be lost: the metrics are not to be held up by it
        return []
    return [_row(rollout) for rollout in kept]


def _row(rollout: Rollout) -> dict[str, Cell]:
    prompt, answer = rollout.turns[:1], rollout.turns[1:]
    if prompt and prompt[0].by_policy:
        prompt, answer = (), rollout.turns
    return {
        "prompt_id": rollout.prompt_id,
        "prompt": "".join(turn.text for turn in prompt),
        "response": "".join(turn.text for turn in answer),
        "status": rollout.status,
        "reason": rollout.reason,
        "reward": rollout.reward,
        "advantage": rollout.advantage,
        "tokens": float(rollout.tokens),
        "staleness": None if rollout.staleness is None else float(rollout.staleness),
    }
