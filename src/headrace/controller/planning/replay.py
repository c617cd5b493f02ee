"""A run on recorded rollouts: what of the recorded run it takes over, and what must agree with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from headrace.config import ConfigError, TrainConfig, dump_config
from headrace.config.reading.changes import changes, listed
from headrace.config.reading.config_text import values_of
from headrace.config.reward import RewardConfig
from headrace.config.values.paths import path_of
from headrace.experience.records.recorded import RecordedRollouts
from headrace.experience.sample import GroupKey
from headrace.roles.actors.batch_stats import StalenessRule
from headrace.store import ConfigMismatch, RunReader, RunStore
from headrace.store.recorded import Recorded, read_recorded

_MUST_AGREE = {
    "rollout.prompts_per_batch": "batches are as they were recorded",
    "rollout.samples_per_prompt": "groups are as they were recorded",
    "rollout.sampling.temperature": "the recorded log-probs are under it",
    "rollout.sampling.top_p": "the recorded kept sets are of it",
    "rollout.sampling.top_k": "the recorded kept sets are of it",
    "gateway.sampling": "with client, recorded tokens have temperatures and kept sets of their own",
    "reward": "rewards are those of the record",
}
_OF_NO_REWARD = ("workers", "timeout_s")


@dataclass(frozen=True, slots=True)
class Replay:
    rollouts: RecordedRollouts
    bound: int
    """`max_staleness` of the recorded run."""
    masks: bool
    allows_late: bool

    def rule(self, *, masks_truncated: bool) -> StalenessRule:
        """Ages count as they were recorded, against the recorded run's bound."""
        return StalenessRule(self.bound, self.masks, self.allows_late, masks_truncated)

    def describe(self) -> str:
        rollouts = self.rollouts
        left = f", {rollouts.left_out} of incomplete batches left out" if rollouts.left_out else ""
        return (
            f"{len(rollouts)} of the {rollouts.trained} groups that it was trained on, in {rollouts.batches} whole "
            f"batches{left}"
        )


def find_record(config: TrainConfig) -> tuple[TrainConfig, Recorded | None]:
    """The record that `data.rollouts` names, and the config with that run's reward, unless it gives one.

    Raises RunMissing, RunDamaged, and ConfigError where the config cannot hold for what was recorded.
    """
    name = config.data.rollouts
    if name is None:
        return config, None
    recorded = read_recorded(path_of(name))
    own = _config_of(recorded, name)
    if config.reward == RewardConfig():
        config = config.model_copy(update={"reward": own.reward})
    wrong = [
        f"{change} ({why})"
        for change in changes(dump_config(own), dump_config(config)) or ()
        for key, why in _MUST_AGREE.items()
        if f"{change.key}.".startswith(f"{key}.") and change.key.rpartition(".")[2] not in _OF_NO_REWARD
    ]
    if config.algorithm.router_replay and not own.algorithm.router_replay:
        wrong.append("algorithm.router_replay (the record has no experts that tokens were routed to)")
    if wrong:
        raise ConfigError(
            f"data.rollouts: {name} was recorded with other settings{listed(wrong)}\n"
            f"give its own, as {name}/config.yaml has them, or generate anew without data.rollouts"
        )
    return config, recorded


def open_replay(
    config: TrainConfig, recorded: Recorded, folder: Path | None, *, vocab_size: int, max_context: int
) -> Replay:
    """What was there when the run in `folder` began is trained on, though the recorded run may have gone on.

    Raises ConfigError if the record holds no whole batch, or its first group cannot be of this model; ConfigMismatch if
    it is not any more what the run began on.
    """
    name = config.data.rollouts or ""
    own, begun = _config_of(recorded, name), _begun(folder)
    first = None if begun is None else int(begun["batches"])
    rollouts = RecordedRollouts(recorded, name, vocab_size=vocab_size, max_context=max_context, first=first)
    if begun is not None and begun["digest"] != rollouts.digest:
        raise ConfigMismatch(
            f"data.rollouts: {name} does not hold the {begun['groups']} groups any more that {folder} began on: put "
            "its journal back, or begin another run"
        )
    rollouts.group(GroupKey(0, 0, 0))
    return Replay(
        rollouts,
        bound=own.async_.staleness_bound,
        masks=own.deadline_rule == "mask",
        allows_late=own.deadline_rule == "late" or own.rollouts_only,
    )


def note_replay(replay: Replay, name: str) -> dict[str, Any]:
    """The event `replays`."""
    rollouts = replay.rollouts
    return {
        "run": name,
        "groups": len(rollouts),
        "batches": rollouts.batches,
        "trained": rollouts.trained,
        "max_staleness": replay.bound,
        "digest": rollouts.digest,
    }


def _begun(folder: Path | None) -> dict[str, Any] | None:
    if folder is None or not RunStore.exists(folder):
        return None
    with RunReader(folder) as run:
        return next((event.data for event in run.events.read() if event.kind == "replays"), None)


def _config_of(recorded: Recorded, name: str) -> TrainConfig:
    try:
        return TrainConfig.model_validate(values_of(recorded.config_yaml))
    except (ValidationError, yaml.YAMLError) as error:
        raise ConfigError(
            f"data.rollouts: the config of {name} cannot be read; was it made by this headrace?"
        ) from error
