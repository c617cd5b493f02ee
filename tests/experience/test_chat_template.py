"""Conversations as templates render them: tools, tool calls and what the config adds."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_styles import CHATML, LLAMA3, MARKED, byte_tokenizer

from headrace.config import ConfigError
from headrace.config.template import TemplateConfig
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import as_messages

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_tools_tool_calls_and_their_results_reach_the_template() -> None:
    messages = as_messages(
        [
            {"role": "user", "content": [{"type": "text", "text": "Ulm?"}]},
            {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}]},
            {"role": "tool", "content": "rain", "tool_call_id": "1"},
        ]
    )
    assert ChatTemplate(byte_tokenizer(CHATML)).render(messages, [WEATHER]) == (
        "<|im_start|>system\nTools:\n"
        '{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}<|im_end|>\n'
        "<|im_start|>user\nUlm?<|im_end|>\n"
        "<|im_start|>assistant\n\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_template_that_puts_arguments_together_with_text_gets_text() -> None:
    joins = "{% for c in messages[0].tool_calls %}{{ 'json: ' + c.function.arguments }}{% endfor %}"
    messages = as_messages([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": "é"}}]}])
    assert ChatTemplate(byte_tokenizer(joins)).render(messages) == 'json: {"a": "é"}'


def test_the_config_gives_variables_and_a_system_message() -> None:
    tokenizer = byte_tokenizer(CHATML)
    template = ChatTemplate.of(TemplateConfig(kwargs={"enable_thinking": False}, system="Be brief."), tokenizer)
    asked = [{"role": "user", "content": "a"}]
    head, tail = "<|im_start|>user\na<|im_end|>\n", "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert template.render(asked) == f"<|im_start|>system\nBe brief.<|im_end|>\n{head}{tail}"
    own = [{"role": "system", "content": "Own."}, *asked]
    assert template.render(own) == f"<|im_start|>system\nOwn.<|im_end|>\n{head}{tail}", "one is enough"
    assert template.render(asked, asks=False).endswith(head)
    assert template.unread() == []
    assert template.given({"enable_thinking": True}).render(own).endswith("<|im_start|>assistant\n")


def test_a_variable_that_no_template_reads_is_named() -> None:
    template = ChatTemplate(byte_tokenizer(LLAMA3), {"enable_thinking": False, "bos_token": "x"})
    assert template.unread() == ["enable_thinking"]
    assert not template.reads("tools")
    assert ChatTemplate(byte_tokenizer(CHATML)).reads("tools")


def test_a_file_replaces_the_template_and_is_exported(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(MARKED)
    tokenizer = byte_tokenizer(LLAMA3)
    template = ChatTemplate.of(TemplateConfig(file=str(file)), tokenizer)
    assert template.render([{"role": "user", "content": "a"}]) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    )
    tokenizer.save_pretrained(tmp_path / "out")
    again = type(tokenizer).from_pretrained(tmp_path / "out")
    assert again.chat_template == MARKED
    assert template.marks_assistant
    assert not ChatTemplate(byte_tokenizer(CHATML)).marks_assistant


def test_a_file_that_is_no_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: No such file or directory; give a Jinja file"):
        ChatTemplate.of(TemplateConfig(file=str(tmp_path / "none.jinja")), byte_tokenizer())
    (tmp_path / "bad.jinja").write_text("{% for m in messages %}")
    with pytest.raises(ConfigError, match=r"bad.jinja' is no Jinja template \(.*\); correct it"):
        ChatTemplate.of(TemplateConfig(file=str(tmp_path / "bad.jinja")), byte_tokenizer())


def test_a_template_cannot_reach_python() -> None:
    for source in ("{{ messages.__class__.__mro__ }}", "{{ cycler.__init__.__globals__.os.getcwd() }}"):
        with pytest.raises(ValueError, match="SecurityError"):
            ChatTemplate(byte_tokenizer(source)).render([{"role": "user", "content": "a"}])


@pytest.mark.parametrize("name", ["tokenize", "tools", "add_generation_prompt", "no name"])
def test_variables_that_headrace_gives_are_not_the_users(name: str) -> None:
    with pytest.raises(ValueError, match=r"(is given by Headrace|is no name of a variable)"):
        TemplateConfig(kwargs={name: True})
