"""Tokens that the config names by environment variables, and that a run needs from its start."""

from __future__ import annotations

import os
from collections.abc import Iterator

from headrace.config.agent import OutsideAgent
from headrace.config.errors import ConfigError
from headrace.config.train import TrainConfig


def check_tokens(config: TrainConfig) -> None:
    """Raises ConfigError for a variable that the environment lacks."""
    for key, name in _named(config):
        if not os.environ.get(name):
            raise ConfigError(f"{key} names {name}, which is not set; export it, or leave {key} out")


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
