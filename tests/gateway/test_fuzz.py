"""Thousands of HTTP requests to a real engine, valid and not: each gets its answer, and none harms another."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import numpy as np
import pytest
from engines_helpers import CONFIGS, serving, tiny_model, until
from http_scripted import EOS, VOCAB, byte_tokenizer

from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.pool import EnginePool
from headrace.gateway import build_app, serve
from headrace.runtime.inline import SystemClock

COUNT = 5000
AT_ONCE = 64
CONTEXT = 96
Post = Callable[[str, Any], Awaitable[tuple[int, Any]]]

NUMBERS: list[Any] = [-1, -(2**70), 2**70, 10**400, 1.5, "3", True, [], {}, [1]]
VALID: dict[str, list[Any]] = {
    "temperature": [0, 0.0, 0.01, 0.3, 1, 2.5, 100, None],
    "top_p": [1, 1.0, 0.9, 0.4, 1e-9, 1e-300, None],
    "top_k": [-1, 0, 1, 5, VOCAB, None],
    "max_tokens": [1, 2, 3, None],
    "stop_token_ids": [[], [5], [0, 1, 2, 1], list(range(100)), None],
    "ignore_eos": [True, False, None],
    "seed": [0, 1, -1, 2**63 - 1, -(2**63), None],
    "n": [1, 2, 3, None],
    "stop": ["a", ["b", "cd"], [], None],
    "stream": [True, False, None],
    "user": ["me", "you", None],
    "frequency_penalty": [0, 0.0, None],
}
INVALID: dict[str, list[Any]] = {
    "temperature": [1e-300, 5e-324, 0.0099, 100.5, 1e300, "hot", *NUMBERS[:3], *NUMBERS[5:]],
    "top_p": [0, 0.0, 1.1, -0.1, 1e300, *NUMBERS[:4], *NUMBERS[5:]],
    "top_k": [-2, VOCAB + 1, *NUMBERS[1:]],
    "max_tokens": [0, CONTEXT, 2**31, *NUMBERS],
    "stop_token_ids": [[-1], [VOCAB], [2**70], [1.5], ["3"], [None], [True], 5, "5", {}, [[1]]],
    "ignore_eos": [0, 1, "true", []],
    "seed": [2**63, -(2**63) - 1, 2**70, 1.5, "1", True, []],
    "n": [0, 1025, *NUMBERS],
    "stop": ["", [""], ["x"] * 17, ["x" * 257], 5, [5], {}],
    "stream": [1, "yes", []],
    "frequency_penalty": [0.5, "x", 1],
    "logit_bias": [{"5": 1}],
    "no_such_field": [1, "x", []],
}
PROMPTS: list[Any] = ["hello", "é✓", "\x00", [1, 2, 3], ["one", "two"], [[1], [2, 3]], "x" * 80]
BAD_PROMPTS: list[Any] = ["", [], [[]], [VOCAB], [-1], [1.5], ["a", 5], 5, {}, True, None]
BAD_PROMPTS += ["x" * 96, "x" * 10**5, "\ud800"]
CHATS: list[Any] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "kind"}]}],
]
BAD_CHATS: list[Any] = [
    [],
    "hi",
    [{}],
    [{"role": "user"}],
    [{"role": 5, "content": "x"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
    [{"role": "user", "content": "x"}, {"role": "system", "content": "late"}],
    [{"role": "user", "content": "x" * 200}],
    [{"role": "user", "content": "\udfff"}],
    [5],
    None,
]
BROKEN = [b"", b"{", b"null", b"[]", b"5", b'"x"', b"\xff\xfe", b"[" * 20000, b'{"prompt": NaN}', b'{"seed": 1e999}']
BROKEN += [b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", b"{}"]


def random_body(rng: np.random.Generator) -> tuple[str, bytes, bool]:
    """(path, body, whether it is valid)."""

    def one(values: list[Any]) -> Any:
        return values[int(rng.integers(len(values)))]

    kind = one(["completions", "completions", "chat", "generate"])
    path = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "generate": "/generate"}[kind]
    if rng.random() < 0.05:
        return path, one(BROKEN), False
    wrong = set(rng.choice(sorted(INVALID), size=int(rng.choice([0, 1, 3], p=[0.5, 0.45, 0.05])), replace=False))
    text = rng.random() >= 0.1
    valid = text and not wrong
    fields = {name: one(values) for name, values in VALID.items() if rng.random() < 0.5}
    fields |= {name: one(INVALID[name]) for name in wrong}
    if kind == "generate":
        inner = {"temperature", "top_p", "top_k", "stop_token_ids", "ignore_eos", "logit_bias"}
        sampling = {name: value for name, value in fields.items() if name in inner}
        if "max_tokens" in fields:
            sampling["max_new_tokens"] = fields["max_tokens"]
        outer = {name: fields[name] for name in ("seed", "stream", "no_such_field") if name in fields}
        valid = text and not wrong - {"n", "stop", "frequency_penalty"}
        good_ids, bad_ids = [[1, 2, 3], [VOCAB - 1], [7] * 90], [[], [VOCAB], [-1], "x", None, [1.5], [2**70]]
        prompt = one(good_ids) if text else one(bad_ids)
        sampling.setdefault("max_new_tokens", 2)
        return path, json.dumps({"prompt_ids": prompt, "sampling": sampling, **outer}).encode(), valid
    name, good, bad = ("prompt", PROMPTS, BAD_PROMPTS) if kind == "completions" else ("messages", CHATS, BAD_CHATS)
    if fields.get("max_tokens") is None:
        fields["max_tokens"] = 2
    return path, json.dumps({name: one(good) if text else one(bad), **fields}).encode(), valid


async def with_server(model: Any, test: Callable[[Post, EmbeddedEngine], Awaitable[Any]], **config: Any) -> Any:
    async with serving(model, max_context=CONTEXT, **config) as engine:
        app = build_app(
            EnginePool.of([engine], SystemClock()),
            byte_tokenizer(),
            model_name="tiny",
            clock=SystemClock(),
            token=None,
            max_context=CONTEXT,
            vocab_size=VOCAB,
            eos_token_ids=(EOS,),
            seed=5,
        )
        server = await serve(app, "127.0.0.1", 0)
        headers = {"Content-Type": "application/json"}
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

                async def post(path: str, body: Any) -> tuple[int, Any]:
                    data = body if isinstance(body, bytes) else json.dumps(body).encode()
                    async with session.post(server.address + path, data=data) as answer:
                        text = await answer.text()
                        if answer.content_type != "text/event-stream":
                            return answer.status, json.loads(text)
                        *events, done, end = text.split("\n\n")
                        assert (done, end) == ("data: [DONE]", "")
                        return answer.status, [json.loads(event.removeprefix("data: ")) for event in events]

                return await test(post, engine)
        finally:
            await server.close()


@pytest.fixture(scope="module")
def model() -> Any:
    family, extra = CONFIGS["qwen3"]
    CONFIGS["qwen3_bytes"] = (family, {**extra, "vocab_size": VOCAB})
    return copy.deepcopy(tiny_model("qwen3_bytes"))


@pytest.mark.slow
def test_five_thousand_requests_of_any_kind_leave_twenty_others_as_they_are_alone(model: Any) -> None:
    rng = np.random.default_rng(0)
    strangers = [random_body(rng) for _ in range(COUNT)]
    kinds: list[dict[str, Any]] = [{}, {"temperature": 0.5}, {"temperature": 0.7, "top_p": 0.8}, {"top_k": 20}]
    whole = {"max_new_tokens": 40, "ignore_eos": True}
    others = [{"prompt_ids": [i + 1] * (i + 1), "seed": i, "sampling": {**whole, **kinds[i % 4]}} for i in range(20)]

    async def crowded(post: Post, engine: EmbeddedEngine) -> list[Any]:
        places = asyncio.Semaphore(AT_ONCE)

        async def ask(path: str, body: bytes, valid: bool) -> None:
            async with places:
                status, answer = await post(path, body)
            assert (status == 200) if valid else (400 <= status < 500), (path, body[:300], status, answer)
            if valid:
                for event in answer if isinstance(answer, list) else [answer]:
                    assert "error" not in event, (path, body[:300], event)
            else:
                assert answer["error"]["message"]

        async def answer(i: int) -> Any:
            await asyncio.sleep(0.1 * i)
            return await post("/generate", others[i])

        crowd = asyncio.gather(*(ask(*stranger) for stranger in strangers))
        *answers, _ = await asyncio.gather(*(answer(i) for i in range(20)), crowd)
        assert engine.failure is None
        assert engine.stats().running == engine.stats().waiting == 0
        return answers

    async def alone(post: Post, engine: EmbeddedEngine) -> list[Any]:
        return [await post("/generate", other) for other in others]

    got = asyncio.run(with_server(model, crowded, max_concurrent_sequences=16))
    wanted = asyncio.run(with_server(model, alone))
    for (status, one), (_, other) in zip(got, wanted, strict=True):
        assert status == 200
        assert one["token_ids"] == other["token_ids"]
        np.testing.assert_allclose(one["logprobs"], other["logprobs"], atol=1e-5)


def test_a_request_for_many_choices_does_not_hold_up_a_small_one(model: Any) -> None:
    """1024 choices of 80 tokens are 256 rounds of 4 slots; the small one is answered within the first ones."""

    async def run(post: Post, engine: EmbeddedEngine) -> tuple[int, int]:
        great = {"prompt": "x", "n": 1024, "max_tokens": 80, "ignore_eos": True, "logprobs": 0}
        task = asyncio.create_task(post("/v1/completions", great))
        await until(lambda: engine.stats().decode_steps >= 100)
        assert engine.stats().waiting > 900
        begin = engine.stats().decode_steps
        status, _ = await post("/v1/completions", {"prompt": "y", "max_tokens": 10, "ignore_eos": True})
        steps = engine.stats().decode_steps - begin
        task.cancel()
        return status, steps

    status, steps = asyncio.run(with_server(model, run, max_concurrent_sequences=4))
    assert status == 200
    assert steps <= 60


def test_what_the_model_cannot_compute_fails_its_request_only(model: Any) -> None:
    """A token whose embedding is not a number."""
    import torch

    cursed = copy.deepcopy(model)
    cursed.config.tie_word_embeddings = False
    cursed.lm_head.weight = torch.nn.Parameter(cursed.lm_head.weight.detach().clone())
    with torch.no_grad():
        cursed.get_input_embeddings().weight[200] = torch.nan

    async def run(post: Post, engine: EmbeddedEngine) -> None:
        good = {"prompt_ids": [1, 2], "seed": 1, "sampling": {"max_new_tokens": 3, "temperature": 0}}
        before = await post("/generate", good)
        for stream in (False, True):
            status, body = await post("/generate", {"prompt_ids": [1, 200], "stream": stream})
            assert status == 503
            assert "the logits after its token 2 are not finite" in body["error"]["message"]
        assert await post("/generate", good) == before
        assert before[0] == 200

    asyncio.run(with_server(cursed, run))
