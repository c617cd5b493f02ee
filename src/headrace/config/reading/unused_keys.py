"""Keys that were set and have no effect, since another key turns off what they are about."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from headrace.config.algorithm import AlgorithmConfig
from headrace.config.base import Section
from headrace.config.pairs import DPOConfig, RMConfig
from headrace.config.recipe_defaults import LOSS_CLIPS
from headrace.config.sft import SFTConfig
from headrace.config.train import TrainConfig
from headrace.config.trainer import LRScheduleConfig
from headrace.config.values.name_or_function import is_own

_CLIPPED = ("clipped_surrogate", "cispo", "gspo", "geometric_mean")


@dataclass(frozen=True, slots=True)
class _Rule:
    applies: bool
    prefix: str
    section: Section
    usual: Section
    """What the section is unless given."""
    keys: tuple[str, ...]
    """None of them: all keys of the section."""
    reason: str


def ineffective(config: TrainConfig | SFTConfig | RMConfig | DPOConfig) -> list[str]:
    """One line for each key set to something else than its default that nothing will read, with the reason."""
    given = set[str]()
    if isinstance(config, TrainConfig):
        rules = [*_of_run(config), *_of_algorithm(config.algorithm), *_of_clips(config.algorithm), *_of_models(config)]
        if config.runtime.kind == "ray":
            given = {"placement"}  # by us
    else:
        rules = list(_of_offline(config))
    return [
        f"{rule.prefix}{key} has no effect: {rule.reason}"
        for rule in rules
        if rule.applies
        for key in _changed(rule)
        if key not in given
    ]


def unread(algorithm: AlgorithmConfig) -> set[str]:
    """The keys of the section that nothing reads, as `kl.place` where there is no KL."""
    return {
        f"{rule.prefix.removeprefix('algorithm.')}{key}"
        for rule in _of_algorithm(algorithm)
        if rule.applies
        for key in rule.keys or type(rule.section).model_fields
    }


def _of_offline(config: SFTConfig | RMConfig | DPOConfig) -> Iterator[_Rule]:
    yield _of_schedule(config.trainer.lr_schedule)
    if isinstance(config, SFTConfig):
        roles, reason = ("loss_roles", "loss_turns"), "data.messages_column is not set"
        yield _Rule(config.data.messages_column is None, "", config, _defaults(config), roles, reason)
    nothing, evaluation = config.data.eval is None, config.evaluation
    yield _Rule(nothing, "evaluation.", evaluation, _defaults(evaluation), (), "data.eval is not set")
    own = {"beta", "label_smoothing", "per_length", "margin"} & type(config).model_fields.keys()
    if own:
        yield _Rule(is_own(config.loss), "", config, _defaults(config), tuple(sorted(own)), f"loss is {config.loss}")


def _of_schedule(schedule: LRScheduleConfig) -> _Rule:
    reason = "trainer.lr_schedule.kind is constant"
    constant = schedule.kind == "constant"
    return _Rule(constant, "trainer.lr_schedule.", schedule, _defaults(schedule), ("min_ratio",), reason)


def _of_run(config: TrainConfig) -> Iterator[_Rule]:
    trainer, rollout, reward = config.trainer, config.rollout, config.reward

    def rule(applies: bool, prefix: str, section: Section, keys: tuple[str, ...], reason: str) -> _Rule:
        return _Rule(applies, f"{prefix}.", section, _defaults(section), keys, reason)

    if config.rollouts_only and config.data.eval is not None:
        data, reason = config.data, "rollouts_only is true: no version is made to evaluate"
        yield _Rule(True, "data.", data, data.model_copy(update={"eval": None}), ("eval",), reason)
    yield rule(not config.held_out, "evaluation", config.evaluation, (), "data.eval is not set")
    yield rule(
        config.checkpoint.keep_best is None, "checkpoint", config.checkpoint, ("best_is",), "keep_best is not set"
    )
    reason = "weights.transport is not gloo" if not config.sends_weights else "no engine.url is beyond this machine"
    relays = config.weights.transport == "collective" or config.runtime.kind == "ray"
    beyond = bool(config.sends_weights and config.servers_beyond) or relays
    yield rule(not beyond, "weights", config.weights, ("host",), reason)
    yield rule(not relays, "weights", config.weights, ("deltas",), "weights.transport is not collective")
    curriculum = config.data.curriculum
    by_rate = curriculum.pass_rate is not None
    passes = ("passes_above",)
    yield rule(not by_rate, "data.curriculum", curriculum, passes, "data.curriculum.pass_rate is not set")
    single = rollout.workflow in ("single_turn", "agent")
    turns = ("max_turns", "keep_special_tokens", "observation_role")
    yield rule(single, "rollout", rollout, turns, f"rollout.workflow is {rollout.workflow}")
    yield rule(rollout.agent is None, "gateway", config.gateway, (), "rollout.agent is not set")
    counted = trainer.batches is not None
    yield rule(counted, "trainer", trainer, ("epochs",), "trainer.batches says how long training takes")
    yield _of_schedule(trainer.lr_schedule)
    yield rule(reward.model.path is None, "reward.model", reward.model, (), "reward.model.path is not set")
    compares = {term.function for term in reward.all_terms} & {"numeric", "code"}
    yield rule(not compares, "reward", reward, ("tolerance",), f"reward.function is {reward.description}")


def _of_models(config: TrainConfig) -> Iterator[_Rule]:
    algorithm, critic = config.algorithm, config.critic

    def rule(needed: bool, prefix: str, section: Section, reason: str) -> _Rule:
        return _Rule(not needed, f"{prefix}.", section, _defaults(section), (), reason)

    advantage = f"algorithm.advantage is {algorithm.advantage}"
    yield rule(algorithm.needs_reference, "reference", config.reference, "algorithm.kl.coefficient is 0")
    used = algorithm.needs_proximal or algorithm.kl_of_proximal
    yield rule(used, "proximal", config.proximal, "no batch needs its log-probs")
    no_functions = f"{advantage}, one number a sample, and no function of yours computes columns"
    yield rule(algorithm.calls_functions, "functions", config.functions, no_functions)
    yield rule(algorithm.needs_critic, "critic", critic, advantage)
    yield rule(algorithm.needs_teacher, "teacher", config.teacher, advantage)
    own = algorithm.needs_critic and is_own(critic.loss)
    yield _Rule(own, "critic.", critic, _defaults(critic), ("clip",), f"critic.loss is {critic.loss}")


def _of_algorithm(algorithm: AlgorithmConfig) -> Iterator[_Rule]:
    usual = AlgorithmConfig(recipe=algorithm.recipe)
    loss, advantage, kl, shaping = algorithm.loss, algorithm.advantage, algorithm.kl, algorithm.shaping

    def rule(applies: bool, keys: tuple[str, ...], reason: str) -> _Rule:
        return _Rule(applies, "algorithm.", algorithm, usual, keys, reason)

    yield rule(
        algorithm.steps_per_batch == 1 and algorithm.proximal != "behavior",
        ("proximal",),
        "with one optimiser step per batch the current policy is the proximal one",
    )
    yield rule(algorithm.epochs_per_batch == 1, ("stop_kl",), "algorithm.epochs_per_batch is 1")
    yield rule(advantage != "gae", ("whiten", "lam"), f"algorithm.advantage is {advantage}")
    yield rule(advantage not in ("gae", "reinforce_plus_plus"), ("gamma",), f"algorithm.advantage is {advantage}")
    yield rule(loss not in _CLIPPED, ("clip_low", "clip_high"), f"algorithm.loss is {loss}")
    yield rule(loss != "clipped_surrogate", ("dual_clip",), f"algorithm.loss is {loss}")
    yield rule(loss != "sapo", ("tau_positive", "tau_negative"), f"algorithm.loss is {loss}")
    yield rule(loss != "m2po", ("second_moment",), f"algorithm.loss is {loss}")

    behavior, of_behavior = algorithm.behavior, usual.behavior
    naive, own = algorithm.objective == "naive", is_own(behavior.mode)
    several = naive and algorithm.steps_per_batch > 1 and loss != "m2po"
    yield rule(several, ("proximal",), "algorithm.objective is naive, whose ratio is against the behaviour policy")
    unweighted = naive or algorithm.proximal == "behavior"
    reason = "algorithm.objective is naive" if naive else "algorithm.proximal is behavior"
    yield _Rule(unweighted, "algorithm.behavior.", behavior, of_behavior, (), reason)
    keys = ("level", "low", "high", "veto")
    reason = f"algorithm.behavior.mode is {behavior.mode}"
    yield _Rule(own and not unweighted, "algorithm.behavior.", behavior, of_behavior, keys, reason)

    rest = tuple(key for key in type(kl).model_fields if key != "coefficient")
    # The estimator follows the place, so a place that has no effect brings no second note.
    usual_kl = AlgorithmConfig.model_validate({"recipe": algorithm.recipe, "kl": {"place": kl.place}}).kl
    usual_kl = usual_kl.model_copy(update={"place": usual.kl.place})
    yield _Rule(kl.coefficient == 0, "algorithm.kl.", kl, usual_kl, rest, "algorithm.kl.coefficient is 0")
    in_loss = kl.coefficient > 0 and kl.place == "loss"
    yield _Rule(in_loss, "algorithm.kl.", kl, usual.kl, ("of",), "algorithm.kl.place is loss")
    fixed = kl.coefficient > 0 and kl.target is None
    yield _Rule(fixed, "algorithm.kl.", kl, usual.kl, ("horizon",), "algorithm.kl.target is not set")

    ignored = algorithm.distils
    yield _Rule(ignored, "algorithm.shaping.", shaping, usual.shaping, (), "distillation looks at no reward")
    for key, needs, set_ in (
        ("overlong_factor", "overlong_buffer", shaping.overlong_buffer is not None),
        ("correct_above", "length_weight", shaping.length_weight > 0),
    ):
        reason = f"algorithm.shaping.{needs} is not set"
        yield _Rule(not (set_ or ignored), "algorithm.shaping.", shaping, usual.shaping, (key,), reason)


def _of_clips(algorithm: AlgorithmConfig) -> Iterator[_Rule]:
    usual, loss = AlgorithmConfig(recipe=algorithm.recipe), algorithm.loss
    if loss not in _CLIPPED or not algorithm.ratio_is_one:
        return
    if loss != usual.loss:
        low, high = LOSS_CLIPS[loss]
        usual = usual.model_copy(update={"clip_low": low, "clip_high": high})
    one_step = "with one optimiser step per batch the ratio is 1"
    why = "algorithm.proximal is current" if algorithm.proximal == "current" else one_step
    keys = ("clip_low", "clip_high", *(("dual_clip",) if loss == "clipped_surrogate" else ()))
    yield _Rule(True, "algorithm.", algorithm, usual, keys, why)


def _defaults(section: Section) -> Section:
    """`section` with every key that has a default at it."""
    given = {name: getattr(section, name) for name, field in type(section).model_fields.items() if field.is_required()}
    return type(section).model_validate(given)


def _changed(rule: _Rule) -> list[str]:
    keys = rule.keys or tuple(type(rule.section).model_fields)
    return [key for key in keys if getattr(rule.section, key) != getattr(rule.usual, key)]
