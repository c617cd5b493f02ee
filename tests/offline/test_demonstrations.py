"""A prompt and its responses as tokens, by hand, where tokenizers and chat templates have ways of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_styles import byte_tokenizer
from text_tokenizers import prepending
from tokenizers import normalizers, pre_tokenizers

from headrace.config.pairs import PairDataConfig
from headrace.config.sft import SFTDataConfig
from headrace.experience.text.chat_template import ChatTemplate
from headrace.offline.conversations import read_conversations
from headrace.offline.demonstrations import read_demonstrations, read_pairs

WHITE = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]


def pairs_in(folder: Path, *rows: dict[str, Any], **changes: Any) -> PairDataConfig:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PairDataConfig(train=str(folder / "pairs.jsonl"), **changes)


@pytest.mark.parametrize(
    "how",
    [
        {"normalizer": normalizers.Sequence(WHITE)},
        {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="first", split=False)},
        {"pre_tokenizer": pre_tokenizers.Metaspace(prepend_scheme="always")},
    ],
    ids=["normalizer", "first", "always"],
)
def test_a_response_gets_no_space_that_nobody_wrote(tmp_path: Path, how: dict[str, Any]) -> None:
    tokenizer = prepending(**how)
    row = {"prompt": "12", "chosen": "56", "rejected": "\n"}
    ((chosen, rejected),) = read_pairs(pairs_in(tmp_path, row), tokenizer, end_token_id=7, max_context=None)
    for side, text in ((chosen, "1256"), (rejected, "12\n")):
        assert side.tokens.tolist() == [*tokenizer(text)["input_ids"], 7]
        assert side.mask.tolist() == [False] * 3 + [True] * (len(side) - 3)


GEMMA = (
    "{% for m in messages %}<s>{{ m.role }}:{{ OPENED }}m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


@pytest.mark.parametrize("opened", ["", "' ' + "], ids=["closes", "opens with a space"])
@pytest.mark.parametrize("kind", ["bytes", "prepends"])
def test_a_response_to_a_chat_is_the_turn_that_the_template_writes(tmp_path: Path, kind: str, opened: str) -> None:
    """As of Gemma, whose turns do not end with the tokenizer's end of sequence: in a conversation, in a column of its
    own, and in a pair."""
    tokenizer = byte_tokenizer(eos="<|eot_id|>") if kind == "bytes" else prepending(normalizers.Sequence(WHITE))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>", "<|im_end|>"]})
    tokenizer.chat_template = GEMMA.replace("{{ OPENED }}", "{{ " + opened)
    eos, end = tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")
    asks, said = [{"role": "user", "content": "12"}], "56"
    talk = [*asks, {"role": "assistant", "content": said}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": asks, "response": said, "talk": talk}))
    data: dict[str, Any] = {"train": str(tmp_path / "rows.jsonl")}
    ends: dict[str, Any] = {"end_token_id": eos, "stop_token_ids": (eos, end), "max_context": None}
    (apart,) = read_demonstrations(SFTDataConfig(**data), tokenizer, **ends)
    whole = SFTDataConfig(**data, messages_column="talk")
    (row,) = read_conversations(whole, ChatTemplate(tokenizer), roles=("assistant",), turns="all", **ends)
    pair = pairs_in(tmp_path, {"prompt": asks, "chosen": said, "rejected": "6"})
    ((chosen, rejected),) = read_pairs(pair, tokenizer, **ends)
    for each in (apart, chosen):
        assert each.tokens.tolist() == row.tokens.tolist()
        assert each.mask.tolist() == row.mask.tolist()
    assert row.tokens[-1] == rejected.tokens[-1] == end


@pytest.mark.parametrize(
    "template", ["{{ messages[0].content }}", "{{ messages[0].content }}{% if messages[1] %}{{ 1 / 0 }}{% endif %}"]
)
def test_where_the_template_closes_no_turn_the_models_end_does(tmp_path: Path, template: str) -> None:
    tokenizer = byte_tokenizer(template)
    eos = tokenizer.eos_token_id
    pair = pairs_in(tmp_path, {"prompt": [{"role": "user", "content": "12"}], "chosen": "5", "rejected": "6"})
    ((chosen, _),) = read_pairs(pair, tokenizer, end_token_id=eos, stop_token_ids=(eos,), max_context=None)
    assert chosen.tokens.tolist() == [*tokenizer("125")["input_ids"], eos]


@pytest.mark.parametrize(
    ("longest", "left", "chosen_left", "rejected_left"),
    [
        (8, "<|begin_of_text|>34", "abcd", "x"),
        (6, "<|begin_of_text|>", "abcd", "x"),
        (4, "<|begin_of_text|>", "cd", "x"),
    ],
)
def test_a_pair_that_is_cut_keeps_its_first_token_and_one_prompt(
    tmp_path: Path, longest: int, left: str, chosen_left: str, rejected_left: str
) -> None:
    """By hand: each has the end behind it."""
    tokenizer = byte_tokenizer()
    pair = {"prompt": "<|begin_of_text|>1234", "chosen": "abcd", "rejected": "x"}
    config = pairs_in(tmp_path, pair, max_tokens=longest, too_long="truncate_left")
    end = tokenizer.eos_token_id
    ((chosen, rejected),) = read_pairs(config, tokenizer, end_token_id=end, max_context=None)
    for side, text in ((chosen, chosen_left), (rejected, rejected_left)):
        prompt = tokenizer(left)["input_ids"]
        assert side.tokens.tolist() == [*prompt, *tokenizer(text)["input_ids"], end]
        assert side.mask.tolist() == [False] * len(prompt) + [True] * (len(text) + 1)


def test_a_conversation_that_is_cut_keeps_its_first_token(tmp_path: Path) -> None:
    tokenizer = byte_tokenizer("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    talk = [{"role": "user", "content": "1234"}, {"role": "assistant", "content": "ab"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": talk}))
    data: dict[str, Any] = {"train": str(tmp_path / "talk.jsonl"), "messages_column": "messages", "max_tokens": 5}
    how: dict[str, Any] = {"roles": ("assistant",), "turns": "all", "end_token_id": 7, "stop_token_ids": (7,)}
    config = SFTDataConfig(**data, too_long="truncate_left")
    (row,) = read_conversations(config, ChatTemplate(tokenizer), max_context=None, **how)
    assert row.tokens.tolist() == [*tokenizer("<|begin_of_text|>4ab")["input_ids"], 7]
    assert row.mask.tolist() == [False] * 2 + [True] * 3
