"""What is read in an agent's policy: calls of tools, thoughts, and whether a template only adds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from chat_styles import CHATML, LLAMA3, MISTRAL, THINKING, byte_tokenizer
from qwen3_chats import QWEN3
from rollout_helpers import ScriptedEngine, char_tokenizer, chunk, ids, policy, says

from headrace.config import TrainConfig
from headrace.config.gateway import GatewayConfig
from headrace.controller.planning.prompt_notes import template_notes
from headrace.engines.protocol import SamplingParams
from headrace.experience.text.append_only import moving, rewriting
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_requests import parse_agent_chat
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import whole_chat
from headrace.gateway.agents.model_renderer import _call_of
from headrace.gateway.agents.parsed_text import ParsedText, ToolCall
from headrace.gateway.agents.reasoning import begins_thought, split_reasoning
from headrace.gateway.agents.tool_calls import PARSERS, parse_tool_calls, parser_of
from headrace.gateway.agents.turns import Turns

LOOK = ToolCall("look", {"key": "k", "n": 2})


def test_the_config_names_the_parsers_that_there_are() -> None:
    named = get_args(GatewayConfig.model_fields["tool_parser"].annotation)
    assert set(named) == {"auto", "none", *PARSERS}


@pytest.mark.parametrize(
    ("name", "text", "parsed"),
    [
        (
            "hermes",
            'I look.\n<tool_call>\n{"name": "look", "arguments": {"key": "k", "n": 2}}\n</tool_call>'
            '<tool_call>{"name": "stop"}</tool_call>',
            ParsedText("I look.", (LOOK, ToolCall("stop", {}))),
        ),
        (
            "qwen3_xml",
            "I look.\n<tool_call>\n<function=look>\n<parameter=key>\nk\n</parameter>\n<parameter=n>\n2\n</parameter>\n"
            "</function>\n</tool_call>",
            ParsedText("I look.", (LOOK,)),
        ),
        (
            "mistral",
            '[TOOL_CALLS] [{"name": "look", "arguments": {"key": "k", "n": 2}}]',
            ParsedText("", (LOOK,)),
        ),
        (
            "mistral",
            'I look.[TOOL_CALLS]look[ARGS]{"key": "k", "n": 2}[TOOL_CALLS]stop[CALL_ID]VvvODy9mT[ARGS]{}',
            ParsedText("I look.", (LOOK, ToolCall("stop", {}, "VvvODy9mT"))),
        ),
        (
            "llama3_json",
            '<|python_tag|>{"name": "look", "parameters": {"key": "k", "n": 2}}',
            ParsedText("", (LOOK,)),
        ),
    ],
)
def test_parsers_read_what_their_models_write(name: str, text: str, parsed: ParsedText) -> None:
    parser = PARSERS[name]
    assert parse_tool_calls(text, parser) == parsed
    assert parse_tool_calls("no call", parser) == ParsedText("no call")
    for cut in range(1, len(text)):  # whatever a limit leaves of it
        parse_tool_calls(text[:cut], parser)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "look", "arguments": "no object"}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>["look"]</tool_call>',
        '<tool_call>{"name": "look", "arguments": {"x": 1e400}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {"x": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "\\udfff", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {"x": ' + "[" * 300 + "]" * 300 + "}}</tool_call>",
        "<tool_call>" + "[" * 100_000,
        # Whose arguments stand under another name.
        '<tool_call>{"name": "look", "parameters": {"x": 1}}</tool_call>',
        '<tool_call>{"name": "look", "x": 1}</tool_call>',
        '<tool_call>{"name": "look", "parameters": {}}</tool_call>',
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert parse_tool_calls(text, PARSERS["hermes"]) == ParsedText(text)


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b",
        "[TOOL_CALLS][ARGS]{}",
        "[TOOL_CALLS]a[ARGS][]",
        '[TOOL_CALLS][{"name": "a", "parameters": {"x": 1}}]',
        '[TOOL_CALLS][{"name": "a", "arguments": {}}, {"name": "b", "args": {"x": 1}}]',
    ],
)
def test_what_is_no_call_of_mistral_stays_text(text: str) -> None:
    assert parse_tool_calls(text, PARSERS["mistral"]) == ParsedText(text)


@pytest.mark.parametrize("more", ["", ', "id": "VvvODy9mT"', ', "type": "function"'])
def test_a_call_that_has_nothing_but_its_name_has_no_arguments(more: str) -> None:
    call = f'{{"name": "look"{more}}}'
    for name, text in (("hermes", f"<tool_call>{call}</tool_call>"), ("mistral", f"[TOOL_CALLS][{call}]")):
        (found,) = parse_tool_calls(text, PARSERS[name]).calls
        assert (found.name, found.arguments) == ("look", {})


@pytest.mark.parametrize("value", ["1e400", '"\\ud800"', "[" * 300 + "]" * 300])
def test_a_value_of_xml_that_nobody_can_read_is_text(value: str) -> None:
    parsed = parse_tool_calls(f"<function=look><parameter=x>{value}</parameter></function>", PARSERS["qwen3_xml"])
    assert parsed == ParsedText("", (ToolCall("look", {"x": value}),))


@pytest.mark.parametrize("arguments", ['{"x": 1e400}', '{"x": "\\ud800"}', '{"x": ' + "[" * 300 + "]" * 300 + "}"])
def test_a_call_of_the_package_that_nobody_can_read_is_none(arguments: str) -> None:
    found = SimpleNamespace(arguments=arguments, status="ok", name="look", id=None)
    with pytest.raises(ValueError, match=r"nested|not JSON compliant|surrogate"):
        _call_of(found)


def test_a_parser_is_found_by_the_template() -> None:
    assert parser_of("auto", CHATML) is PARSERS["hermes"]
    assert parser_of("auto", LLAMA3) is None
    assert parser_of("none", CHATML) is None
    assert parser_of("auto", CHATML + "<function=") is PARSERS["qwen3_xml"]


@pytest.mark.parametrize(
    ("text", "prompt", "split"),
    [
        ("<think>\nwhy\n</think>\n\nso", "assistant\n", ("why", "so")),
        ("why\n</think>\n\nso", "<think>\n", ("why", "so")),
        ("why", "<think>", ("why", "")),
        ("so", "assistant\n", (None, "so")),
    ],
)
def test_thoughts_are_told_from_answers(text: str, prompt: str, split: tuple[str | None, str]) -> None:
    assert split_reasoning(text, begun=begins_thought(prompt)) == split


def test_templates_that_rewrite_are_found() -> None:
    tokenizer = char_tokenizer()
    tokenizer.chat_template = CHATML
    assert rewriting(ChatTemplate(tokenizer)) == []
    tokenizer.chat_template = THINKING
    assert rewriting(ChatTemplate(tokenizer)) == [
        "a user's message",
        "a tool's result",
        "a user's message after a thought",
    ]


BY_LAST_QUESTION = (
    "{% if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}"
    "{% else %}{% set system, rest = '', messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}"
    "{% if loop.last and tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {% if loop.last and system %}{{ system }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
"""As Mistral 7B v0.3 has them: the tools and the system message stand before the last question."""
PLAIN = (
    "{% for m in MESSAGES %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "moved"),
    [
        (CHATML, []),
        (LLAMA3, []),
        (QWEN3, []),
        (THINKING, []),
        (PLAIN.replace("MESSAGES", "messages"), []),
        (BY_LAST_QUESTION, ["the system message", "the tools"]),
        (MISTRAL, ["the system message", "the tools"]),
        (PLAIN.replace("MESSAGES", "messages[-3:]"), ["the system message", "earlier turns"]),
        (
            PLAIN.replace("MESSAGES", "messages").replace(
                "{{ m.content }}", "{{ m.content if loop.revindex < 4 or m.role != 'assistant' else '...' }}"
            ),
            ["earlier turns"],
        ),
    ],
)
def test_templates_that_move_what_was_shown_are_found(template: str, moved: list[str]) -> None:
    tokenizer = char_tokenizer()
    tokenizer.chat_template = template
    assert moving(ChatTemplate(tokenizer)) == moved
    told = {"data": {"train": "p.jsonl"}, "model": {"path": "m"}, "rollout": {"agent": "agent.py:solve"}}
    config = TrainConfig.model_validate(told)
    said = [note for note in template_notes(config, ChatTemplate(tokenizer), []) if "more turns follow" in note]
    assert [note.partition(" otherwise")[0].rpartition("it renders ")[2] for note in said] == (
        [" and ".join(moved)] if moved else []
    )


THOUGHTFUL = (
    "{% for m in messages %}[{{ m['role'] }}]"
    "{% if m.reasoning_content and loop.index0 >= ns_last %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m['content'] }}{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""Thoughts stay after the last message of a user's, as Qwen 3 has it."""
