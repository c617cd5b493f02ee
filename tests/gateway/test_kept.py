"""Kept sets over HTTP, from a real engine."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

import aiohttp
import numpy as np
import transformers
from http_scripted import EOS, VOCAB, byte_tokenizer

from headrace.algorithms.kept_sets import KeptSets, joined
from headrace.config import EngineConfig
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.pool import EnginePool
from headrace.gateway import build_app, serve
from headrace.runtime.inline import InlineRuntime, SystemClock

BODY = {
    "prompt_ids": [5, 6, 7],
    "seed": 3,
    "return_kept": True,
    "sampling": {"max_new_tokens": 20, "top_k": 9, "top_p": 0.9, "ignore_eos": True},
}


def _answers(*bodies: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The events of each answer; of a whole one it is the only event."""

    async def main() -> list[list[dict[str, Any]]]:
        shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.Qwen3Config(
            **shape, vocab_size=VOCAB, num_key_value_heads=2, head_dim=8, max_position_embeddings=64
        )
        runtime = InlineRuntime()
        engine = EmbeddedEngine(transformers.Qwen3ForCausalLM(config), config=EngineConfig(), runtime=runtime)
        await engine.start()
        app = build_app(
            EnginePool.of([engine], SystemClock()),
            byte_tokenizer(),
            model_name="tiny",
            clock=SystemClock(),
            token=None,
            max_context=64,
            vocab_size=VOCAB,
            eos_token_ids=(EOS,),
            seed=5,
        )
        server = await serve(app, "127.0.0.1", 0)
        answers = []
        async with aiohttp.ClientSession() as session:
            for body in bodies:
                async with session.post(server.address + "/generate", json=body) as answer:
                    text = await answer.text()
                    assert answer.status == 200, text
                lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
                answers.append([json.loads(line) for line in lines if line != "[DONE]"])
        await server.close()
        await engine.stop()
        await runtime.close()
        return answers

    return asyncio.run(main())


def _kept(event: dict[str, Any]) -> KeptSets:
    kept = event["kept"]
    data = np.frombuffer(b64decode(kept["data"]), np.uint8)
    return KeptSets.checked(kept["vocab_size"], np.array(kept["counts"], np.int32), data)


def test_kept_sets_come_with_the_tokens_whole_and_streamed_alike() -> None:
    (whole,), streamed = _answers(BODY, {**BODY, "stream": True})
    kept = _kept(whole)
    assert len(kept) == len(whole["token_ids"]) == 20
    assert kept.contain(np.array(whole["token_ids"])).all()
    assert 1 <= kept.counts.min() <= kept.counts.max() <= 9
    assert len(streamed) > 1
    parts = [_kept(event) for event in streamed if event["token_ids"]]
    again = joined(parts, map(len, parts))
    assert again is not None
    assert again.counts.tolist() == kept.counts.tolist()
    assert again.data.tolist() == kept.data.tolist()


def test_none_come_where_nothing_is_cut_or_none_are_asked_for() -> None:
    (uncut,), (unasked,) = _answers(
        {**BODY, "sampling": {"max_new_tokens": 3}}, {key: value for key, value in BODY.items() if key != "return_kept"}
    )
    assert "kept" not in uncut
    assert "kept" not in unasked
