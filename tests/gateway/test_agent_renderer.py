"""Chats of Qwen 3 by the package `renderers` and by the template's difference: where they agree, and where not."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_styles import CHATML, byte_tokenizer
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from model_renderers import with_tokens_of
from qwen3_chats import QWEN3, TOOL, qwen3_tokenizer
from rollout_helpers import ScriptedEngine, chunk, policy

from headrace.config import ConfigError
from headrace.config.gateway import GatewayConfig
from headrace.engines.protocol import SamplingParams
from headrace.experience.sample import GroupKey, Sample
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.fast_tokenizer import TokenizerSpec
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents import model_renderer
from headrace.gateway.agents.agent_requests import parse_agent_chat
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import whole_chat
from headrace.gateway.agents.model_renderer import ModelRenderer
from headrace.gateway.errors import ApiError

TOKENIZER = qwen3_tokenizer(merges=200)
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
USER = {"role": "user", "content": "hi"}
GO = {"role": "user", "content": "go"}
CALL = '<tool_call>\n{"name": "look", "arguments": {"key" :  "é"}}\n</tool_call>'
Steps = list[tuple[int, list[Any]]]
"""Of an agent, each a request: how many messages it takes back, and those that it adds."""
Played = tuple[list[Any], list[tuple[str, list[bool]]]]
"""What the API returned, and what is trained: tokens as text, and which of them were sampled."""


def renderer(**kwargs: Any) -> ModelRenderer:
    return ModelRenderer("qwen3", "a/folder", ChatTemplate(TOKENIZER, kwargs))


def play(
    answers: list[str],
    steps: Steps,
    by: ModelRenderer | None,
    kwargs: Any = None,
    request: Any = None,
    tokenizer: Any = TOKENIZER,
    **config: Any,
) -> Played:
    said, samples = session_of(answers, steps, by, kwargs, request, tokenizer, **config)
    return said, [("|".join(map(TOKENIZER.decode, each.tokens)), each.loss_mask.tolist()) for each in samples]


def session_of(
    answers: list[str],
    steps: Steps,
    by: ModelRenderer | None,
    kwargs: Any = None,
    request: Any = None,
    tokenizer: Any = TOKENIZER,
    **config: Any,
) -> tuple[list[Any], list[Sample]]:
    script = [lambda _, said=said: chunk(TOKENIZER(said)["input_ids"]) for said in answers]
    text = TextCodec(tokenizer, ChatTemplate(tokenizer, kwargs or {}))
    sampling = SamplingParams(max_new_tokens=300, stop_token_ids=(END,))

    async def run() -> tuple[list[Any], AgentSession]:
        its = policy(ScriptedEngine(*script), text=text, sampling=sampling)
        session = AgentSession(its, GatewayConfig(**config), "http://127.0.0.1:1/v1", "key", renderer=by)
        messages: list[Any] = []
        said = []
        for back, added in steps:
            messages = [*messages[: len(messages) - back], *added]
            body = {"messages": messages, "tools": [TOOL], **(request or {})}
            answered = await session.chat(parse_agent_chat(body, "policy"), 0)
            answered.delivered()
            said.append(whole_chat(answered)["choices"][0]["message"])
            messages = [*messages, said[-1]]
        return said, session

    said, session = asyncio.run(run())
    return said, [each.to_sample(GroupKey(0, 0, 0), 0, 0) for each in session.trajectories()]


def both(answers: list[str], steps: Steps, kwargs: Any = None, **config: Any) -> tuple[Played, Played]:
    """By the package, and by the template's difference."""
    by_package = play(answers, steps, renderer(**(kwargs or {})), kwargs, **config)
    return by_package, play(answers, steps, None, kwargs, **config)


