"""One agent through the client of prime-rl's `verifiers` that renders and records episodes itself, and through the
gateway: what each recorded. Whoever imports it is skipped without `verifiers`: `make verifiers-env`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
import pytest
from histories import History, Part, as_recorded, trained_once
from histories import Path as Recorded
from looking_up import Agent, Message
from qwen3_caller import CONTEXT
from qwen3_chats import TOOL
from rollout_helpers import settings
from transformers import PreTrainedTokenizerFast

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import Engine, SamplingParams
from headrace.experience.sample import GroupKey
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_gateway import AgentGateway
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.model_renderer import ModelRenderer
from headrace.rollout.policy import Policy
from headrace.runtime.inline import InlineRuntime
from headrace.weights.version import INITIAL

train = pytest.importorskip("verifiers.v1.clients.train", exc_type=ImportError)
graph = pytest.importorskip("verifiers.v1.graph")
Trace = pytest.importorskip("verifiers.v1.trace").Trace
ChatDialect = pytest.importorskip("verifiers.v1.dialects.chat").ChatDialect
TrainClientConfig = pytest.importorskip("verifiers.v1.configs.client").TrainClientConfig
SamplingConfig = pytest.importorskip("verifiers.v1.types").SamplingConfig
Qwen3RendererConfig = pytest.importorskip("renderers.configs").Qwen3RendererConfig


@dataclass(frozen=True, slots=True)
class Ours:
    """What the gateway recorded, and what it has trained."""

    recorded: list[Recorded]
    trained: list[History]


def check_alike(theirs: list[Recorded], ours: Ours, case: object = None) -> None:
    """Equal histories, and in each the same tokens sampled, as both recorded them; and our samples train each node
    once, as would theirs by that rule."""
    assert sorted(as_recorded(ours.recorded)) == sorted(as_recorded(theirs)), case
    assert ours.trained == trained_once(ours.recorded), case
    assert sorted(ours.trained) == sorted(trained_once(theirs)), case


async def by_verifiers(
    agent: Agent, url: str, folder: Path, retention: str | None, *, tokens: int, temperature: float
) -> list[Recorded]:
    """`url`: of what has vLLM's `/inference/v1/generate`. `folder`: of the tokenizer. `retention`: what becomes of
    thoughts. `tokens`: the most of an answer."""
    renderer = Qwen3RendererConfig(thinking_retention=retention)
    client = train.TrainClient(TrainClientConfig(base_url=url, renderer=renderer, renderer_model_name=str(folder)))
    trace = Trace.model_construct(nodes=[], calls=[], tools=[], mm_token_type_id_map={})
    trace.__pydantic_private__ = {"_head_index": {}, "_on_change": None, "_pending": {}}
    dialect, sampling = ChatDialect(), SamplingConfig(max_tokens=tokens, temperature=temperature)

    async def ask(messages: list[Message]) -> Message:
        body = {"model": "policy", "messages": messages, "tools": [TOOL]}
        asked = dialect.parse_request(body)
        turn = graph.prepare_turn(trace, asked.messages, asked.tools)
        response = await client.get_response(dialect, body, sampling, turn=turn)
        turn.commit(response)
        return response.raw["choices"][0]["message"]  # type: ignore[no-any-return]

    try:
        await agent(ask)
    finally:
        await client.close()
    found: list[Recorded] = []
    for leaf in graph.leaves(trace):
        path: Recorded = []
        place = leaf
        while place is not None:
            node = trace.nodes[place]
            path.insert(0, Part(place, node.token_ids, node.mask))
            place = node.parent
        found.append(path)
    return found


async def by_gateway(
    agent: Agent,
    engine: Engine,
    tokenizer: PreTrainedTokenizerFast,
    thinking: Literal["keep", "template"],
    package: Path | None,
    *,
    tokens: int,
    temperature: float,
) -> Ours:
    """`package`: the model's folder, if the package `renderers` is to render, and not the template."""
    renderer = None if package is None else ModelRenderer("qwen3", str(package), ChatTemplate(tokenizer))
    runtime = InlineRuntime()
    gateway = AgentGateway(GatewayConfig(thinking=thinking), runtime, renderer=renderer)
    await gateway.start()
    sampling = SamplingParams(tokens, temperature, stop_token_ids=(tokenizer.eos_token_id,))
    text = TextCodec(tokenizer)
    its = settings(engine, text=text, sampling=sampling, max_context=CONTEXT, request_timeout_s=60.0)
    try:
        async with gateway.open(Policy(its, group=GroupKey(0, 0, 0), episode=0, min_version=INITIAL)) as session:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.api_key}"}) as client:

                async def ask(messages: list[Message]) -> Message:
                    body = {"model": session.model, "messages": messages, "tools": [TOOL]}
                    async with client.post(f"{session.base_url}/chat/completions", json=body) as response:
                        response.raise_for_status()
                        return (await response.json())["choices"][0]["message"]  # type: ignore[no-any-return]

                await agent(ask)
            samples = [each.to_sample(GroupKey(0, 0, 0), 0, 0) for each in session.trajectories()]
            recorded = recorded_by(session)
    finally:
        await gateway.close()
        await runtime.close()
    return Ours(recorded, [(each.tokens.tolist(), each.loss_mask.tolist()) for each in samples])


def recorded_by(session: AgentSession) -> list[Recorded]:
    """The paths of its tree, in the order of the answers that they end with."""
    return [
        [Part(id(node), node.tokens.tolist(), [node.completion is not None] * len(node.tokens)) for node in answer.path]
        for answer in session._tree.answers
        if not answer.below
    ]
