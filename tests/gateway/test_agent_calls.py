"""Calls in what a policy writes: which text is one, what its arguments are, and what is said around it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agent_listener import CALL, CHAT, TOOL, chosen, post, run_on
from hypothesis import given
from hypothesis import strategies as st
from rollout_helpers import ScriptedEngine, says

from headrace.config.gateway import GatewayConfig
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.parsed_text import ParsedText, ToolCall
from headrace.gateway.agents.tool_calls import PARSERS, parse_tool_calls

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "n": {"type": "integer"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "line": {"type": ["string", "integer"]},
        "mode": {"$ref": "#/$defs/Mode"},
        "wide": {"allOf": [{"$ref": "#/$defs/Wide"}]},
        "kind": {"enum": ["1", "2"]},
        "some": {"description": "anything"},
        "lost": {"$ref": "#/$defs/Nowhere"},
        "odd": {"type": [["string"]], "anyOf": "string", "enum": 3},
    },
    "$defs": {
        "Mode": {"enum": ["on", "1"], "type": "string"},
        "Wide": {"oneOf": [{"$ref": "#/$defs/Wide"}, {"const": "x"}, {"type": "array"}]},
    },
}
WRITE = {"type": "function", "function": {"name": "write", "parameters": SCHEMA}}
PLAIN = {"name": "plain", "parameters": None}
TOOLS = [PLAIN, WRITE]
LOOK = {"name": "look", "input_schema": {"type": "object", "properties": {}}}


def read(name: str, text: str) -> ParsedText:
    return parse_tool_calls(text, PARSERS[name], TOOLS)


def written(value: str, key: str = "c", name: str = "w") -> str:
    """A call as Qwen3-Coder's template writes it."""
    return f"<tool_call>\n<function={name}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=query>\n<parameter=key>\nab\n</function>\n</tool_call>",
        "<function=w>garbage no params</function>",
        "<function=w><parameter=a>1<parameter=b>2</parameter></function>",
        "<function=w><parameter=a>1</parameter> and <parameter=b>2</parameter></function>",
        "<function=w><parameter=a>1</parameter>",
        "<function=w><parameter=a>1</parameter></function",
        "<function=w>",
        "<function=>\n</function>",
        "<function=w><parameter>1</parameter></function>",
        # Whose value may have been cut at a mark in it.
        written('print("</parameter></function>")'),
        written("<function=x>\n<parameter=k>\nv\n</parameter>\n</function>"),
        " I write <function=w>: " + written("1"),
    ],
)
def test_what_is_no_call_of_qwen3_coder_is_text(text: str) -> None:
    assert read("qwen3_xml", text) == ParsedText(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (
            '<function=w><parameter=c>def f(): return "</function>"</parameter></function>',
            'def f(): return "</function>"',
        ),
        ("<function=w><parameter=c>\nx </parameter> y\n</parameter></function>", "x </parameter> y"),
        (written("a\n</function>\n</tool_call>\nb"), "a\n</function>\n</tool_call>\nb"),
        (written("use <function=x>, <tool_call> and <parameter="), "use <function=x>, <tool_call> and <parameter="),
        (written("\n  a\n"), "\n  a\n"),
        (written(""), ""),
    ],
)
def test_a_value_is_whole_whatever_is_in_it(text: str, value: str) -> None:
    assert read("qwen3_xml", text) == ParsedText("", (ToolCall("w", {"c": value}),))


MARKED = st.lists(
    st.sampled_from(["a", " ", "\n", "<", ">", "</function>", "</parameter>", "</tool_call>", "<tool_call>", "{}"])
)


@given(MARKED.map("".join))
def test_a_value_is_whole_or_there_is_no_call(value: str) -> None:
    text = written(value, "path", "write")
    assert read("qwen3_xml", text) in (ParsedText("", (ToolCall("write", {"path": value}),)), ParsedText(text))


@pytest.mark.parametrize(
    "rest",
    [
        "<tool_call>\n<function=b>\n<parameter=x>\n1",
        "<tool_call>\n<function=b>\n<parameter=x>\n1\n</parameter>",
        "<function=b>no</function>\n<function=c></function>",
        "so",
    ],
)
def test_what_is_behind_a_call_of_qwen3_coder_and_does_not_parse_is_text(rest: str) -> None:
    first = ToolCall("a", {"x": 1})
    assert read("qwen3_xml", f"{written('1', 'x', 'a')}\n{rest}") == ParsedText(rest, (first,))
    assert read("qwen3_xml", f"I look.\n{written('1', 'x', 'a')}{rest}\n") == ParsedText(f"I look.\n{rest}", (first,))