WORDS = st.text(st.sampled_from("ab \n.,:{\"é7'"), min_size=1, max_size=12)
PLAIN = WORDS.map(str.strip).filter(bool)
CALLING = st.sampled_from([f"I look.\n{CALL}", f"{CALL}\n{CALL}"])
ANSWERS = st.builds("{}{}<|im_end|>".format, st.sampled_from(["", "<think>\nwhy\n</think>\n\n"]), PLAIN | CALLING)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[str], Steps]:
    """Questions, with the results of all tools that were called; now and then another one in the place of an answer."""
    system = draw(st.sampled_from([[], [{"role": "system", "content": draw(WORDS)}]]))
    answers = draw(st.lists(ANSWERS, min_size=1, max_size=5))
    steps: Steps = [(0, [*system, {"role": "user", "content": draw(WORDS)}])]
    for answer in answers[:-1]:
        results = [{"role": "tool", "content": draw(WORDS)} for _ in range(answer.count("<tool_call>"))]
        asked = [{"role": "user", "content": draw(WORDS)}]
        if draw(st.integers(0, 3)) == 0:
            steps.append((1, asked))
        else:
            steps.append((0, results + asked if draw(st.booleans()) else results or asked))
    return answers, steps


@pytest.mark.parametrize("thinking", ["keep", "template"])
@given(conversations())
@examples(max_examples=20, deadline=None)
def test_the_two_agree_token_for_token(thinking: str, conversation: tuple[list[str], Steps]) -> None:
    by_package, by_difference = both(*conversation, thinking=thinking)
    assert by_package == by_difference


@pytest.mark.parametrize(
    "added",
    [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, GO],
        [{"role": "assistant", "content": "b"}, GO],
    ],
)
def test_an_answer_that_an_agent_puts_in_is_added_by_the_template(added: list[Any]) -> None:
    """The package goes on to no message of the assistant's; the path goes on all the same."""
    by_package, by_difference = both(["one<|im_end|>", "two<|im_end|>"], [(0, [USER]), (0, added)])
    assert by_package == by_difference
    assert len(by_package[1]) == 1


def test_without_a_template_what_the_package_does_not_go_on_from_begins_anew() -> None:
    bare = qwen3_tokenizer(merges=200)
    bare.chat_template = None
    by = ModelRenderer("qwen3", "a/folder", ChatTemplate(bare))
    answers = [f"{word}<|im_end|>" for word in ("one", "two", "three")]
    added = [{"role": "assistant", "content": "b"}, GO]
    _, histories = play(answers, [(0, [USER]), (0, [GO]), (0, added)], by, tokenizer=bare)
    assert [sum(np.diff(mask, prepend=False) & mask) for _, mask in histories] == [2, 1]


def test_a_thought_that_was_not_ended_stays_as_it_is() -> None:
    by_package, by_difference = both(["<think>\nwhy<|im_end|>", "two<|im_end|>"], [(0, [USER]), (0, [GO])])
    assert by_package[1] == by_difference[1]
    assert len(by_package[1]) == 1


def test_without_thinking_the_package_keeps_the_empty_thought_of_earlier_answers() -> None:
    """Which the template leaves out of a history that begins anew; turns that go on agree."""
    off = {"enable_thinking": False}
    answers, steps = ["one<|im_end|>", "two<|im_end|>"], [(0, [USER]), (0, [GO])]
    by_package, by_difference = both(answers, steps, off)
    assert by_package == by_difference
    history = [USER, {"role": "assistant", "content": "other"}, GO]
    (by_package, _), (by_difference, _) = (each[1][0] for each in both(answers[:1], [(0, history)], off))
    assert "\n<think>\n\n</think>\n\nother" in by_package.replace("|", "").replace("<im", "<|im")
    assert "assistant\nother" in by_difference.replace("|", "")


