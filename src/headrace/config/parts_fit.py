"""What does not go together in a training config whose sections are good each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.algorithm import BY_GROUP
from headrace.config.values.hosts import is_loopback

if TYPE_CHECKING:
    from headrace.config.model import EngineConfig
    from headrace.config.train import TrainConfig


def check_parts(config: TrainConfig) -> None:
    """Raises ValueError with the mend, of the first that do not."""
    _check_held_out(config)
    _check_sampling(config)
    _check_recording(config)
    _check_surplus(config)
    _check_weights(config)
    _check_ahead(config)
    _check_time_limits(config)
    _check_scoring(config)
    _check_batch(config)


def _check_held_out(config: TrainConfig) -> None:
    for each in config.held_out:
        each.check(single_turn=config.rollout.workflow == "single_turn" and config.evaluation.function is None)
        longest, key = each.reward.longest
        if each.own_reward and longest > config.runtime.stall_timeout_s:
            raise ValueError(
                f"{each.key}.reward.{key} lets a reward take {longest:g} s, more than runtime.stall_timeout_s "
                f"({config.runtime.stall_timeout_s:g}); lower it, or raise runtime.stall_timeout_s"
            )
    _ = config.best_by  # or its error
    engines: dict[str | None, EngineConfig] = {}
    for judge in (judge for reward in config.rewards for judge in reward.judges):
        if engines.setdefault(judge.model, judge.engine) != judge.engine:
            raise ValueError(f"two judges are {judge.model!r} and share an engine; give both the same judge.engine")


def _check_sampling(config: TrainConfig) -> None:
    """What is sampled, and by whom that is said, against what engines tell of it."""
    if config.clients_sample and (config.rollout.agent is None or config.rollout.function is not None):
        raise ValueError(
            "gateway.sampling is client, and no agent plays the episodes that are trained; set rollout.agent "
            "(without rollout.function), or leave gateway.sampling out"
        )
    sampling, engines = config.rollout.sampling, config.engine.sections
    if sampling.truncates and sampling.top_k == 0 and any(each.kind == "vllm" for each in engines):
        raise ValueError(
            f"rollout.sampling.top_p is {sampling.top_p} and top_k 0, and vLLM tells kept sets under top_k alone; "
            "set rollout.sampling.top_k, or leave it out"
        )
    if config.algorithm.router_replay and (server := next((each.kind for each in engines if each.is_server), None)):
        raise ValueError(
            f"algorithm.router_replay is true, and engine.kind is {server}, of which it is not shown that it tells "
            "the experts of every token; use engine.kind: embedded, or leave router_replay out"
        )


def _check_recording(config: TrainConfig) -> None:
    """Of a run that trains nothing."""
    if config.rollouts_only and config.data.rollouts is not None:
        raise ValueError("rollouts_only is true, and data.rollouts names what is recorded already; drop one")
    if config.rollouts_only and config.rollout.surplus:
        raise ValueError(
            f"rollouts_only is true, and rollout.oversample is {config.rollout.oversample:g}: every group is "
            "recorded, so none is surplus; use oversample: 1"
        )


def _check_surplus(config: TrainConfig) -> None:
    if config.rollout.surplus and config.deadline_rule != "drop":
        raise ValueError(
            f"rollout.oversample is {config.rollout.oversample:g} but async.on_deadline is {config.deadline_rule}: "
            "what is started beyond a batch can only be dropped; use on_deadline: drop, or oversample: 1"
        )


def _check_weights(config: TrainConfig) -> None:
    """How they are published, against who takes them."""
    apart = config.followers_in_processes
    if apart and config.transport == "memory":
        raise ValueError(
            f"weights.transport is memory, which reaches no other process, and {apart[0]}; use shm or disk, or "
            "leave weights.transport out"
        )
    if config.sends_weights:
        _check_sent_weights(config)
    elif config.transport in ("shm", "cuda_ipc") and not apart:
        raise ValueError(
            f"weights.transport is {config.weights.transport}, which is for models in processes of their own; set "
            "engine.process: true, trainer.placement: process or proximal.placement: process, or use memory"
        )
    elif config.weights.transport == "collective" and config.servers_beyond:
        raise ValueError(
            f"weights.transport is collective, whose relays are Headrace's own workers, and engine.url "
            f"{config.servers_beyond[0]!r} is a server of another machine; use gloo"
        )
    elif config.transport == "shm" and config.servers_beyond:
        raise ValueError(not_seen_by(config.servers_beyond[0]))
    elif config.transport == "cuda_ipc" and config.engine.has_server:
        raise ValueError(
            "weights.transport is cuda_ipc, and an engine is a server, which takes weights by shm, disk or gloo; "
            "use one of these, or leave weights.transport out"
        )


def not_seen_by(url: str) -> str:
    """That the server at `url`, beyond this machine, does not see where weights are published, and the mend."""
    return (
        f"engine.url {url!r} is beyond this machine, and the weights that it is to serve are published on this one; "
        "use weights.transport: gloo, with weights.host, or launch the server here; or if it is on this machine, have "
        "it listen on loopback and write url: http://127.0.0.1:8000"
    )


def _check_sent_weights(config: TrainConfig) -> None:
    """By gloo: whether there are servers, and they reach them."""
    if not config.engine.has_server:
        raise ValueError(
            "weights.transport is gloo, which is for inference servers, and there is none; set engine.kind: vllm "
            "or sglang, or use shm"
        )
    if config.servers_beyond and is_loopback(config.weights.host):
        raise ValueError(
            f"engine.url {config.servers_beyond[0]!r} is beyond this machine, and weights.host "
            f"{config.weights.host!r} is not; set weights.host to an address of this machine that the server reaches"
        )


def _check_ahead(config: TrainConfig) -> None:
    ahead, batch, surplus = config.async_.ahead, config.rollout.prompts_per_batch, config.rollout.surplus
    if ahead is not None and ahead < batch:
        raise ValueError(
            f"async.ahead is {ahead}, less than rollout.prompts_per_batch ({batch}): a batch could never fill; "
            f"raise it to {batch} or more"
        )
    if ahead is not None and surplus and ahead < batch + surplus:
        raise ValueError(
            f"async.ahead is {ahead}, but with rollout.oversample {batch + surplus} groups start for a batch; "
            f"raise it to {batch + surplus} or more"
        )


def _check_time_limits(config: TrainConfig) -> None:
    """Nothing that may take its time is taken for a stall."""
    episode_s, stall_s = config.rollout.episode_timeout_s, config.runtime.stall_timeout_s
    if episode_s > stall_s:
        raise ValueError(
            f"rollout.episode_timeout_s is {episode_s:g}, more than runtime.stall_timeout_s ({stall_s:g}): the run "
            f"would be taken for stalled while it waits for a long episode; raise runtime.stall_timeout_s to "
            f"{episode_s:g} or more, or lower rollout.episode_timeout_s"
        )
    reward_s, key = config.reward.longest
    if reward_s > stall_s:
        raise ValueError(
            f"reward.{key} lets a reward take {reward_s:g} s, more than runtime.stall_timeout_s ({stall_s:g}): the "
            f"run would be taken for stalled meanwhile; lower it, or raise runtime.stall_timeout_s"
        )


def _check_scoring(config: TrainConfig) -> None:
    """By models beside the policy."""
    if config.data.curriculum.pass_rate is not None and config.reward.model.path is not None:
        raise ValueError(
            "data.curriculum.pass_rate goes by what reward functions give with the rollout, and reward.model.path "
            "scores later; order the rows by data.curriculum.column, or leave the reward model out"
        )
    if config.algorithm.needs_teacher and config.teacher.model is None:
        what = "advantage is distillation" if config.algorithm.distils else "a function of yours reads teacher"
        raise ValueError(f"algorithm: {what}, which needs teacher.model")


def _check_batch(config: TrainConfig) -> None:
    """What the algorithm does with a batch, against its samples: how long they are, and how many."""
    algorithm, kl = config.algorithm, config.algorithm.kl
    buffer, longest = algorithm.shaping.overlong_buffer, config.rollout.sampling.max_new_tokens
    if buffer is not None and buffer > longest:
        raise ValueError(
            f"algorithm.shaping.overlong_buffer is {buffer}, and rollout.sampling.max_new_tokens {longest}: every "
            "sample would be too long; lower it"
        )
    samples = config.rollout.prompts_per_batch * config.rollout.samples_per_prompt
    for key, updates in (("algorithm", algorithm.updates_per_batch), ("critic", config.critic.updates_per_batch)):
        if updates > samples:
            raise ValueError(
                f"{key}.updates_per_batch is {updates}, and a batch has {samples} samples (rollout."
                f"prompts_per_batch x samples_per_prompt): use {samples} or fewer"
            )
    if kl.target is not None and samples >= 5 * kl.horizon:
        raise ValueError(
            f"algorithm.kl.horizon is {kl.horizon}, and a batch has {samples} samples: the coefficient could "
            f"reach 0 in one step; use a horizon above {samples // 5}"
        )
    if algorithm.advantage in BY_GROUP and config.rollout.samples_per_prompt == 1:
        raise ValueError(
            f"algorithm.advantage is {algorithm.advantage} but rollout.samples_per_prompt is 1: one sample "
            "has no group to compare with, so every advantage would be 0; set samples_per_prompt to 2 or more"
        )
