"""The API over a real socket: what is asked of the engine, and how its answer is worded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from http_scripted import ASSISTANT, EOS, USER, VOCAB, Reply, ScriptedEngine, byte_tokenizer, ids, logprob, text_of

from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError, FinishReason, RequestError
from headrace.experience.text.chat_template import ChatTemplate
from headrace.gateway import build_app, serve
from headrace.runtime.inline import SystemClock
from headrace.weights.version import Version

Post = Callable[..., Awaitable[tuple[int, Any]]]


async def serving(engine: ScriptedEngine, test: Callable[[Post], Awaitable[None]], **options: Any) -> None:
    """Run `test` with a `post(path, body)` that answers (status, JSON), or (status, list of events)."""
    settings: dict[str, Any] = {
        "model_name": "tiny",
        "clock": SystemClock(),
        "token": None,
        "max_context": 64,
        "vocab_size": VOCAB,
        "eos_token_ids": (EOS,),
        "seed": 5,
        **options,
    }
    tokenizer = settings.pop("tokenizer", None) or byte_tokenizer()
    server = await serve(build_app(EnginePool.of([engine], SystemClock()), tokenizer, **settings), "127.0.0.1", 0)

    async def post(path: str, body: Any = None, *, method: str = "POST", **more: Any) -> tuple[int, Any]:
        async with session.request(
            method, server.address + path, **({"json": body} if body is not None else {}), **more
        ) as r:
            if r.content_type == "text/event-stream":
                return r.status, events(await r.text())
            return r.status, json.loads(await r.read())

    try:
        async with aiohttp.ClientSession() as session:
            await asyncio.wait_for(test(post), 20)
    finally:
        await server.close()


def events(stream: str) -> list[Any]:
    """The JSON of each event; the stream must end with [DONE]."""
    lines = stream.split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def choices(stream: list[Any]) -> list[dict[str, Any]]:
    return [choice for event in stream for choice in event["choices"]]


def run(engine: ScriptedEngine, test: Callable[[Post], Awaitable[None]], **options: Any) -> None:
    asyncio.run(serving(engine, test, **options))


HELLO = Reply(ids("héllo", EOS))


def test_models_version_and_health() -> None:
    engine = ScriptedEngine([HELLO], version=Version(1, 7))

    async def test(post: Post) -> None:
        status, body = await post("/v1/models", method="GET")
        assert status == 200
        assert body["object"] == "list"
        (model,) = body["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 64)
        assert await post("/v1/models/tiny", method="GET") == (200, model)
        status, body = await post("/v1/models/org/other", method="GET")
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert await post("/version", method="GET") == (200, {"version": "v7~1", "branch": 1, "number": 7})
        assert await post("/health", method="GET") == (200, {"status": "ok"})

    run(engine, test)


def test_health_tells_of_a_dead_engine_and_not_why_to_those_without_a_token() -> None:
    engine = ScriptedEngine([HELLO], failure=RuntimeError("secret path"))

    async def test(post: Post) -> None:
        status, body = await post("/health", method="GET")
        assert status == 503
        assert body["error"]["message"] == "the engine died; start the server again"

    run(engine, test, token="t")


def test_completion_whole() -> None:
    engine = ScriptedEngine([HELLO])

    async def test(post: Post) -> None:
        status, body = await post("/v1/completions", {"model": "tiny", "prompt": "say", "user": "me", "logprobs": 0})
        assert status == 200
        assert (body["object"], body["model"]) == ("text_completion", "tiny")
        assert body["id"].startswith("cmpl-")
        assert isinstance(body["created"], int)
        assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
        (choice,) = body["choices"]
        assert (choice["index"], choice["text"], choice["finish_reason"]) == (0, "héllo", "stop")
        assert choice["logprobs"] == {
            "tokens": ["h", "", "é", "l", "l", "o", "<eos>"],
            "token_logprobs": [logprob(place) for place in range(7)],
            "top_logprobs": None,
            "text_offset": [0, 1, 1, 2, 3, 4, 5],
        }
        (request,) = engine.requests
        assert request.prompt.tolist() == ids("say")
        assert request.stream
        assert not request.soon, "nobody reads along"
        assert request.sampling.max_new_tokens == 16
        assert request.sampling.stop_token_ids == (EOS,)
        assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (1.0, 1.0, 0)
        assert request.client == ("127.0.0.1 me", "1"), "whose turn it is among clients, then among requests"

    run(engine, test)


def test_completion_streamed_adds_up_to_the_whole_one() -> None:
    engine = ScriptedEngine([HELLO])

    async def test(post: Post) -> None:
        body = {"prompt": "say", "stream": True, "stream_options": {"include_usage": True}, "logprobs": 0}
        status, stream = await post("/v1/completions", body)
        assert status == 200
        *chunks, last = stream
        assert last["choices"] == []
        assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
        assert {chunk["object"] for chunk in chunks} == {"text_completion"}
        assert len({chunk["id"] for chunk in stream}) == 1
        assert [choice["text"] for choice in choices(chunks)] == ["h", "é", "l", "l", "o", ""]
        assert [choice["finish_reason"] for choice in choices(chunks)] == [None] * 5 + ["stop"]
        listed = [token for choice in choices(chunks) for token in choice["logprobs"]["tokens"]]
        assert listed == ["h", "", "é", "l", "l", "o", "<eos>"]
        assert engine.requests[0].stream

    run(engine, test)


def test_chat_whole_and_streamed() -> None:
    engine = ScriptedEngine([HELLO])
    messages = [
        {"role": "system", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}], "tool_calls": None},
    ]

    async def test(post: Post) -> None:
        status, body = await post("/v1/chat/completions", {"messages": messages, "logprobs": True, "top_p": 0.5})
        assert status == 200
        assert (body["object"], body["usage"]["prompt_tokens"]) == ("chat.completion", 7)
        (choice,) = body["choices"]
        assert choice["message"] == {"role": "assistant", "content": "héllo"}
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"]["content"][2] == {
            "token": "é",
            "logprob": logprob(2),
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [],
        }
        (request,) = engine.requests
        assert request.prompt.tolist() == [USER, *ids("be"), USER, *ids("hi"), ASSISTANT]
        assert request.sampling.max_new_tokens == 64 - 7, "a chat may fill the context unless told otherwise"
        assert request.sampling.top_p == 0.5

        status, stream = await post("/v1/chat/completions", {"messages": messages, "stream": True})
        assert status == 200
        assert {chunk["object"] for chunk in stream} == {"chat.completion.chunk"}
        assert choices(stream)[0]["delta"] == {"role": "assistant", "content": ""}
        assert text_of(choices(stream)) == "héllo"
        assert choices(stream)[-1]["delta"] == {}
        assert choices(stream)[-1]["finish_reason"] == "stop"

    run(engine, test)


def test_prompts_of_every_kind_and_n() -> None:
    engine = ScriptedEngine([Reply(ids(letter, EOS)) for letter in "abcdef"])

    async def test(post: Post) -> None:
        for prompt, expected in (
            ("xy", [ids("xy")]),
            (["x", "yz"], [ids("x"), ids("yz")]),
            ([7, 8], [[7, 8]]),
            ([[7], [8, 9]], [[7], [8, 9]]),
        ):
            engine.requests.clear()
            status, body = await post("/v1/completions", {"prompt": prompt, "n": 2})
            assert status == 200
            assert [request.prompt.tolist() for request in engine.requests] == [p for p in expected for _ in range(2)]
            assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(expected)))
            assert [choice["text"] for choice in body["choices"]] == list("abcdef")[: 2 * len(expected)]
            assert body["usage"]["prompt_tokens"] == sum(map(len, expected))
            assert body["usage"]["completion_tokens"] == 2 * 2 * len(expected)
        engine.requests.clear()
        _, stream = await post("/v1/completions", {"prompt": ["x", "y"], "n": 2, "stream": True})
        assert [text_of(choices(stream), index) for index in range(4)] == list("abcd")
        ended = [choice["index"] for choice in choices(stream) if choice["finish_reason"]]
        assert sorted(ended) == [0, 1, 2, 3]

    run(engine, test)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_end_the_request_and_abort_what_is_left(stream: bool) -> None:
    engine = ScriptedEngine([Reply(ids("one STOP two" * 3), FinishReason.LENGTH)])

    async def test(post: Post) -> None:
        status, body = await post("/v1/completions", {"prompt": "x", "stop": "STOP", "stream": stream})
        assert status == 200
        found = choices(body) if stream else body["choices"]
        assert text_of(found) == "one "
        assert found[-1]["finish_reason"] == "stop"
        assert stream or body["usage"]["completion_tokens"] == len("one STOP")
        (request,) = engine.requests
        assert engine.aborted == engine.closed == [request.request_id]

    run(engine, test)


def test_sampling_reaches_the_engine() -> None:
    engine = ScriptedEngine([HELLO])

    async def test(post: Post) -> None:
        body = {"prompt": "x", "temperature": 0, "top_p": 0.9, "top_k": 7, "stop_token_ids": [1, 2], "max_tokens": 5}
        assert (await post("/v1/completions", body))[0] == 200
        sampling = engine.requests[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.9, 7)
        assert (sampling.max_new_tokens, sampling.stop_token_ids) == (5, (EOS, 1, 2))
        more = {"prompt": "x", "ignore_eos": True, "top_k": -1, "max_tokens": 5, "max_completion_tokens": 6}
        assert (await post("/v1/completions", more))[0] == 200
        sampling = engine.requests[1].sampling
        assert (sampling.stop_token_ids, sampling.top_k, sampling.max_new_tokens) == ((), 0, 6)

    run(engine, test)


def test_noise_is_fixed_by_the_seed_and_the_choice_and_differs_without() -> None:
    engine = ScriptedEngine([HELLO])

    async def test(post: Post) -> None:
        for body in (
            {"prompt": "x", "seed": 3, "n": 2},
            {"prompt": ["other", "x"], "seed": 3},
            {"prompt": "x", "seed": 4},
            {"prompt": "x", "n": 2},
            {"prompt": "x"},
        ):
            assert (await post("/v1/completions", body))[0] == 200

    run(engine, test)
    first, second, other, same, *rest = [request.noise_key for request in engine.requests]
    assert first == other == same
    assert len({first, second, *rest}) == 2 + len(rest)
    assert all(0 <= key < 2**64 for key in (first, second, *rest))
    again = ScriptedEngine([HELLO])
    run(again, lambda post: _ignore(post("/v1/completions", {"prompt": "x", "n": 2})))
    reseeded = ScriptedEngine([HELLO])
    run(reseeded, lambda post: _ignore(post("/v1/completions", {"prompt": "x", "n": 2})), seed=6)
    assert [request.noise_key for request in again.requests] != [request.noise_key for request in reseeded.requests]


async def _ignore(answer: Awaitable[Any]) -> None:
    assert (await answer)[0] == 200


def test_token_ids_in_and_out_with_log_probs_and_versions() -> None:
    versions = [(0, 3), (0, 3), (0, 4), (1, 4), (1, 4)]
    engine = ScriptedEngine([Reply([5, 6, 7, 8, EOS], versions=versions, chunk=2)])
    spans = [[0, 3, 0, 2], [0, 4, 2, 3], [1, 4, 3, 5]]

    async def test(post: Post) -> None:
        body = {"prompt_ids": [1, 2], "seed": 9, "sampling": {"max_new_tokens": 9, "temperature": 0.5, "top_k": 3}}
        assert await post("/generate", body) == (
            200,
            {
                "token_ids": [5, 6, 7, 8, EOS],
                "logprobs": [logprob(place) for place in range(5)],
                "versions": spans,
                "finish_reason": "stop",
            },
        )
        request = engine.requests[0]
        assert request.prompt.tolist() == [1, 2]
        assert (request.sampling.max_new_tokens, request.sampling.temperature, request.sampling.top_k) == (9, 0.5, 3)
        assert request.sampling.stop_token_ids == (EOS,)
        status, stream = await post("/generate", {**body, "stream": True})
        assert status == 200
        assert [event["token_ids"] for event in stream] == [[5, 6], [7, 8], [EOS]]
        assert [event["versions"] for event in stream] == [[[0, 3, 0, 2]], [[0, 4, 2, 3], [1, 4, 3, 4]], [[1, 4, 4, 5]]]
        assert [event["finish_reason"] for event in stream] == [None, None, "stop"]
        assert engine.requests[1].noise_key == request.noise_key
        assert (await post("/generate", {"prompt_ids": [1]}))[0] == 200
        assert engine.requests[2].sampling.max_new_tokens == 63, "the rest of the context"

    run(engine, test)


@pytest.mark.parametrize("stream", [False, True])
def test_interruption_is_hidden_and_the_rest_asked_for_with_what_was_sampled(stream: bool) -> None:
    engine = ScriptedEngine(
        [
            Reply(ids("ab"), FinishReason.INTERRUPTED),
            Reply([], FinishReason.INTERRUPTED),
            Reply(ids("c"), FinishReason.LENGTH),
        ]
    )

    async def test(post: Post) -> None:
        _, body = await post("/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": stream, "seed": 1})
        found = choices(body) if stream else body["choices"]
        assert (text_of(found), found[-1]["finish_reason"]) == ("abc", "length")
        assert [request.prompt.tolist() for request in engine.requests] == [ids("x"), ids("xab"), ids("xab")]
        assert [request.sampling.max_new_tokens for request in engine.requests] == [3, 1, 1]
        assert len({request.noise_key for request in engine.requests}) == 1
        assert len({request.request_id for request in engine.requests}) == 3

    run(engine, test)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "the body must be a JSON object, not a list"),
        ({}, "prompt must be text, token ids"),
        ({"prompt": []}, "prompt must be text, token ids"),
        ({"prompt": ""}, "encoded to no tokens"),
        ({"prompt": {"a": 1}}, "prompt must be text, token ids"),
        ({"prompt": [1, "a"]}, "prompt is 'a'; it must be a list of whole numbers"),
        ({"prompt": [[1], []]}, "the prompt has no tokens"),
        ({"prompt": [True]}, "prompt is True; it must be a list of whole numbers"),
        ({"prompt": [-1]}, "prompt is -1; it must be token ids between 0"),
        ({"prompt": [VOCAB]}, f"token id {VOCAB} is outside the vocabulary of {VOCAB}"),
        ({"prompt": "x" * 64}, "the prompt has 64 tokens, and the context of 64 must also hold a response"),
        ({"prompt": "x" * 5000}, "5000 characters, far more than the context of 64"),
        ({"prompt": "x", "max_tokens": 64}, "64 new tokens after 1 of the prompt are more than the context of 64"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0; it must be between 1"),
        ({"prompt": "x", "max_tokens": "5"}, "max_tokens is '5'; it must be a whole number"),
        ({"prompt": "x", "max_tokens": 5.0}, "max_tokens is 5.0; it must be a whole number"),
        ({"prompt": "x", "temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"prompt": "x", "temperature": -1}, "temperature is -1; it must be between 0"),
        ({"prompt": "x", "temperature": True}, "temperature is True; it must be a number"),
        ({"prompt": "x", "top_p": 0}, "top_p is 0; it must be above 0"),
        ({"prompt": "x", "top_p": 1.5}, "top_p is 1.5"),
        ({"prompt": "x", "stream": 1}, "stream is 1; it must be true or false"),
        ({"prompt": "x", "n": 0}, "n is 0"),
        ({"prompt": ["x"] * 3, "n": 1000}, "3 prompts x n 1000 are more than 1024 choices"),
        ({"prompt": "x", "seed": 2**64}, "seed is 18446744073709551616"),
        ({"prompt": "x", "stop": ["a", 1]}, "stop must be text, or a list of texts"),
        ({"prompt": "x", "stop": [""]}, "stop takes up to 16 texts of 1 to 256 characters"),
        ({"prompt": "x", "stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"prompt": "x", "logprobs": 2}, "logprobs above 0 are not supported"),
        ({"prompt": "x", "echo": True}, "echo is True, which is not supported"),
        ({"prompt": "x", "presence_penalty": 0.5}, "presence_penalty is 0.5, which is not supported"),
        ({"prompt": "x", "temprature": 1}, "unknown field 'temprature'; known ones are model, prompt"),
        ({"prompt": "\ud800"}, ""),
    ],
)
def test_bad_request_is_a_400_that_names_the_field(body: Any, said: str) -> None:
    engine = ScriptedEngine([HELLO])

    async def test(post: Post) -> None:
        for stream in (False, True):
            asked = {**body, "stream": stream} if isinstance(body, dict) and "stream" not in body else body
            status, answer = await post("/v1/completions", asked)
            assert status == 400
            assert set(answer["error"]) == {"message", "type", "param", "code"}
            assert answer["error"]["type"] == "invalid_request_error"
            assert said in answer["error"]["message"]

    run(engine, test)
    assert engine.requests == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "messages must be a list"),
        ({"messages": []}, "messages must be a list"),
        ({"messages": ["hi"]}, "message 1 is 'hi'; give {'role': text, 'content': text}"),
        ({"messages": [{"role": "user"}]}, "message 1 (of user) has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "has a part of type 'image_url', and"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "has the part {'type': 'text'}, and"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "has the tool call 1; give"),
        ({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": 3}, "must be a JSON object"),
        ({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"tools": []}}, "tools is given by"),
        ({"messages": [{"role": r, "content": "a"} for r in ("user", "system")]}, "system must come first"),
        ({"messages": [{"role": "u" * 10**6, "content": "a"}]}, "1000001 characters, far more than the context"),
        ({"messages": [{"role": "user", "content": "a", "name": "n" * 9999}]}, "10004 characters, far more"),
        ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}, "top_logprobs above 0"),
        ({"messages": [{"role": "user", "content": "a"}], "logprobs": 1}, "logprobs is 1; it must be true or false"),
        ({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, "tools is a list"),
    ],
)
def test_bad_chat_is_a_400_that_names_the_field(body: Any, said: str) -> None:
    async def test(post: Post) -> None:
        status, answer = await post("/v1/chat/completions", body)
        assert status == 400
        assert said in answer["error"]["message"]

    run(ScriptedEngine([HELLO]), test)


def test_a_chat_is_rendered_as_the_server_and_the_request_say() -> None:
    tokenizer = byte_tokenizer(
        "{{ mood }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(tokenizer, {"mood": "calm"}, "Be brief.")
    engine = ScriptedEngine([HELLO])
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "ok"}]

    async def test(post: Post) -> None:
        for more in ({}, {"chat_template_kwargs": {"mood": "glad"}}):
            status, _ = await post("/v1/chat/completions", {"messages": messages, **more})
            assert status == 200

    run(engine, test, tokenizer=tokenizer, template=template, max_context=256)
    for mood, request in zip(("calm", "glad"), engine.requests, strict=True):
        assert tokenizer.decode(request.prompt) == mood + '[system]Be brief.[assistant]f{"a": 1}[tool]ok'


def test_a_large_request_is_read_as_a_small_one_is() -> None:
    """On a thread, since the engine must go on meanwhile."""

    async def test(post: Post) -> None:
        small, large = [
            await post("/v1/completions", {"prompt": "hi", "metadata": {"note": "x" * size}, "seed": 1})
            for size in (1, 100_000)
        ]
        assert small[0] == large[0] == 200
        assert small[1]["choices"] == large[1]["choices"]
        status, answer = await post("/v1/completions", {"prompt": "x" * 100_000})
        assert status == 400
        assert "100000 characters, far more than the context" in answer["error"]["message"]

    run(ScriptedEngine([HELLO]), test)


def test_chat_without_a_template_says_what_to_do() -> None:
    async def test(post: Post) -> None:
        status, answer = await post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        assert status == 400
        assert "no chat template" in answer["error"]["message"]

    run(ScriptedEngine([HELLO]), test, tokenizer=byte_tokenizer(chat_template=None))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "the prompt has no tokens"),
        ({"prompt_ids": "x"}, "prompt_ids is 'x'; it must be a list of whole numbers"),
        ({"prompt_ids": [VOCAB]}, f"prompt_ids is {VOCAB}; it must be token ids between 0 and {VOCAB - 1}"),
        ({"prompt_ids": [1] * 64}, "the prompt has 64 tokens"),
        ({"prompt_ids": [1], "sampling": 3}, "sampling must be a JSON object, not 3"),
        (
            {"prompt_ids": [1], "sampling": {"max_tokens": 3}},
            "unknown field 'max_tokens'; known ones are max_new_tokens",
        ),
        ({"prompt_ids": [1], "sampling": {"max_new_tokens": 64}}, "more than the context of 64"),
        ({"prompt_ids": [1], "temperature": 1}, "unknown field 'temperature'"),
    ],
)
def test_bad_token_request_is_a_400_that_names_the_field(body: Any, said: str) -> None:
    async def test(post: Post) -> None:
        status, answer = await post("/generate", body)
        assert status == 400
        assert said in answer["error"]["message"]

    run(ScriptedEngine([HELLO]), test)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (RequestError("prompt too long for a slot"), 400, "prompt too long for a slot"),
        (EngineError("the engine died"), 503, "the engine died"),
        (KeyError("secret"), 500, "internal error"),
    ],
)
def test_engine_faults_before_the_first_token_and_in_the_middle(error: Exception, status: int, said: str) -> None:
    at_once, later = Reply(ids("ab"), fails_after=0, error=error), Reply(ids("abc"), fails_after=2, error=error)

    async def test(post: Post) -> None:
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/generate", {"prompt_ids": [1]})):
            for stream in (False, True):
                engine.replies[:] = [at_once]
                got, answer = await post(path, {**body, "stream": stream})
                assert (got, said in answer["error"]["message"]) == (status, True)
                assert "secret" not in json.dumps(answer)
            engine.replies[:] = [*[later] * (len(engine.requests) + 1), at_once]  # and to whoever asks again
            got, stream_events = await post(path, {**body, "stream": True})
            assert got == 200
            assert said in stream_events[-1]["error"]["message"]

    engine = ScriptedEngine([at_once])
    run(engine, test)


def test_one_failing_choice_ends_the_others() -> None:
    broken, again = (Reply(ids("ab"), fails_after=count, error=EngineError("the engine died")) for count in (1, 0))
    engine = ScriptedEngine([Reply(ids("ab"), hangs_after=1), Reply(ids("ab"), hangs_after=0), broken, again])

    async def test(post: Post) -> None:
        status, answer = await post("/v1/completions", {"prompt": "x", "n": 3, "stop": "zz"})
        assert (status, answer["error"]["code"]) == (503, "engine_error")
        assert sorted(engine.closed) == sorted(request.request_id for request in engine.requests)

    run(engine, test)


def test_aborted_request_says_so() -> None:
    async def test(post: Post) -> None:
        _, body = await post("/v1/completions", {"prompt": "x"})
        assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("ab", "abort")

    run(ScriptedEngine([Reply(ids("ab"), FinishReason.ABORT)]), test)