@pytest.mark.parametrize(
    ("said", "by_package", "by_template"),
    [
        ("  one \n", {"content": "one"}, {"content": "  one \n"}),
        (
            '<tool_call>\n{"name": "look", "arguments": {}}',
            {"content": '<tool_call>\n{"name": "look", "arguments": {}}'},
            {"content": None, "tool_calls": [{"name": "look", "arguments": "{}"}]},
        ),
        (
            f"<think>\nwhy\n{CALL}",
            {
                "content": None,
                "reasoning_content": "why",
                "tool_calls": [{"name": "look", "arguments": '{"key": "é"}'}],
            },
            {"content": "", "reasoning_content": f"why\n{CALL}"},
        ),
    ],
    ids=["spaces around an answer", "a call that was not ended", "a thought that a call ends"],
)
def test_answers_that_are_read_otherwise(said: str, by_package: Any, by_template: Any) -> None:
    """Their tokens are the same."""
    played = both([f"{said}<|im_end|>"], [(0, [USER])])
    for ((message,), _), wanted in zip(played, (by_package, by_template), strict=True):
        calls = [call["function"] for call in message.pop("tool_calls", [])]
        assert {**message, **({"tool_calls": calls} if calls else {})} == {"role": "assistant", **wanted}
    assert played[0][1] == played[1][1]


@pytest.mark.parametrize(
    "call",
    ['{"name": "look", "arguments": "no object"}', '{"name": "look", "arguments": {"x": NaN}}', '["look"]', "look"],
)
def test_what_is_no_call_stays_text(call: str) -> None:
    said = f"I look.\n<tool_call>\n{call}\n</tool_call>"
    ((message,), _), by_difference = both([f"{said}<|im_end|>"], [(0, [USER])])
    assert message == {"role": "assistant", "content": said}
    assert by_difference[0] == [message]


def test_calls_are_text_where_none_are_wanted_and_a_stop_of_the_clients_cuts_text() -> None:
    answer = [f"I look.\n{CALL}<|im_end|>"]
    (message,), _ = play(answer, [(0, [USER])], renderer(), request={"tool_choice": "none"})
    assert message == {"role": "assistant", "content": f"I look.\n{CALL}"}
    (message,), _ = play(answer, [(0, [USER])], renderer(), request={"stop": ["look."]})
    assert message == {"role": "assistant", "content": "I "}
    (message,), _ = play(answer, [(0, [USER])], renderer(), tool_parser="none")
    assert message == {"role": "assistant", "content": f"I look.\n{CALL}"}


def test_variables_of_a_request_are_the_renderers() -> None:
    request = {"chat_template_kwargs": {"enable_thinking": False}}
    _, ((tokens, _),) = play(["one<|im_end|>"], [(0, [USER])], renderer(), request=request)
    assert "<think>" in tokens
    with pytest.raises(ApiError, match=r"renderer qwen3 refuses it \(ValueError: Unsupported chat_template_kwargs"):
        play([""], [(0, [USER])], renderer(), request={"chat_template_kwargs": {"mood": "calm"}})
    thought = [USER, {"role": "assistant", "content": "a", "reasoning_content": "why"}, GO]
    with pytest.raises(ApiError, match="Unsupported chat_template_kwargs"):
        play([""], [(0, thought)], renderer(), request={"chat_template_kwargs": {"mood": "calm"}}, thinking="template")


def test_a_renderer_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'qwen9', and renderers [0-9.]+ knows no such .* qwen3, .*; or set it to t"):
        ModelRenderer("qwen9", "m", ChatTemplate(TOKENIZER))
    with pytest.raises(ConfigError, match=r"'qwen3', which cannot render for m: .*'<\|endoftext\|>' not found"):
        ModelRenderer("qwen3", "m", ChatTemplate(byte_tokenizer(CHATML)))
    with pytest.raises(
        ConfigError, match=r"cannot render for a/folder: .*Unsupported chat_template_kwargs for 'qwen3'"
    ):
        renderer(mood="calm")
    monkeypatch.setattr(model_renderer, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"is not installed: pip install 'headrace\[renderers\]', or set it to templ"):
        ModelRenderer("qwen3", "m", ChatTemplate(TOKENIZER))


REWRITE = ("deepseek-r1", "hy3", "laguna-m.1", "laguna-xs.2")
"""Those that write an answer with a thought otherwise once it is history."""


