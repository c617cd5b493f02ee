"""The same agent through `verifiers` and through the gateway, over one engine whose answer follows from the prompt:
equal ids, branches and masks. Skipped without `verifiers`: `make verifiers-env`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from aiohttp import web
from histories import Path as Recorded
from histories import trained_once
from looking_up import looking_up
from qwen3_chats import qwen3_tokenizer
from rollout_helpers import ScriptedEngine, chunk
from transformers import PreTrainedTokenizerFast
from verifiers_episodes import Ours, by_gateway, by_verifiers, check_alike

from headrace.engines.protocol import GenerateRequest, SamplingParams, TokenChunk

TOKENS = 128


def answering(tokenizer: PreTrainedTokenizerFast, thinks: bool) -> Callable[[GenerateRequest], TokenChunk]:
    """Calls the tool, with spaces that no template writes, and then tells what it heard."""

    def answer(request: GenerateRequest) -> TokenChunk:
        heard = tokenizer.decode(request.prompt)
        *_, last = heard.split("<|im_start|>user\n")
        thought = f"<think>\nAfter {len(heard)} letters.\n</think>\n\n" if thinks else ""
        if "</tool_response>" in last:
            said = f"It  is {last.split()[1]}."
        else:
            (key,) = re.findall(r"hat is (\w)\?", last)
            said = f'I look.\n<tool_call>\n{{"name": "look", "arguments": {{"key" :"{key}"}}}}\n</tool_call>'
        return chunk(tokenizer(f"{thought}{said}<|im_end|>")["input_ids"])

    return answer


@asynccontextmanager
async def served(engine: ScriptedEngine) -> AsyncGenerator[str]:
    """Its address, where it answers as vLLM does."""

    async def generate(request: web.Request) -> web.Response:
        body = await request.json()
        asked = GenerateRequest("theirs", np.array(body["token_ids"], np.int32), SamplingParams(TOKENS), 0)
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
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def play(
    folder: Path,
    how: Literal["summed up", "answered otherwise"],
    *,
    thinking: Literal["keep", "template"] = "keep",
    retention: str | None = "all",
    thinks: bool = False,
    by_package: bool,
) -> tuple[list[Recorded], Ours]:
    """Theirs and ours, of six answers each."""
    tokenizer = qwen3_tokenizer()
    tokenizer.save_pretrained(folder)
    engine, agent = ScriptedEngine(answering(tokenizer, thinks)), looking_up("abcd", thinks, how)
    most = {"tokens": TOKENS, "temperature": 1.0}

    async def main() -> tuple[list[Recorded], Ours]:
        async with served(engine) as url:
            theirs = await by_verifiers(agent, url, folder, retention, **most)
        return theirs, await by_gateway(agent, engine, tokenizer, thinking, folder if by_package else None, **most)

    found = asyncio.run(main())
    assert len(engine.requests) == 12
    return found


@pytest.mark.parametrize("by_package", [False, True])
@pytest.mark.parametrize(
    ("thinking", "retention", "thinks", "histories"),
    [("keep", "all", False, 2), ("keep", "all", True, 2), ("template", None, True, 3)],
)
def test_an_agent_with_a_tool(
    thinking: Literal["keep", "template"],
    retention: str | None,
    thinks: bool,
    histories: int,
    by_package: bool,
    tmp_path: Path,
) -> None:
    theirs, ours = play(
        tmp_path, "summed up", thinking=thinking, retention=retention, thinks=thinks, by_package=by_package
    )
    check_alike(theirs, ours)
    assert len(theirs) == histories


@pytest.mark.parametrize("by_package", [False, True])
def test_before_an_answer_that_the_agent_rewrote_tokens_stay_as_sampled(by_package: bool, tmp_path: Path) -> None:
    """There the history is rendered anew from its beginning."""
    recorded, by_us = play(tmp_path, "answered otherwise", by_package=by_package)
    theirs, ours = trained_once(recorded), by_us.trained
    assert ours == trained_once(by_us.recorded)
    tokenizer = qwen3_tokenizer()
    assert ours[0] == theirs[0]
    (their_text, our_text) = (tokenizer.decode(found[1][0]) for found in (theirs, ours))
    assert [our_text.count(spaced) for spaced in ('"key" :"', '"key": "')] == [3, 0]
    assert [their_text.count(spaced) for spaced in ('"key" :"', '"key": "')] == [1, 2]
    assert sum(ours[1][1]) == sum(theirs[1][1])
