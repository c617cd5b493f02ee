"""Supervised fine-tuning on conversations: which tokens are in the loss, by hand, on several styles of template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_styles import CHATML, LLAMA3, MARKED, THINKING, byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from text_tokenizers import prepending
from tokenizers import normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.config import ConfigError
from headrace.config.sft import SFTDataConfig
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.loss_spans import conversation_parts
from headrace.models.packing import PackRow
from headrace.offline.conversations import read_conversations

TALK = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "ONE"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "TWO"},
    {"role": "user", "content": "bye"},
]
CALL = [
    {"role": "user", "content": "Ulm?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "w", "arguments": '{"c": "Ulm"}'}}]},
    {"role": "tool", "content": "rain"},
    {"role": "tool", "content": "wind"},
    {"role": "assistant", "content": "Wet."},
]


def read(
    folder: Path, template: str, *conversations: list[dict[str, Any]], eos: str = "<|im_end|>", **changes: Any
) -> tuple[list[PackRow], ChatTemplate]:
    (folder / "talk.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in conversations))
    tokenizer = byte_tokenizer(template, eos=eos)
    how = {"roles": ("assistant",), "turns": "all", "max_context": None} | {
        name: changes.pop(name) for name in ("roles", "turns", "max_context") if name in changes
    }
    config = SFTDataConfig(train=str(folder / "talk.jsonl"), messages_column="messages", **changes)
    end = tokenizer.eos_token_id
    rows = read_conversations(config, ChatTemplate(tokenizer), end_token_id=end, stop_token_ids=(end,), **how)
    return rows, ChatTemplate(tokenizer)


def test_a_table_of_calls_has_the_tokens_of_the_same_lines_of_json(tmp_path: Path) -> None:
    """A table has the arguments of both calls in each of them, null where a call has none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    calls = [{"function": {"name": "w", "arguments": one}} for one in ({"c": "Ulm"}, {"sum": 2})]
    talks = [[{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}] for call in calls]
    rows, template = read(tmp_path, CHATML, *talks)
    pq.write_table(pa.Table.from_pylist([{"messages": talk} for talk in talks]), tmp_path / "talk.parquet")
    config = SFTDataConfig(train=str(tmp_path / "talk.parquet"), messages_column="messages")
    end = template.tokenizer.eos_token_id
    of_table = read_conversations(
        config, template, roles=("assistant",), turns="all", end_token_id=end, stop_token_ids=(end,), max_context=None
    )
    assert [shown(row, template) for row in of_table] == [shown(row, template) for row in rows]
    assert '"c": "Ulm"' in shown(rows[0], template)


def shown(row: PackRow, template: ChatTemplate) -> str:
    """The text of a row, with [what is in the loss] in brackets."""
    changes = np.flatnonzero(np.diff(row.mask.astype(int))) + 1
    pieces = np.split(row.tokens, changes)
    in_loss = [row.mask[place] for place in (0, *changes)]
    texts = [template.tokenizer.decode(piece) for piece in pieces]
    return "".join(f"[{text}]" if chosen else text for text, chosen in zip(texts, in_loss, strict=True))


def test_chatml_the_assistants_words_and_the_closing_token_are_in_the_loss(tmp_path: Path) -> None:
    (row,), template = read(tmp_path, CHATML, TALK)
    assert shown(row, template) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
        "<|im_start|>assistant\n[ONE<|im_end|>]\n<|im_start|>user\ntwo<|im_end|>\n"
        "<|im_start|>assistant\n[TWO<|im_end|>]"
    )
    # By hand: three letters and the closing token, twice.
    assert row.mask.sum() == 8


def test_llama_3_begins_with_a_token_of_its_own_and_closes_with_another(tmp_path: Path) -> None:
    (row,), template = read(tmp_path, LLAMA3, TALK[1:5], eos="<|eot_id|>")
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert shown(row, template) == (
        "<|begin_of_text|>" + head.format("user") + "one<|eot_id|>" + head.format("assistant") + "[ONE<|eot_id|>]"
        "" + head.format("user") + "two<|eot_id|>" + head.format("assistant") + "[TWO<|eot_id|>]"
    )


def test_tool_calls_are_the_assistants_and_results_are_not(tmp_path: Path) -> None:
    (row,), template = read(tmp_path, CHATML, CALL)
    assert shown(row, template) == (
        "<|im_start|>user\nUlm?<|im_end|>\n<|im_start|>assistant\n"
        '[\n<tool_call>\n{"name": "w", "arguments": {"c": "Ulm"}}\n</tool_call><|im_end|>]\n'
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nwind\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n[Wet.<|im_end|>]"
    )


def test_the_last_turn_alone(tmp_path: Path) -> None:
    (row,), template = read(tmp_path, CHATML, TALK, turns="last")
    assert shown(row, template).endswith("assistant\nONE<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
                                         "<|im_start|>assistant\n[TWO<|im_end|>]")  # fmt: skip
    assert row.mask.sum() == 4


def test_other_roles_come_with_their_header(tmp_path: Path) -> None:
    (row,), template = read(tmp_path, CHATML, TALK[1:3], roles=("user", "assistant"))
    assert shown(row, template) == "[<|im_start|>user\none<|im_end|>]\n<|im_start|>assistant\n[ONE<|im_end|>]"