@pytest.mark.parametrize(
    ("key", "value", "argument"),
    [
        ("path", "42", "42"),
        ("path", '{"a": 1}', '{"a": 1}'),
        ("path", '"quoted"', '"quoted"'),
        ("path", "null", "null"),
        ("n", "42", 42),
        ("n", "many", "many"),
        ("note", "null", None),
        ("note", "true", "true"),
        ("note", '"quoted"', '"quoted"'),
        ("line", "7", 7),
        ("line", "007", "007"),
        ("line", "7.5", "7.5"),
        ("line", "true", "true"),
        ("mode", "1", "1"),
        ("wide", "3", "3"),
        ("wide", "[3]", [3]),
        ("kind", "1", "1"),
        ("some", "1", 1),
        ("lost", "1", 1),
        ("odd", "1", 1),
        ("more", '{"a": 1}', {"a": 1}),
        ("more", '"quoted"', "quoted"),
        ("more", "words", "words"),
    ],
)
def test_a_value_has_the_type_that_its_tool_declares(key: str, value: str, argument: Any) -> None:
    (call,) = read("qwen3_xml", written(value, key, "write")).calls
    assert call == ToolCall("write", {key: argument})
    assert type(call.arguments[key]) is type(argument)


@pytest.mark.parametrize("name", ["plain", "unknown"])
def test_of_a_tool_that_declares_nothing_what_is_json_is_json(name: str) -> None:
    assert read("qwen3_xml", written("42", "path", name)).calls == (ToolCall(name, {"path": 42}),)


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Bob", "age": 3}',
        '{"name": "Bob"}',
        '{"name": "write", "age": 3}',
        '{"name": "write", "parameters": null}',
        '{"name": "write", "parameters": "{}"}',
        '{"name": "write", "arguments": []}',
        '{"name": ["write"]}',
        '{"parameters": {}}',
        '{"name": "write", "parameters": {}} so',
        "{}",
    ],
)
def test_an_object_with_a_name_is_no_call_of_llama_by_that_alone(text: str) -> None:
    assert read("llama3_json", text) == ParsedText(text)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('{"name": "Bob", "parameters": {"age": 3}}', ToolCall("Bob", {"age": 3})),
        ('{"type": "function", "name": "write", "parameters": {}}', ToolCall("write", {})),
        ('{"name": "write", "arguments": {"n": 1}}', ToolCall("write", {"n": 1})),
        ('{"name": "write"}', ToolCall("write", {})),
        ('<|python_tag|>{"name": "plain"}', ToolCall("plain", {})),
    ],
)
def test_calls_of_llama(text: str, call: ToolCall) -> None:
    assert read("llama3_json", text) == ParsedText("", (call,))


A, B = '<tool_call>{"name": "a"}</tool_call>', '<tool_call>\n{"name": "b"}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "said", "called"),
    [
        (f"{A} The answer is 4.", "The answer is 4.", "a"),
        (f"One {A} two\n{B}\n\nthree\n", "One\ntwo\nthree", "ab"),
        (f" One\n{A}\n{B}", " One", "ab"),
        (f"\n{A}\n{B}\n", "", "ab"),
        (f"{A}so {B[: -len('</tool_call>')]}", "so", "ab"),
        ('<tool_call>{"name": "a", "arguments": {"k": "</tool_call>"}}</tool_call> so', "so", "a"),
    ],
)
def test_what_is_said_around_calls_of_hermes_stays(text: str, said: str, called: str) -> None:
    parsed = read("hermes", text)
    assert (parsed.text, "".join(call.name for call in parsed.calls)) == (said, called)


@pytest.mark.parametrize(
    "text", [f"{A} and <tool_call>{{", f"{A}<tool_call>", '<tool_call>{"name": "a"} so</tool_call>']
)
def test_one_of_hermes_that_does_not_parse_makes_text_of_all(text: str) -> None:
    assert read("hermes", text) == ParsedText(text)


@pytest.mark.parametrize("text", ['[TOOL_CALLS][{"name": "a"}] so', '[TOOL_CALLS]a[ARGS]{"k": 1} so'])
def test_what_is_behind_calls_of_mistral_makes_text_of_all(text: str) -> None:
    assert read("mistral", text) == ParsedText(text)


