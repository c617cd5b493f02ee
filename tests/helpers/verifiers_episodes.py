"""One agent through the client of prime-rl's `verifiers` that renders and records episodes itself, and through the
gateway: what each recorded. Whoever imports it is skipped without `verifiers`: `make verifiers-env`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import aiohttp
import pytest
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

Histories = list[tuple[list[int], list[bool]]]
"""Ids, and which of them were sampled: of each, in the first history that has it."""


async def by_verifiers(
    agent: Agent, url: str, folder: Path, retention: str | None, *, tokens: int, temperature: float
) -> Histories:
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
    found: Histories = []
    seen: set[int] = set()
    for leaf in graph.leaves(trace):
        path, place = [], leaf
        while place is not None:
            path.append(place)
            place = trace.nodes[place].parent
        ids, mask = [], []
        for place in path[::-1]:
            ids += trace.nodes[place].token_ids
            mask += [each and place not in seen for each in trace.nodes[place].mask]
        seen.update(path)
        found.append((ids, mask))
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
) -> Histories:
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
    finally:
        await gateway.close()
        await runtime.close()
    return [(each.tokens.tolist(), each.loss_mask.tolist()) for each in samples]