@pytest.mark.parametrize("name", sorted(set(model_renderer.known_models().values()) - {"gpt-oss"}))
def test_each_renderer_goes_on_from_a_call_and_reads_it(name: str) -> None:
    """But that of gpt-oss, which fetches its vocabulary from the net."""
    tokenizer, by = with_tokens_of(name)
    call = {"id": "functions.look:0", "type": "function", "function": {"name": "look", "arguments": {"key": "k"}}}
    messages = [
        USER,
        {"role": "assistant", "content": "", "reasoning_content": "why", "tool_calls": [call]},
        {"role": "tool", "content": "v", "tool_call_id": "functions.look:0"},
    ]
    prompt, whole = by.whole(messages[:1], [TOOL], {}), by.whole(messages, [TOOL], {})
    rendered = by._of({}).render(messages, tools=[TOOL])
    closing = by._of({}).get_stop_token_ids()
    ends = [i for i, of in enumerate(rendered.message_indices) if of == 1 and rendered.token_ids[i] in closing]
    begins = len(prompt) if name not in REWRITE else rendered.message_indices.index(1)
    answer = np.asarray(rendered.token_ids[begins : ends[-1] + 1], np.int32)
    added = by.after(prompt, answer, messages, 1, [TOOL], {})
    if name in REWRITE:
        assert added is None or "v" in tokenizer.decode(added)
        return
    assert added is not None
    assert [*prompt, *answer, *added] == whole.tolist()
    read = by.read(prompt, answer, (), [TOOL], {})
    assert read is not None
    assert [(one.name, one.arguments) for one in read.calls] == [("look", {"key": "k"})]
    assert read.text.strip() == ""
    if name.startswith("kimi"):
        assert read.calls[0].id == "functions.look:0"


def test_what_the_package_raises_over_an_answer_is_told_once_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    by = renderer()

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("tool_calls")

    own = type(by._of({})).parse_response
    monkeypatch.setattr(type(by._of({})), "parse_response", broken)
    said, samples = session_of([CALL + "<|im_end|>"] * 2, [(0, [USER]), (0, [GO])], by)
    assert [each["content"] for each in said] == [CALL, CALL]
    assert samples[-1].metadata["unread_answers"] == 2
    (record,) = [each for each in caplog.records if each.name == model_renderer.__name__]
    assert "the renderer qwen3 of renderers " in record.getMessage()
    assert "raised KeyError where it read an answer" in record.getMessage()
    assert record.exc_info is not None
    monkeypatch.setattr(type(by._of({})), "parse_response", own)
    no_call = '<tool_call>\n{"name": "look", "arguments": 3}\n</tool_call><|im_end|>'
    _, samples = session_of([no_call], [(0, [USER])], by)
    assert "unread_answers" not in samples[-1].metadata, "which is the policy's"


@pytest.mark.slow
def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    spec = TokenizerSpec.of(TOKENIZER)
    assert spec is not None
    (tmp_path / "backend").write_bytes(spec.backend)
    (tmp_path / "template").write_text(QWEN3)
    program = """
import json, sys
from pathlib import Path
import numpy as np
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.fast_tokenizer import FastTokenizer, TokenizerSpec
from headrace.gateway.agents.model_renderer import ModelRenderer
backend, template = (Path(sys.argv[1], name).read_bytes() for name in ("backend", "template"))
tokenizer = FastTokenizer(TokenizerSpec(backend, {}, int(sys.argv[2]), None, template.decode(), (), False, False))
by = ModelRenderer("qwen3", "m", ChatTemplate(tokenizer))
chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": ""}, {"role": "tool", "content": "v"}]
prompt = by.whole(chat[:1], None, {})
answer = np.asarray(tokenizer('<tool_call>{"name": "look"}</tool_call><|im_end|>')["input_ids"], np.int32)
read, added = by.read(prompt, answer, (), None, {}), by.after(prompt, answer, chat, 1, None, {})
heavy = [name for name in ("torch", "transformers") if name in sys.modules]
print(json.dumps([read.calls[0].name, tokenizer.decode(added), heavy]))
"""
    command = [sys.executable, "-c", program, str(tmp_path), str(END)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    name, added, imported = json.loads(ended.stdout)
    assert (name, imported) == ("look", [])
    assert added == "\n<|im_start|>user\n<tool_response>\nv\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
