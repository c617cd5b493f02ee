"""Tokens that the config names by environment variables, and that a run needs from its start.

They are those of the command's environment: that of a worker on a Ray cluster is another.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.config.agent import OutsideAgent
from headrace.config.reward import REMOTE_TOKEN
from headrace.config.train import TrainConfig
from headrace.config.values.tokens import token_of


def check_tokens(config: TrainConfig) -> None:
    """Raises ConfigError for a variable that the environment lacks."""
    for key, name in _named(config):
        token_of(key, name)


def reward_tokens(config: TrainConfig) -> dict[str, str]:
    """Those that reward servers are sent, by variable. Raises ConfigError."""
    terms = [term for reward in config.rewards for term in reward.all_terms if term.function == "remote"]
    names = {term.remote.token_env for term in terms}
    return {name: token_of(REMOTE_TOKEN, name) for name in names if name is not None}


def _named(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Each (key, variable)."""
    sections = config.engine.sections
    for number, section in enumerate(sections):
        where = "engine" if len(sections) == 1 else f"engine[{number}]"
        if section.token_env is not None:
            yield f"{where}.token_env", section.token_env
        if section.admin_token_env is not None:
            yield f"{where}.admin_token_env", section.admin_token_env
    agent = config.rollout.agent
    if isinstance(agent, OutsideAgent) and agent.token_env is not None:
        yield "rollout.agent.token_env", agent.token_env