LAST_USER = (
    "{% set found = namespace(at=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set found.at = loop.index0 %}{% endif %}{% endfor %}{% set ns_last = found.at %}"
)


@pytest.mark.parametrize(("thinking", "histories", "dropped"), [("keep", 1, 0), ("template", 2, 2)])
def test_what_becomes_of_thoughts(thinking: Any, histories: int, dropped: int) -> None:
    """A tool's result leaves the thought in place; a user's message drops it, and the one before."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = LAST_USER + THOUGHTFUL
    engine = ScriptedEngine(says("<think>a</think>one"), says("<think>b</think>two"), says("three"))

    async def play() -> AgentSession:
        its = policy(engine, text=TextCodec(tokenizer))
        session = AgentSession(its, GatewayConfig(thinking=thinking), "http://127.0.0.1:1/v1", "key")
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        for said in ({"role": "tool", "content": "r"}, {"role": "user", "content": "go"}, None):
            answered = await session.chat(parse_agent_chat({"messages": messages}, "policy"), 0)
            answered.delivered()
            message = whole_chat(answered)["choices"][0]["message"]
            message.pop("reasoning_content", None)  # as many clients do
            messages += [message, said]
        return session

    session = asyncio.run(play())
    found = session.trajectories()
    assert len(found) == histories
    assert found[-1].metadata.get("dropped_thoughts", 0) == dropped
    text = session._policy.decode(engine.requests[2].prompt, keep_special_tokens=True)
    assert ("<think>a</think>" in text, "<think>b</think>" in text) == (thinking == "keep",) * 2
    assert "<think>a</think>" in session._policy.decode(engine.requests[1].prompt, keep_special_tokens=True)


@pytest.mark.parametrize(
    ("sent", "thought"),
    [
        ({"reasoning_content": "aaa"}, "aaa"),
        ({"reasoning": "bbb"}, "bbb"),
        ({"thinking": "aaa"}, "aaa"),
        ({"thinking_blocks": [{"type": "thinking", "thinking": "bb"}, {"type": "thinking", "thinking": "b"}]}, "bbb"),
        ({"reasoning_content": "", "reasoning": {"of": "another form"}}, "ccc"),
        ({"reasoning_content": "of somebody else"}, "ccc"),
        ({}, "ccc"),
    ],
)
@pytest.mark.parametrize("more", [0, 1])
def test_of_answers_that_read_alike_that_with_the_thought_that_is_sent_back_goes_on(
    sent: dict[str, Any], thought: str, more: int
) -> None:
    """`more`: turns after that, which read alike in all branches, and have no thought."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = "{% set ns_last = -1 %}" + THOUGHTFUL
    go = {"role": "user", "content": "go"}
    three = [says(f"<think>{letter * 3}</think>yes") for letter in "abc"]
    engine = ScriptedEngine(*three, *[says("on")] * 3, says("end"))

    async def play() -> str:
        session = AgentSession(policy(engine, text=TextCodec(tokenizer), max_context=500), GatewayConfig(), "", "key")

        async def ask(messages: list[Any], **how: Any) -> list[Any]:
            answered = await session.chat(parse_agent_chat({"messages": messages, **how}, "policy"), 0)
            answered.delivered()
            return [choice["message"] for choice in whole_chat(answered)["choices"]]

        first = [{"role": "user", "content": "hi"}]
        choices = await ask(first, n=3)
        plain = {"role": "assistant", "content": "yes"}
        after = []
        for choice in choices if more else ():
            after = [*(await ask([*first, choice, go])), go]
        await ask([*first, {**plain, **sent}, go, *after])
        return session._policy.decode(engine.requests[-1].prompt, keep_special_tokens=True)

    assert f"<think>{thought}</think>yes" in asyncio.run(play())