@pytest.mark.parametrize("route", ["chat/completions", "messages"])
def test_an_answer_with_text_behind_its_call_is_gone_on_from(route: str) -> None:
    """The agent sends it back as it got it: one history."""
    body: dict[str, Any] = {"chat/completions": CHAT | {"tools": [TOOL]}, "messages": CHAT | {"tools": [LOOK]}}[route]
    body = {**body, "max_tokens": 200}

    async def test(session: AgentSession, engine: ScriptedEngine) -> list[str]:
        _, answer = await post(session, body, route)
        said = answer["choices"][0]["message"] if route == "chat/completions" else _turn(answer)
        if route == "chat/completions":
            assert said["content"] == "I look.\nWait."
            result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "v"}
        else:
            assert [block["type"] for block in said["content"]] == ["text", "tool_use"]
            block = {"type": "tool_result", "tool_use_id": said["content"][1]["id"], "content": "v"}
            result = {"role": "user", "content": [block]}
        status, _ = await post(session, {**body, "messages": [*body["messages"], said, result]}, route)
        assert status == 200
        (only,) = session.trajectories()
        return chosen(only)

    engine = ScriptedEngine(says(f"I look. {CALL} Wait."), says("v"))
    config = GatewayConfig(tool_parser="hermes")
    assert run_on(engine, test, config, max_context=400) == [f"I look. {CALL} Wait.<eos>", "v<eos>"]


@pytest.mark.parametrize(
    ("sent", "histories"),
    [
        ('{"x": 1, "y": [1000, {"z": 0}], "on": true, "id": 9007199254740992, "far": 100000000000000000000}', 1),
        ('{"x": 1.0, "y": [1e3, {"z": -0.0}], "on": true, "id": 9007199254740993, "far": 1e20}', 1),
        ('{"x": 2, "y": [1000, {"z": 0}], "on": true, "id": 9007199254740992, "far": 1e20}', 2),
        ('{"x": 1, "y": [1000, {"z": 0}], "on": 1, "id": 9007199254740992, "far": 1e20}', 2),
        ('{"x": 1, "y": [1000, {"z": 0}], "on": true, "id": 9007199254740994, "far": 1e20}', 2),
    ],
)
@pytest.mark.parametrize("route", ["chat/completions", "messages", "responses"])
def test_arguments_whose_numbers_come_back_as_javascript_writes_them_are_the_same(
    route: str, sent: str, histories: int
) -> None:
    arguments = '{"x": 1.0, "y": [1e3, {"z": -0.0}], "on": true, "id": 9007199254740993, "far": 1e20}'
    said = CALL.replace('{"key": "k"}', arguments)
    user = {"role": "user", "content": "hi"}

    async def test(session: AgentSession, engine: ScriptedEngine) -> list[list[str]]:
        match route:
            case "messages":
                body: dict[str, Any] = {"model": "policy", "max_tokens": 200, "messages": [user], "tools": [LOOK]}
                _, answer = await post(session, body, route)
                (block,) = answer["content"]
                result = {"type": "tool_result", "tool_use_id": block["id"], "content": "v"}
                turn = {"role": "assistant", "content": [{**block, "input": json.loads(sent)}]}
                body["messages"] += [turn, {"role": "user", "content": [result]}]
            case "responses":
                tool = {"type": "function", "name": "look", "parameters": {"type": "object"}}
                body = {"model": "policy", "input": [user], "tools": [tool]}
                _, answer = await post(session, body, route)
                (call,) = answer["output"]
                result = {"type": "function_call_output", "call_id": call["call_id"], "output": "v"}
                body["input"] += [{**call, "arguments": sent}, result]
            case _:
                body = {"model": "policy", "messages": [user], "tools": [TOOL]}
                _, answer = await post(session, body, route)
                turn = answer["choices"][0]["message"]
                turn["tool_calls"][0]["function"]["arguments"] = sent
                result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "v"}
                body["messages"] += [turn, result]
        assert (await post(session, body, route))[0] == 200
        return [chosen(each) for each in session.trajectories()]

    engine = ScriptedEngine(says(said), says("v"))
    found = run_on(engine, test, GatewayConfig(tool_parser="hermes"), max_context=400)
    assert found == ([[f"{said}<eos>", "v<eos>"]] if histories == 1 else [[f"{said}<eos>"], ["v<eos>"]])


def _turn(answer: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": answer["content"]}
