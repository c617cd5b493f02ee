"""What agents speak to: the OpenAI API of an episode."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config.base import Section


class GatewayConfig(Section):
    """Of runs with a `rollout.agent`."""

    thinking: Literal["keep", "template"] = "keep"
    """What becomes of the reasoning of earlier turns. `keep`: it stays as it was sampled, so that an episode is one
    sample. `template`: as the chat template has it; where it leaves a thought out, the history branches there."""
    renderer: str = Field(default="auto", min_length=1, max_length=200)
    """What renders chats. `auto`: the package `renderers` where it is installed and knows `model.path` by its name on
    the Hub, else the chat template. `template`: the chat template. Or a renderer of that package, as `qwen3`, or a
    model on the Hub whose renderer it is, as `Qwen/Qwen3-8B`: for a folder with such a model. See docs/agents.md."""
    tool_parser: Literal["auto", "none", "hermes", "llama3_json", "mistral", "qwen3_xml"] = "auto"
    """How a call of a tool is read in what the policy wrote. `auto`: as the renderer of the model reads it, or as the
    chat template writes one. `none`: it stays text."""
    sampling: Literal["run", "client"] = "run"
    """Whose sampling parameters hold. `run`: those of `rollout.sampling`; an agent's are ignored, and counted.
    `client`: `temperature`, `top_p` and `top_k` of each request, and the run's where it has none. Each token is trained
    as it was sampled, and what is greedy is not trained. See docs/agents.md."""
    model_name: str = Field(default="policy", min_length=1, max_length=200)
    """The name by which agents ask for the policy."""
    max_concurrent_requests: int = Field(default=64, ge=1, le=4096)
    """Of one episode; more are refused with status 429. As many bodies are read at once, and others wait."""
    max_body_mib: int = Field(default=16, ge=1, le=1024)
    """Largest body of a request."""
