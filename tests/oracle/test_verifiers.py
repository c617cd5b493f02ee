"""Against the client of prime-rl's `verifiers` that renders and records episodes itself: the same agent, one engine
whose answer follows from the prompt alone, and then equal ids, branches and masks. Skipped without it:
`pip install verifiers`, in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from qwen3_chats import TOOL, qwen3_tokenizer
from rollout_helpers import ScriptedEngine, chunk, settings
from transformers import PreTrainedTokenizerFast

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import GenerateRequest, SamplingParams, TokenChunk
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

Ask = Callable[[list[dict[str, Any]]], Awaitable[dict[str, Any]]]
Histories = list[tuple[list[int], list[bool]]]
"""Ids, and which of them were sampled."""


def answering(tokenizer: PreTrainedTokenizerFast, thinks: bool) -> Callable[[GenerateRequest], TokenChunk]:
    """Calls the tool, with spaces that no template writes, and then tells what it heard."""

    def answer(request: GenerateRequest) -> TokenChunk:
        heard = tokenizer.decode(request.prompt)
        *_, last = heard.split("<|im_start|>user\n")
        thought = f"<think>\nAfter {len(heard)} letters.\n</think>\n\n" if thinks else ""
        if "</tool_response>" in last:
            said = f"It  is {last.split()[1]}."
        else:
            said = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"key" :"' + last[8] + '"}}\n</tool_call>'
        return chunk(tokenizer(f"{thought}{said}<|im_end|>")["input_ids"])

    return answer


async def converse(ask: Ask) -> None:
    """Two questions, each with a call of the tool; then a history that was rewritten."""

    async def until_told(messages: list[dict[str, Any]]) -> None:
        while True:
            messages.append(await ask(messages))
            if not messages[-1].get("tool_calls"):
                return
            for call in messages[-1]["tool_calls"]:
                key = json.loads(call["function"]["arguments"])["key"]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{key}{key} units"})

    messages = [{"role": "user", "content": "What is a?"}]
    await until_told(messages)
    messages.append({"role": "user", "content": "What is b?"})
    await until_told(messages)
    await until_told([{"role": "user", "content": "What is c, where b is bb?"}])


async def by_verifiers(engine: ScriptedEngine, folder: Path, retention: str | None) -> Histories:
    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        asked = GenerateRequest("theirs", np.array(body["token_ids"], np.int32), SamplingParams(64), 0)
        (told,) = [each async for each in engine.generate(asked)]
        ids = told.tokens.tolist()
        logprobs = [{"token": f"token_id:{each}", "logprob": -0.5} for each in ids]
        choice = {"token_ids": ids, "finish_reason": "stop", "logprobs": {"content": logprobs}}
        return web.json_response({"request_id": "theirs", "choices": [choice]})

    app = web.Application()
    app.router.add_post("/inference/v1/generate", generate)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    renderer = Qwen3RendererConfig(thinking_retention=retention)
    address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    client = train.TrainClient(TrainClientConfig(base_url=address, renderer=renderer, renderer_model_name=str(folder)))
    trace = Trace.model_construct(nodes=[], calls=[], tools=[], mm_token_type_id_map={})
    trace.__pydantic_private__ = {"_head_index": {}, "_on_change": None, "_pending": {}}
    dialect = ChatDialect()

    async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": "policy", "messages": messages, "tools": [TOOL]}
        asked = dialect.parse_request(body)
        turn = graph.prepare_turn(trace, asked.messages, asked.tools)
        response = await client.get_response(dialect, body, SamplingConfig(max_tokens=64), turn=turn)
        turn.commit(response)
        return response.raw["choices"][0]["message"]  # type: ignore[no-any-return]

    try:
        await converse(ask)
    finally:
        await client.close()
        await runner.cleanup()
    found = []
    for leaf in graph.leaves(trace):
        path, place = [], leaf
        while place is not None:
            path.append(trace.nodes[place])
            place = trace.nodes[place].parent
        path.reverse()
        found.append(
            ([each for node in path for each in node.token_ids], [each for node in path for each in node.mask])
        )
    return found


async def by_gateway(
    engine: ScriptedEngine, tokenizer: PreTrainedTokenizerFast, thinking: Any, renderer: ModelRenderer | None
) -> Histories:
    runtime = InlineRuntime()
    gateway = AgentGateway(GatewayConfig(thinking=thinking), runtime, renderer=renderer)
    await gateway.start()
    ends = tokenizer.eos_token_id
    sampling = SamplingParams(max_new_tokens=128, stop_token_ids=(ends,))
    its = settings(engine, text=TextCodec(tokenizer), sampling=sampling, max_context=4096)
    try:
        async with gateway.open(Policy(its, group=GroupKey(0, 0, 0), episode=0, min_version=INITIAL)) as session:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {session.api_key}"}) as client:

                async def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
                    body = {"model": session.model, "messages": messages, "tools": [TOOL]}
                    async with client.post(f"{session.base_url}/chat/completions", json=body) as response:
                        return (await response.json())["choices"][0]["message"]  # type: ignore[no-any-return]

                await converse(ask)
            samples = [each.to_sample(GroupKey(0, 0, 0), 0, 0) for each in session.trajectories()]
    finally:
        await gateway.close()
        await runtime.close()
    return [(each.tokens.tolist(), each.loss_mask.tolist()) for each in samples]


@pytest.mark.parametrize("by_package", [False, True])
@pytest.mark.parametrize(
    ("thinking", "retention", "thinks", "histories"),
    [("keep", "all", False, 2), ("keep", "all", True, 2), ("template", None, True, 3)],
)
def test_an_agent_with_a_tool(
    thinking: str, retention: str | None, thinks: bool, histories: int, by_package: bool, tmp_path: Path
) -> None:
    tokenizer = qwen3_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    engine = ScriptedEngine(answering(tokenizer, thinks))
    renderer = ModelRenderer("qwen3", str(tmp_path), ChatTemplate(tokenizer)) if by_package else None

    async def main() -> tuple[Histories, Histories]:
        theirs = await by_verifiers(engine, tmp_path, retention)
        return theirs, await by_gateway(engine, tokenizer, thinking, renderer)

    theirs, ours = asyncio.run(main())
    assert sorted(ours) == sorted(theirs)
    assert len(ours) == histories
    assert len(engine.requests) == 12
