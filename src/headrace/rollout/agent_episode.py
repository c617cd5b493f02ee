"""What an agent is called with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.experience.text.messages import Tool
from headrace.experience.text.tokens import Content


@dataclass(frozen=True, slots=True)
class AgentEpisode:
    """One episode, as an agent sees it. What it changes of `row`, `prompt` and `tools`, it changes for itself alone."""

    row: dict[str, Any]
    """Of the dataset."""
    prompt: Content
    """The row's prompt: text, or chat messages."""
    tools: Sequence[Tool] | None
    """JSON schemas of the tools that the row names, if it does: the agent gives them with its requests."""
    base_url: str
    """Of the OpenAI API, as `http://127.0.0.1:40001/v1`. It answers for this episode alone, while that lasts."""
    api_key: str
    model: str
    """The policy's name in requests."""
    name: str
    """Group and number of the episode, the same in every run of the seed."""
    evaluation: bool = False
    """Whether it is of a held-out set, and not trained."""
