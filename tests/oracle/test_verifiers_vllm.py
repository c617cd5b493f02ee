"""The same agent through `verifiers` and through the gateway, greedy, over one vLLM server with a model that calls the
tool: equal ids, branches and masks. Skipped without `verifiers` (`make verifiers-env`) or vLLM (`make vllm-env`).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from histories import trained_once
from looking_up import looking_up
from qwen3_caller import CONTEXT, make_caller
from transformers import AutoTokenizer
from verifiers_episodes import by_gateway, by_verifiers, check_alike
from vllm_server import PYTHON, needs_vllm, serving

from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits
from headrace.engines.servers.launch import ServerLaunch
from headrace.roles.workers.server_engine import ServerSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_vllm]

KEYS = "abcd", "hfca"
REWRITINGS = {"summed up": 3, "asked otherwise": 3, "told otherwise": 2, "taken back": 3}
"""With how often the tool is called."""
THINKING = [("keep", "all", False, 2), ("keep", "all", True, 2), ("template", None, True, 3)]
"""Ours, theirs, whether the model thinks, and the histories that come of it."""
GREEDY = {"tokens": 64, "temperature": 0.0}


def launched(model: Path, vocab_size: int, log: Path) -> ServerSpec:
    launch = ServerLaunch(
        python=PYTHON,
        weights=str(model),
        dtype="float32",
        slots=4,
        max_context=CONTEXT,
        seed=0,
        on_cpu=True,
        threads=1,
        start_s=240.0,
    )
    limits = Limits(4, CONTEXT, vocab_size, "float32")
    return ServerSpec("vllm", limits, Expected({"vocab_size": vocab_size}, CONTEXT, "float32"), launch, str(log))


def with_names(read: Callable[[bytes], dict[str, Any]]) -> Callable[[bytes], dict[str, Any]]:
    """vLLM 0.32 tells the token of a log-prob by its id alone; `renderers` 0.1.12 wants the name that it had before."""

    def told(raw: bytes) -> dict[str, Any]:
        answer = read(raw)
        for each in answer["choices"][0]["logprobs"]["content"]:
            each["token"] = f"token_id:{each['token_id']}"
        return answer

    return told


def test_an_agent_with_a_tool_and_a_rewritten_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("renderers.client")
    monkeypatch.setattr(client, "parse_generate_response", with_names(client.parse_generate_response))
    model = make_caller(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(model)
    calling = tokenizer.convert_tokens_to_ids("<tool_call>")

    async def main() -> None:
        async with serving(launched(model, len(tokenizer), tmp_path / "vllm.log")) as worker:
            url, engine = f"http://127.0.0.1:{worker._port}/v1", worker.engine
            for case in itertools.product(KEYS, REWRITINGS, THINKING):
                keys, how, (thinking, retention, thinks, histories) = case
                agent = looking_up(keys, thinks, how)
                theirs = await by_verifiers(agent, url, model, retention, **GREEDY)
                for package in (None, model):
                    ours = await by_gateway(agent, engine, tokenizer, thinking, package, **GREEDY)
                    check_alike(theirs, ours, case)
                assert len(theirs) == histories, case
                sampled = [one for each in trained_once(theirs) for one, mine in zip(*each, strict=True) if mine]
                assert sampled.count(calling) == REWRITINGS[how], case

    asyncio.run(main())