def test_a_thought_is_dropped_once() -> None:
    """Six questions: each drops the thought before it, and goes on from nothing."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = LAST_USER + THOUGHTFUL
    engine = ScriptedEngine(*(says(f"<think>{letter}</think>{letter}") for letter in "abcdef"))

    async def play() -> AgentSession:
        its = policy(engine, text=TextCodec(tokenizer), max_context=500)
        session = AgentSession(its, GatewayConfig(thinking="template"), "http://127.0.0.1:1/v1", "key")
        messages: list[Any] = []
        for _ in range(6):
            messages.append({"role": "user", "content": "go"})
            answered = await session.chat(parse_agent_chat({"messages": messages}, "policy"), 0)
            answered.delivered()
            messages.append(whole_chat(answered)["choices"][0]["message"])
        return session

    histories = asyncio.run(play()).trajectories()
    assert len(histories) == 6
    assert histories[-1].metadata["dropped_thoughts"] == 5


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_a_thought_by_any_name_is_dropped_with_the_template(name: str) -> None:
    """It came with the first request, stays beside the tool's result, and goes with a user's message."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = LAST_USER + THOUGHTFUL
    engine = ScriptedEngine(says("one"), says("two"))

    async def play() -> AgentSession:
        its = policy(engine, text=TextCodec(tokenizer))
        session = AgentSession(its, GatewayConfig(thinking="template"), "http://127.0.0.1:1/v1", "key")
        messages: list[Any] = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "first", name: "why"},
            {"role": "tool", "content": "r"},
        ]
        for said in ({"role": "user", "content": "go"}, None):
            answered = await session.chat(parse_agent_chat({"messages": messages}, "policy"), 0)
            answered.delivered()
            messages += [whole_chat(answered)["choices"][0]["message"], said]
        return session

    session = asyncio.run(play())
    seen = [session._policy.decode(each.prompt, keep_special_tokens=True) for each in engine.requests]
    assert ["<think>why</think>" in each for each in seen] == [True, False]
    histories = session.trajectories()
    assert (len(histories), histories[-1].metadata["dropped_thoughts"]) == (2, 1)


