"""How many processes play the episodes, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.config import ConfigError, TrainConfig
from headrace.config.agent import AgentCommand, OutsideAgent
from headrace.config.filters import FunctionFilter
from headrace.config.values.name_or_function import is_own
from headrace.experience.text.fast_tokenizer import TokenizerSpec
from headrace.plugins.named import IN_MEMORY, Given


def rollout_workers(config: TrainConfig, given: Given) -> int:
    """`rollout.workers`, or what `auto` comes to; 0 where nothing is generated. Raises ConfigError for workers that
    could not have what was given in Python."""
    wanted = config.rollout.workers
    if wanted not in ("auto", 0, 1) and (told := _functions(config)):
        key, spec = told[0]
        raise ConfigError(
            f"rollout.workers is {wanted}, but {key} is {spec!r}, whose buffer has all groups of the run; leave "
            "rollout.workers out, or set it to 1"
        )
    if isinstance(config.rollout.agent, OutsideAgent):
        if wanted == "auto":
            return 0
        if wanted and config.runtime.kind == "ray" and _is_placed(config):
            raise ConfigError(
                "cluster places rollout, and rollout.agent is outside: agents reach all rollout workers by the host at "
                "which they ask for tasks; leave rollout out of cluster.place and cluster.colocate, so that they are "
                "on the node of the command"
            )
    if config.data.rollouts is not None or wanted == 0:
        return 0
    objects = [(key, spec) for key, spec in _asked(config) if spec in given or spec.startswith(f"{IN_MEMORY}:")]
    if wanted == "auto":
        return int(bool(own(config)) and not objects)
    if objects:
        key, spec = objects[0]
        raise ConfigError(
            f"rollout.workers is {wanted}, but {key} is {spec!r}, an object of this process, which no other has; name "
            "it by path.py:name, or set rollout.workers=0"
        )
    return wanted


def own(config: TrainConfig) -> list[str]:
    """Of what plays and filters groups, what is the user's: each `key: name`."""
    return [f"{key} {spec}" for key, spec in _played(config) if is_own(spec)]


def describe(config: TrainConfig, workers: int, tokenizer: Any) -> list[str]:
    """Lines for `headrace check`; none where no process plays."""
    if not workers:
        return []
    why = f" (auto: {own(config)[0]} is yours)" if config.rollout.workers == "auto" else ""
    if isinstance(config.rollout.agent, OutsideAgent):
        why = "; agents outside ask this process for tasks, and each task has the address of the one that plays it"
    processes = "1 process of its own" if workers == 1 else f"{workers} processes of their own"
    lines = [
        f"  {'rollouts':<16} {processes}{why}; modules are imported there anew, so that nothing global in them is "
        "shared with this process; rollout.workers=0 plays here"
    ]
    if TokenizerSpec.of(tokenizer) is None:
        lines.append(f"  {'rollouts':<16} the tokenizer is Python's alone: each process imports transformers for it")
    return lines


def _is_placed(config: TrainConfig) -> bool:
    """Whether rollout workers may be on other nodes."""
    cluster = config.cluster
    return "rollout" in cluster.place or cluster.colocate == "all" or any("rollout" in each for each in cluster.sets)


def _played(config: TrainConfig) -> Iterator[tuple[str, str]]:
    rollout = config.rollout
    yield from _functions(config)
    yield "rollout.workflow", rollout.workflow
    if rollout.agent is not None:
        agent = rollout.agent
        yield "rollout.agent", agent if isinstance(agent, str) else _told(agent)
    if rollout.environment is not None:
        yield "rollout.environment", rollout.environment
    for each in config.filters:
        if isinstance(each, FunctionFilter):
            yield "rollout.filters", each.function
        elif isinstance(each, str):
            yield "rollout.filters", each


def _told(agent: AgentCommand | OutsideAgent) -> str:
    return "outside" if isinstance(agent, OutsideAgent) else f"command: {agent.command[0]}"


def _functions(config: TrainConfig) -> list[tuple[str, str]]:
    rollout, evaluation = config.rollout, config.evaluation
    named = (
        ("rollout.function", rollout.function),
        ("evaluation.function", evaluation.function if config.held_out else None),
        ("rollout.buffer_filter", rollout.buffer_filter),
    )
    return [(key, spec) for key, spec in named if spec is not None]


def _asked(config: TrainConfig) -> Iterator[tuple[str, str]]:
    yield from _played(config)
    for reward in config.rewards:
        for term in reward.all_terms:
            yield "reward.function", term.function
        if reward.group is not None:
            yield "reward.group", reward.group