def test_a_template_that_marks_the_assistants_words_is_believed(tmp_path: Path) -> None:
    (row,), template = read(tmp_path, MARKED, TALK[1:])
    assert shown(row, template) == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n[ONE<|im_end|>]\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[TWO<|im_end|>]"
    )
    (last,), _ = read(tmp_path, MARKED, TALK[1:], turns="last")
    assert last.mask.sum() == 4


def test_a_template_that_renders_history_otherwise_is_refused_and_split_mends_it(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"line 1: the chat template renders message 3 \(assistant\) otherwise.*split"
    ):
        read(tmp_path, THINKING, TALK)
    (first, second), template = read(tmp_path, THINKING, TALK, turns="split")
    assert shown(first, template) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\none<|im_end|>\n"
        "<|im_start|>assistant\n[<think>\n\n</think>\n\nONE<|im_end|>]"
    )
    assert shown(second, template) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nONE<|im_end|>\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n[<think>\n\n</think>\n\nTWO<|im_end|>]"
    )
    assert len(read(tmp_path, THINKING, TALK, turns="last")[0]) == 1


def test_a_turn_that_no_template_closes_gets_the_models_end(tmp_path: Path) -> None:
    bare = (
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}{% if add_generation_prompt %}a:{% endif %}"
    )
    (row,), template = read(tmp_path, bare, TALK[1:5])
    assert shown(row, template) == "u:one a:[ONE ]u:two a:[TWO <|im_end|>]"


def test_a_conversation_without_these_roles_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2: nobody of loss_roles \(assistant\) says anything, only user"):
        read(tmp_path, CHATML, TALK, TALK[1:2])


def test_a_missing_column_names_its_own_key(tmp_path: Path) -> None:
    (tmp_path / "talk.jsonl").write_text('{"talk": []}\n')
    config = SFTDataConfig(train=str(tmp_path / "talk.jsonl"), messages_column="messages")
    how: dict[str, Any] = {"roles": ("assistant",), "turns": "all", "max_context": None}
    with pytest.raises(
        ConfigError, match=r"line 1 has no column 'messages' \(it has 'talk'\); set data.messages_column"
    ):
        read_conversations(config, ChatTemplate(byte_tokenizer(CHATML)), end_token_id=0, stop_token_ids=(0,), **how)


def test_too_long_samples_fail_are_dropped_or_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = [{"role": "user", "content": "x" * 90}, TALK[2]]
    with pytest.raises(
        ConfigError, match=r"line 2 has \d+ tokens with its response, and the model's context holds 80;"
    ):
        read(tmp_path, CHATML, TALK[1:3], long, max_context=80)
    rows, _ = read(tmp_path, CHATML, TALK[1:3], long, max_context=80, too_long="drop")
    assert len(rows) == 1
    assert "1 of 2 samples are too long, with more than 80 tokens (data.too_long: drop)" in caplog.text
    rows, template = read(tmp_path, CHATML, TALK[1:3], long, max_context=80, too_long="truncate_left", max_tokens=40)
    assert len(rows[1]) == 40
    assert shown(rows[1], template).endswith("<|im_start|>assistant\n[ONE<|im_end|>]")


@given(
    st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=4),
    st.sampled_from([CHATML, MARKED]),
    st.sampled_from(["all", "last", "split"]),
)
def test_the_parts_joined_are_the_conversation(talk: list[tuple[str, str]], style: str, turns: Any) -> None:
    template = ChatTemplate(byte_tokenizer(style))
    messages = [
        {"role": role, "content": text} for pair in talk for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    samples = conversation_parts(template, messages, None, ("assistant",), turns)
    assert len(samples) == (len(talk) if turns == "split" else 1)
    assert "".join(part.text for part in samples[-1]) == template.render(messages, asks=False)
    said = [part.text.removesuffix("\n").removesuffix("<|im_end|>") for part in samples[-1] if part.in_loss]
    assert said == [answer for _, answer in talk][0 if turns == "all" else -1 :]


SPLIT = {"first": {"prepend_scheme": "first", "split": False}, "always": {"prepend_scheme": "always"}}
WHITE = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]


@pytest.mark.parametrize(
    "tokenizer",
    [
        prepending(normalizers.Sequence(WHITE)),
        *(prepending(pre_tokenizer=pre_tokenizers.Metaspace(**how)) for how in SPLIT.values()),
    ],
    ids=["normalizer", *SPLIT],
)
@pytest.mark.parametrize("template", ["{{ m.content }}", "({{ m.content }}", "{{ m.content + '</s>' }}"])
def test_no_part_gets_a_space_that_the_whole_conversation_has_not(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, template: str
) -> None:
    """As Llama 2's and Mistral's tokenizers put one before a text, and some of them one behind a special token."""
    tokenizer.chat_template = "{% for m in messages %}" + template + "{% endfor %}"
    says = [
        ("user", "12"),
        ("assistant", "56"),
        ("user", "ut"),
        ("assistant", " a but"),
        ("user", "\n"),
        ("assistant", "b1"),
    ]
    talk = [{"role": role, "content": content} for role, content in says]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": talk}))
    config = SFTDataConfig(train=str(tmp_path / "talk.jsonl"), messages_column="messages")
    end, chat = tokenizer.eos_token_id, ChatTemplate(tokenizer)
    how: dict[str, Any] = {"roles": ("assistant",), "turns": "all", "max_context": None}
    (row,) = read_conversations(config, chat, end_token_id=end, stop_token_ids=(end,), **how)
    whole = tokenizer(chat.render(talk, asks=False), add_special_tokens=False)["input_ids"]
    assert row.tokens.tolist() == (whole if whole[-1] == end else [*whole, end])