def test_a_template_that_wants_the_call_before_a_tools_result() -> None:
    """As Mistral's: the mark in the place of the answer is refused, and the difference is taken from whole texts."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' and not loop.previtem.tool_calls %}"
        "{{ raise_exception('a result without a call') }}{% endif %}[{{ m.role }}]{{ m.content }}"
        "{% for call in m.tool_calls or [] %}<call {{ call.function.name }}>{% endfor %}"
        "{% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    text = TextCodec(tokenizer)
    call = {"type": "function", "function": {"name": "look", "arguments": {}}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "found"},
    ]
    eos = tokenizer.eos_token_id
    added = text.encode_after(messages, 1, eos, (eos,))
    assert text.decode(added, keep_special_tokens=True) == "[tool]found[assistant]"
    after = Turns(text, (eos,), "keep", "auto").after(messages, 1, ids("hi"), ids("look"), _nothing())
    assert after is not None
    assert after[0] == eos


@pytest.mark.parametrize(("template", "closing"), [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>")])
def test_a_path_is_the_conversation_as_the_template_has_it(template: str, closing: str) -> None:
    """Where the policy writes as the template does: turn by turn, the very ids of the whole conversation."""
    tokenizer = byte_tokenizer(template, eos=closing)
    text = TextCodec(tokenizer)
    end = tokenizer.convert_tokens_to_ids(closing)
    call = '\n<tool_call>\n{"name": "look", "arguments": {"key": "k"}}\n</tool_call>'
    words = ["I look." + (call if template == CHATML else ""), "It is v.", "Bye."]
    script = [lambda request, said=said: chunk([*text.encode_text(said).tolist(), end]) for said in words]
    engine = ScriptedEngine(*script)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

    async def play() -> tuple[AgentSession, list[Any]]:
        sampling = SamplingParams(max_new_tokens=300, stop_token_ids=(end,))
        its = policy(engine, text=text, sampling=sampling)
        session = AgentSession(its, GatewayConfig(), "http://127.0.0.1:1/v1", "key")
        messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        for said in ({"role": "tool", "content": "v"}, {"role": "user", "content": "go on"}, None):
            request = parse_agent_chat({"messages": messages, "tools": [tool]}, "policy")
            answered = await session.chat(request, 0)
            answered.delivered()
            messages += [whole_chat(answered)["choices"][0]["message"], *([said] if said else [])]
        return session, messages

    session, messages = asyncio.run(play())
    (only,) = session.trajectories()
    assert ("tool_calls" in messages[2]) == (template == CHATML)
    assert only.messages is not None
    whole = text.template.render(only.messages, [tool], asks=False).rstrip("\n")
    assert only.tokens.tolist() == text.encode_text(whole).tolist()


def _nothing() -> Any:
    from headrace.gateway.agents.turns import Shown

    return Shown(None, {})


def test_thoughts_that_were_dropped_before_an_answer_part_nothing_after_it() -> None:
    """The second question drops the first thought; the tool's result after it goes on from what was sampled."""
    tokenizer = char_tokenizer()
    tokenizer.chat_template = LAST_USER + THOUGHTFUL
    engine = ScriptedEngine(says("<think>a</think>one"), says("<think>b</think>two"), says("three"))

    async def play() -> AgentSession:
        its = policy(engine, text=TextCodec(tokenizer), max_context=200)
        session = AgentSession(its, GatewayConfig(thinking="template"), "http://127.0.0.1:1/v1", "key")
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        for said in ({"role": "user", "content": "go"}, {"role": "tool", "content": "r"}, None):
            answered = await session.chat(parse_agent_chat({"messages": messages}, "policy"), 0)
            answered.delivered()
            messages += [whole_chat(answered)["choices"][0]["message"], said]  # with its thought
        return session

    session = asyncio.run(play())
    assert [history.metadata["turns"] for history in session.trajectories()] == [1, 2]
    prompts = [session._policy.decode(asked.prompt, keep_special_tokens=True) for asked in engine.requests]
    assert prompts[1] == "[user]hi[assistant]one<eos>[user]go[assistant]"
    assert prompts[2] == prompts[1] + "<think>b</think>two<eos>[tool]r[assistant]"


@pytest.mark.parametrize("bad", ["1e400", '"\\ud800"', "[" * 3000 + "]" * 3000])
def test_a_call_that_no_client_could_send_back_is_text(bad: str) -> None:
    """A number that JSON does not have, half of a surrogate pair, what is nested too deeply."""
    text = f'<tool_call>{{"name": "look", "arguments": {{"a": {bad}}}}}</tool_call>'
    assert parse_tool_calls(text, PARSERS["hermes"]) == ParsedText(text)
    written = f"<function=look><parameter=a>{bad}</parameter></function>"
    assert parse_tool_calls(written, PARSERS["qwen3_xml"]).calls == (ToolCall("look", {"a": bad}),)
