"""Keys that were set and have no effect, since another key turns off what they are about."""

from __future__ import annotations

from headrace.config.base import Section
from headrace.config.train import TrainConfig


def ineffective(config: TrainConfig) -> list[str]:
    """One line for each key set to something else than its default that nothing will read, with the reason."""
    trainer, algorithm, reward = config.trainer, config.algorithm, config.reward
    rules: list[tuple[bool, str, Section, tuple[str, ...], str]] = [
        (config.data.eval is None, "evaluation", config.evaluation, (), "data.eval is not set"),
        (
            config.rollout.workflow == "single_turn",
            "rollout",
            config.rollout,
            ("max_turns",),
            "rollout.workflow is single_turn",
        ),
        (trainer.batches is not None, "trainer", trainer, ("epochs",), "trainer.batches says how long training takes"),
        (
            trainer.lr_schedule.kind == "constant",
            "trainer.lr_schedule",
            trainer.lr_schedule,
            ("min_ratio",),
            "trainer.lr_schedule.kind is constant",
        ),
        (not algorithm.needs_reference, "reference", config.reference, (), "algorithm.kl.coefficient is 0"),
        (not algorithm.needs_proximal, "proximal", config.proximal, (), "no batch needs its log-probs"),
        (not algorithm.needs_critic, "critic", config.critic, (), f"algorithm.advantage is {algorithm.advantage}"),
        (not algorithm.needs_teacher, "teacher", config.teacher, (), f"algorithm.advantage is {algorithm.advantage}"),
        (
            algorithm.updates_per_batch == 1 and algorithm.proximal != "behavior",
            "algorithm",
            algorithm,
            ("proximal",),
            "with one update per batch the current policy is the proximal one",
        ),
        (algorithm.needs_teacher, "algorithm.shaping", algorithm.shaping, (), "distillation looks at no reward"),
        (algorithm.objective == "naive", "algorithm.behavior", algorithm.behavior, (), "algorithm.objective is naive"),
        (reward.model.path is None, "reward.model", reward.model, (), "reward.model.path is not set"),
        (
            not {term.function for term in reward.all_terms} & {"numeric", "code"},
            "reward",
            reward,
            ("tolerance",),
            f"reward.function is {reward.description}",
        ),
    ]
    return [
        f"{prefix}.{key} has no effect: {reason}"
        for applies, prefix, section, keys, reason in rules
        if applies
        for key in _changed(section, keys)
    ]


def _changed(section: Section, keys: tuple[str, ...]) -> list[str]:
    """Those of `keys` (of all, if none are given) that differ from their default."""
    fields = type(section).model_fields
    return [key for key in keys or fields if getattr(section, key) != fields[key].default]
