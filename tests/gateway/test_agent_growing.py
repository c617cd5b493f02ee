"""Streams of all APIs by their parts: put together they are the answer that is not streamed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from chat_styles import CHATML, byte_tokenizer, metaspace_tokenizer
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from parted_engine import Parted, Parts
from rollout_helpers import policy

from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import FinishReason, SamplingParams
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_apis import APIS, AgentApi
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.growing import Live
from headrace.gateway.agents.reader import Reader
from headrace.gateway.agents.tool_calls import PARSERS

CALL = '{"name": "look", "arguments": {"k": "é"}, "parameters": {}}'
FRAGMENTS = (
    *("a", " ", "\n", "é", "😀", "{", "<", "[", "STOP", "ST"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>"),
    *("<function=look>", "</function>", "<parameter=k>\nv\n</parameter>", "<function="),
    *(CALL, f"<tool_call>{CALL}</tool_call>", f"[{CALL}]", f"[TOOL_CALLS][{CALL}]", "<|python_tag|>" + CALL),
    "<tool_call><function=look><parameter=k>2</parameter></function></tool_call>",
    *("<function=look><parameter=n>2</parameter></function>", "</parameter>", '{"name": "look"}'),
)
THOUGHTFUL = CHATML + "{# reasoning_content #}"
BEGUN = THOUGHTFUL.replace("{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}")
CODECS = {template: TextCodec(byte_tokenizer(template)) for template in (CHATML, THOUGHTFUL, BEGUN)}
SPECIAL = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "<think>", "</think>", "STOP")
MARKED = {template: TextCodec(byte_tokenizer(template, more=SPECIAL)) for template in CODECS}
"""The same, whose marks are special tokens."""
END = CODECS[CHATML].encode_text("<|im_end|>").tolist()[0]
TILDE = CODECS[CHATML].encode_text("~").tolist()[0]
"""A token of the text that closes a turn as well."""
SCHEMA = {"type": "object", "properties": {"k": {"type": "string"}}}
TOOL = {"name": "look", "parameters": SCHEMA}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": TOOL}],
    },
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"name": "look", "input_schema": SCHEMA}],
    },
    "/v1/responses": {"input": "x", "tools": [{"type": "function", **TOOL}]},
}


def session_of(engine: Parted, template: str, tool_parser: Any, codecs: dict[str, TextCodec] = CODECS) -> AgentSession:
    sampling = SamplingParams(max_new_tokens=2000, stop_token_ids=(END, TILDE))
    its = policy(engine, text=codecs[template], sampling=sampling)
    return AgentSession(its, GatewayConfig(tool_parser=tool_parser), "http://127.0.0.1:1/v1", "key")


async def streamed(session: AgentSession, api: AgentApi, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """All that two readers got, one of whom began late; and the answer, whole."""
    asked, live = api.parse({**body, "stream": True}, session), Live()
    task = asyncio.create_task(session.answer(asked, 0, live))
    reader, late, heard, heard_late, looks = Reader(api, asked), Reader(api, asked), b"", b"", 0
    while not task.done():
        await asyncio.sleep(0)
        heard += reader.news(live)
        looks += 1
        if looks % 7 == 0:
            heard_late += late.news(live)
    answered = task.result()
    heard, heard_late = heard + reader.rest(answered), heard_late + late.rest(answered)
    assert put_together[api](events(heard)) == put_together[api](events(heard_late))
    return heard, api.whole(asked, answered)


def events(stream: bytes) -> list[dict[str, Any]]:
    lines = stream.decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def chat_of(told: list[dict[str, Any]]) -> dict[str, Any]:
    """As a client puts the chunks of a chat together."""
    choices: dict[int, dict[str, Any]] = {}
    for event in told:
        for each in event["choices"]:
            choice = choices.setdefault(each["index"], {"message": {}, "logprobs": None, "finish_reason": None})
            message, delta = choice["message"], each["delta"]
            assert choice["finish_reason"] is None, "nothing comes after the end"
            for name in ("role", "content", "reasoning_content"):
                if name in delta:
                    message[name] = message.get(name, "") + delta[name]
            for call in delta.get("tool_calls", ()):
                assert call.pop("index") == len(message.setdefault("tool_calls", []))
                message["tool_calls"].append(call)
            if each["logprobs"] is not None:
                choice["logprobs"] = choice["logprobs"] or {"content": []}
                choice["logprobs"]["content"] += each["logprobs"]["content"]
            choice["finish_reason"] = each["finish_reason"]
    for choice in choices.values():
        choice["message"]["content"] = choice["message"]["content"] or (
            None if "tool_calls" in choice["message"] else ""
        )
    whole = {"choices": [{"index": index, **choices[index]} for index in sorted(choices)], "usage": told[-1]["usage"]}
    return {**{name: told[0][name] for name in ("id", "created", "model")}, "object": "chat.completion", **whole}


def text_of(told: list[dict[str, Any]]) -> dict[str, Any]:
    choices: dict[int, dict[str, Any]] = {}
    for event in told:
        for each in event["choices"]:
            choice = choices.setdefault(each["index"], {**each, "text": "", "logprobs": None})
            choice["text"] += each["text"]
            choice["finish_reason"] = each["finish_reason"]
            if each["logprobs"] is not None:
                before = choice["logprobs"] or {"tokens": [], "token_logprobs": [], "text_offset": []}
                after = {name: [*before[name], *each["logprobs"][name]] for name in before if name != "top_logprobs"}
                choice["logprobs"] = {**after, "top_logprobs": None}
    return {**told[0], "choices": [choices[index] for index in sorted(choices)], "usage": told[-1]["usage"]}


def message_of(told: list[dict[str, Any]]) -> dict[str, Any]:
    assert told[0]["type"] == "message_start"
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]
    message = told[0]["message"]
    stopped = 0
    for event in told[1:-2]:
        assert event["index"] == stopped
        if event["type"] == "content_block_start":
            message["content"].append(event["content_block"])
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], event["delta"]
            if delta["type"] == "input_json_delta":
                block["input"] = json.loads(delta["partial_json"])
            else:
                name = {"text_delta": "text", "thinking_delta": "thinking"}[delta["type"]]
                block[name] += delta[name]
        else:
            stopped += 1
    assert stopped == len(message["content"])
    return {**message, **told[-2]["delta"], "usage": told[-2]["usage"]}


def response_of(told: list[dict[str, Any]]) -> dict[str, Any]:
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    assert [event["type"] for event in told[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    done = 0
    for event in told[2:-1]:
        assert event["output_index"] == done
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            items.append(event["item"])
        elif kind == "content_part.added":
            items[-1]["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part = items[-1]["content"][event["content_index"]]
            part["text"] += event["delta"]
            if kind == "output_text.delta":
                part["logprobs"] += event["logprobs"]
        elif kind == "function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            told_before = items[-1]["content"][0]
            assert all(told_before[name] == event[name] for name in ("text", "logprobs") if name in event)
        elif kind == "output_item.done":
            assert {**items[-1], "status": "completed"} == {**event["item"], "status": "completed"}
            items[-1] = event["item"]
            done += 1
    assert done == len(items)
    assert told[-1]["response"]["output"] == items
    return dict(told[-1]["response"])


put_together: dict[AgentApi, Callable[[list[dict[str, Any]]], dict[str, Any]]] = {
    APIS["/v1/chat/completions"]: chat_of,
    APIS["/v1/completions"]: text_of,
    APIS["/v1/messages"]: message_of,
    APIS["/v1/responses"]: response_of,
}


@st.composite
def answers(draw: st.DrawFn, codec: TextCodec = CODECS[CHATML]) -> Parts:
    """Any tokens, bytes of no character among them, in any parts, with any end."""
    said = draw(st.lists(st.sampled_from(FRAGMENTS) | st.text("<tool_call>{}\n /", max_size=4), max_size=8))
    tokens = codec.encode_text("".join(said)).tolist()
    for place in draw(st.lists(st.integers(0, len(tokens)), max_size=2)):
        tokens.insert(place, draw(st.integers(0, 255).filter(lambda token: token != TILDE)))
    finish = draw(st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]))
    tokens += [draw(st.sampled_from([END, TILDE]))] if finish is FinishReason.STOP else []
    edges = sorted({0, len(tokens), *draw(st.lists(st.integers(0, len(tokens)), max_size=30))})
    parts: Parts = [(tokens[a:b], None) for a, b in pairwise(edges)]
    if draw(st.booleans()) or not parts:
        return [*parts, ([], finish)]
    return [*parts[:-1], (parts[-1][0], finish)]


@examples(deadline=None, max_examples=200)
@given(
    route=st.sampled_from(sorted(BODIES)),
    tool_parser=st.sampled_from(["none", *PARSERS]),
    template=st.sampled_from(sorted(CODECS)),
    played=st.sampled_from([CODECS, MARKED]).flatmap(
        lambda codecs: st.tuples(st.just(codecs), st.lists(answers(codecs[CHATML]), min_size=1, max_size=2))
    ),
    stops=st.sampled_from([[], ["STOP"], ["a\n", "\n"], ["<tool_call>"], ["é", "TOP"]]),
    logprobs=st.booleans(),
)
def test_a_stream_put_together_is_the_whole_answer(
    route: str,
    tool_parser: str,
    template: str,
    played: tuple[dict[str, TextCodec], list[Parts]],
    stops: list[str],
    logprobs: bool,
) -> None:
    codecs, parts = played
    body = dict(BODIES[route])
    if route in ("/v1/chat/completions", "/v1/completions"):
        body |= {"n": len(parts), "stop": stops, "stream_options": {"include_usage": True}}
        body |= {"logprobs": logprobs if route == "/v1/chat/completions" else 0 if logprobs else None}
    elif route == "/v1/messages":
        body |= {"stop_sequences": stops}
    elif logprobs:
        body |= {"include": ["message.output_text.logprobs"]}

    async def play() -> None:
        session = session_of(Parted(*parts), template, tool_parser, codecs)
        told, whole = await streamed(session, APIS[route], body)
        again = session_of(Parted(*parts), template, tool_parser, codecs)
        asked = APIS[route].parse(body, again)
        assert APIS[route].whole(asked, await again.answer(asked, 0)) == whole
        assert put_together[APIS[route]](events(told)) == whole

    asyncio.run(play())


def told_of(said: str, tool_parser: str, template: str = CHATML) -> list[tuple[str, str]]:
    """What a chat is told of an answer that comes letter by letter: (kind, text) of each delta."""
    tokens = CODECS[CHATML].encode_text(said).tolist()
    parts: Parts = [*(([token], None) for token in tokens), ([END], FinishReason.STOP)]

    async def play() -> bytes:
        session = session_of(Parted(parts), template, tool_parser)
        return (await streamed(session, APIS["/v1/chat/completions"], BODY))[0]

    deltas = [each["delta"] for event in events(asyncio.run(play())) for each in event["choices"]]
    found = [(name, value) for delta in deltas for name, value in delta.items() if name != "role" and value]
    return [(name, value if isinstance(value, str) else value[0]["function"]["arguments"]) for name, value in found]


BODY = {**BODIES["/v1/chat/completions"], "stream_options": {"include_usage": True}}


def test_text_comes_as_soon_as_it_is_certain() -> None:
    call = f"<tool_call>{CALL}</tool_call>"
    assert told_of("a b", "hermes") == [("content", "a"), ("content", " b")], "white space waits for what follows"
    assert told_of("a b", "none") == [("content", "a"), ("content", " "), ("content", "b")]
    assert told_of("a<tx", "hermes")[:3] == [("content", "a"), ("content", "<tx")]
    assert told_of(f"a {call}", "hermes") == [("content", "a"), ("tool_calls", '{"k": "é"}')]
    assert told_of(f"a {call} b", "hermes") == [("content", "a"), ("content", "\nb"), ("tool_calls", '{"k": "é"}')]
    assert told_of("a <tool_call>{", "hermes") == [("content", "a"), ("content", " <tool_call>{")]
    assert told_of(' {"name": ', "llama3_json") == [("content", ' {"name": ')]
    assert told_of(" so", "llama3_json") == [("content", " s"), ("content", "o")]


def test_a_thought_comes_as_it_is_thought() -> None:
    assert told_of("<think>\nab\n</think>\n\nc", "none", THOUGHTFUL) == [
        *(("reasoning_content", letter) for letter in "ab"),
        ("content", "c"),
    ]
    assert told_of("a<b</think>c", "none", BEGUN) == [
        ("reasoning_content", "a"),
        ("reasoning_content", "<b"),
        ("content", "c"),
    ]


@pytest.mark.parametrize("name", ["qwen3_xml", "hermes"])
@pytest.mark.parametrize("route", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_calls_come_with_the_end(route: str, name: str) -> None:
    """What is behind one is said before it, in the stream as in the whole answer. The tools of the request say that
    `k` is a string."""
    call = {
        "qwen3_xml": "<function=look><parameter=k>2</parameter></function>",
        "hermes": '<tool_call>{"name": "look", "arguments": {"k": "2"}}</tool_call>',
    }[name]
    pieces = [CODECS[CHATML].encode_text(piece).tolist() for piece in ("I look. ", call, " and", " so\n")]
    parts: Parts = [*((piece, None) for piece in pieces), ([END], FinishReason.STOP)]
    body = {**BODIES[route], **({"stream_options": {"include_usage": True}} if "chat" in route else {})}

    async def play() -> tuple[bytes, dict[str, Any]]:
        return await streamed(session_of(Parted(parts), CHATML, name), APIS[route], body)

    told, whole = asyncio.run(play())
    assert put_together[APIS[route]](events(told)) == whole
    said = "I look.\nand so"
    if route == "/v1/chat/completions":
        message = whole["choices"][0]["message"]
        assert (message["content"], message["tool_calls"][0]["function"]["arguments"]) == (said, '{"k": "2"}')
    elif route == "/v1/messages":
        assert [block.get("text", block.get("input")) for block in whole["content"]] == [said, {"k": "2"}]
    else:
        message, called = whole["output"]
        assert (message["content"][0]["text"], called["arguments"]) == (said, '{"k": "2"}')


def logprobs_of(said: str, route: str, **more: Any) -> dict[str, Any]:
    """Of an answer that comes token by token, streamed and not."""
    tokens = CODECS[CHATML].encode_text(said).tolist()
    parts: Parts = [*(([token], None) for token in tokens), ([END], FinishReason.STOP)]
    body = {**BODIES[route], "stream_options": {"include_usage": True}, **more}

    async def play() -> tuple[bytes, dict[str, Any]]:
        return await streamed(session_of(Parted(parts), CHATML, "none"), APIS[route], body)

    told, whole = asyncio.run(play())
    assert put_together[APIS[route]](events(told)) == whole
    return dict(whole["choices"][0]["logprobs"])


def test_log_probs_of_tokens_that_are_parts_of_a_character() -> None:
    found = logprobs_of("é😀b", "/v1/completions", logprobs=0)
    assert found["tokens"] == ["", "é", "", "", "", "😀", "b", "<|im_end|>"]
    assert found["text_offset"] == [0, 0, 1, 1, 1, 1, 2, 3]
    found = logprobs_of("é😀b", "/v1/chat/completions", logprobs=True)
    data = [bytes(each["bytes"]) for each in found["content"]]
    assert data == [*(bytes([byte]) for byte in "é😀b".encode()), b"<|im_end|>"]


@pytest.mark.parametrize(
    ("route", "name", "cut", "ended"),
    [
        ("/v1/chat/completions", "finish_reason", "length", "tool_calls"),
        ("/v1/messages", "stop_reason", "max_tokens", "tool_use"),
        ("/v1/responses", "status", "incomplete", "completed"),
    ],
)
def test_an_answer_with_a_call_that_a_limit_cut_off_is_told_as_cut(route: str, name: str, cut: str, ended: str) -> None:
    """Streamed and not: there might have been another call behind that."""
    said = CODECS[CHATML].encode_text('<tool_call>{"name": "look", "arguments": {"k": "2"}}</tool_call>').tolist()
    ends: list[tuple[list[int], FinishReason]] = [([], FinishReason.LENGTH), ([END], FinishReason.STOP)]

    async def play(end: tuple[list[int], FinishReason]) -> Any:
        session = session_of(Parted([(said, None), end]), CHATML, "hermes")
        told, whole = await streamed(session, APIS[route], {**BODIES[route], **more})
        assert put_together[APIS[route]](events(told)) == whole
        answer = whole["choices"][0] if "chat" in route else whole
        assert "look" in json.dumps(answer)
        assert route != "/v1/responses" or (whole["incomplete_details"] is not None) == (not end[0])
        return answer[name]

    more = {"stream_options": {"include_usage": True}} if "chat" in route else {}
    assert [asyncio.run(play(end)) for end in ends] == [cut, ended]


def whole_of(said: str, tool_parser: str, template: str = CHATML, **more: Any) -> dict[str, Any]:
    """The choice of a chat whose marks are special tokens, streamed and not."""
    tokens = MARKED[template].encode_text(said).tolist()
    parts: Parts = [*(([token], None) for token in tokens), ([END], FinishReason.STOP)]

    async def play() -> tuple[bytes, dict[str, Any]]:
        session = session_of(Parted(parts), template, tool_parser, MARKED)
        return await streamed(session, APIS["/v1/chat/completions"], {**BODY, **more})

    told, whole = asyncio.run(play())
    assert chat_of(events(told)) == whole
    return dict(whole["choices"][0])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hermes", f"so <tool_call>{CALL}</tool_call>"),
        ("mistral", f"so [TOOL_CALLS][{CALL}]"),
        ("mistral", "so [TOOL_CALLS]look[ARGS]{}"),
        ("llama3_json", '<|python_tag|>{"name": "look", "parameters": {}}'),
        ("qwen3_xml", "so <tool_call><function=look><parameter=k>é</parameter></function></tool_call>"),
    ],
)
def test_marks_that_are_special_tokens_are_read(name: str, said: str) -> None:
    choice = whole_of(said, name)
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    assert choice["message"]["content"] == ("so" if "so" in said else None)


def test_special_tokens_around_what_is_said_behind_a_call_are_left_out() -> None:
    call = "<tool_call><function=look><parameter=k>é</parameter></function></tool_call>"
    message = whole_of(f"a {call} b <tool_call>c", "qwen3_xml")["message"]
    assert (message["content"], len(message["tool_calls"])) == ("a\nb c", 1)


def test_special_tokens_of_what_is_no_call_are_left_out_as_ever() -> None:
    for name, said, content in (
        ("hermes", "a <tool_call>{</tool_call> b", "a { b"),
        ("mistral", "[TOOL_CALLS]so", "so"),
        ("none", f"a <tool_call>{CALL}</tool_call>", f"a {CALL}"),
    ):
        assert whole_of(said, name)["message"] == {"role": "assistant", "content": content}
        assert MARKED[CHATML].decode(MARKED[CHATML].encode_text(said)) == content


def test_thoughts_and_stops_of_special_tokens() -> None:
    assert whole_of("<think>\nab\n</think>\n\nc", "none", THOUGHTFUL)["message"] == {
        "role": "assistant",
        "content": "c",
        "reasoning_content": "ab",
    }
    assert whole_of("aSTOPb", "none", stop=["STOP"])["message"]["content"] == "a"


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/messages"])
def test_an_answer_ends_at_a_stop_where_it_is_read_and_nowhere_else(route: str) -> None:
    """The tokenizer leaves out the space before the first word of the answer, which is none then."""
    tokenizer = metaspace_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}:")
    answer = [[int(tokenizer.convert_tokens_to_ids(word))] for word in ("▁a", "b", "▁a", "b")]
    parts: Parts = [*((token, None) for token in answer), ([], FinishReason.LENGTH)]
    stop: dict[str, Any] = {"stop": [" a"], "stream_options": {"include_usage": True}}
    body = {**BODIES[route], **({"stop_sequences": [" a"]} if route == "/v1/messages" else stop)}

    async def play() -> tuple[bytes, dict[str, Any]]:
        codecs = {CHATML: TextCodec(tokenizer)}
        return await streamed(session_of(Parted(parts), CHATML, "none", codecs), APIS[route], body)

    told, whole = asyncio.run(play())
    assert put_together[APIS[route]](events(told)) == whole
    if route == "/v1/messages":
        assert (whole["content"], whole["stop_reason"], whole["stop_sequence"]) == (
            [{"type": "text", "text": "ab"}],
            "stop_sequence",
            " a",
        )
    else:
        assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == ("ab", "stop")
    assert whole["usage"]["output_tokens" if route == "/v1/messages" else "completion_tokens"] == 3
