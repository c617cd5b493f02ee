"""Ids, texts and chats without transformers: equal to what transformers gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_styles import CHATML, LLAMA3, MARKED, THINKING, byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_helpers import char_tokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.fast_tokenizer import FastTokenizer, TokenizerSpec
from headrace.experience.text.tokens import TextCodec
from headrace.rewards.judge import _control_tokens

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "é": [1, 2.5, None]}}}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Grüße <|im_end|> \n 'x' & <b>"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}],
    [
        {"role": "user", "content": "Ulm?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}],
        },
        {"role": "tool", "content": "rain", "name": None},
        {"role": "assistant", "content": "It rains."},
    ],
]
READS_REASONING = "{% for m in messages %}{{ m.thinking or '' }}|{{ m.reasoning_content or '' }};{% endfor %}"
SCOPES = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% generation %}{% set ns.n = ns.n + 1 %}{{ ns.n }}"
    "{% set inside = 1 %}{% endgeneration %}{{ inside is defined }}{% if ns.n > 1 %}{% break %}{% endif %}{% endfor %}"
    "{{ dict(a=1) | tojson(indent=1) }}{{ tools is none }}{{ documents is none }}{{ eos_token }}"
)
ATTRIBUTES = (
    "{% for m in messages %}{{ m.role }}{{ m.absent is defined }}{{ m.items() | list }}{% endfor %}"
    "{% set own = {'items': 1, 'role': none, '__class__': 2, 'p': [3]} %}{{ own.role }}{{ own.p }}"
    "{{ own.items is callable }}"
    "{{ own.__class__ is defined }}{{ own['items'] }}{{ 'é<' | tojson }}"
    "{{ own | tojson(indent=0) }}{{ own | tojson(separators=(',', ':')) }}{{ own | tojson(sort_keys=true) }}"
    "{{ 'é' | tojson(ensure_ascii=true) }}"
)


def word_pieces() -> PreTrainedTokenizerFast:
    """As BERT's: texts have special tokens at both ends, and decoding cleans up spaces."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "do", "n", "'", "t", "stop", ".", "!", ",", "##ped", "i", "##s"]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="[SEP]", bos_token="[CLS]", unk_token="[UNK]", pad_token="[PAD]"
    )
    fast.clean_up_tokenization_spaces = True
    return fast


def metaspace() -> PreTrainedTokenizerFast:
    """As Llama 2's: a space goes before the first word, and bytes are fallen back to."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁ab"]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "a"), ("▁a", "b")][:1],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.clean_up_tokenization_spaces = True  # which a BPE tokenizer leaves out
    return fast


def with_added() -> PreTrainedTokenizerFast:
    fast = byte_tokenizer(CHATML)
    fast.add_tokens(["<tool>", "zz"])
    fast.split_special_tokens = True
    return fast


MADE = {
    "characters": lambda: char_tokenizer(chat=True),
    "bytes": lambda: byte_tokenizer(CHATML),
    "llama 3": lambda: byte_tokenizer(LLAMA3, eos="<|eot_id|>"),
    "thinking": lambda: byte_tokenizer(THINKING),
    "marked": lambda: byte_tokenizer(MARKED),
    "word pieces": word_pieces,
    "metaspace": metaspace,
    "added": with_added,
}
ALL = {name: make() for name, make in MADE.items()}


def twin(tokenizer: Any) -> FastTokenizer:
    spec = TokenizerSpec.of(tokenizer)
    assert spec is not None
    return FastTokenizer(spec)


TWINS = {name: twin(tokenizer) for name, tokenizer in ALL.items()}
PIECES = ["a", " b", "ab", "zz", "<tool>", "<|im_end|>", "<|eot_id|>", "[SEP]", "</s>", " don't stop .", "é", "𝄞", "\n"]


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=8).map("".join)))
def test_texts_have_the_same_ids_and_ids_the_same_text(name: str, text: str) -> None:
    theirs, ours = ALL[name], TWINS[name]
    for special in (True, False):
        ids = list(theirs(text, add_special_tokens=special)["input_ids"])
        assert ours(text, add_special_tokens=special)["input_ids"] == ids
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", ALL)
def test_codecs_are_the_same(name: str) -> None:
    theirs, ours = TextCodec(ALL[name]), TextCodec(TWINS[name])
    assert (TWINS[name].eos_token_id, TWINS[name].bos_token_id) == (ALL[name].eos_token_id, ALL[name].bos_token_id)
    assert _control_tokens(TWINS[name]) == _control_tokens(ALL[name])
    assert ours.encode("ab a").tolist() == theirs.encode("ab a").tolist()
    if theirs.template.exists:
        chat = [{"role": "user", "content": "ab"}]
        assert ours.encode(chat).tolist() == theirs.encode(chat).tolist()
        for last in (None, ALL[name].eos_token_id):
            told = {"chat": True, "last_token": last}
            assert ours.encode_observation("a", **told).tolist() == theirs.encode_observation("a", **told).tolist()


@pytest.mark.parametrize("chat", CHATS, ids=["one turn", "system", "tools"])
@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["no tools", "tools"])
@pytest.mark.parametrize("template", [CHATML, LLAMA3, THINKING, MARKED, READS_REASONING, SCOPES, ATTRIBUTES])
def test_chats_are_rendered_alike(template: str, tools: Any, chat: list[dict[str, Any]]) -> None:
    tokenizer = byte_tokenizer(template)
    for asks in (True, False):
        for variables in ({}, {"enable_thinking": False, "bos_token": "<mine>"}):
            theirs = ChatTemplate(tokenizer, variables).render(chat, tools, asks=asks)
            assert ChatTemplate(twin(tokenizer), variables).render(chat, tools, asks=asks) == theirs


def test_of_several_templates_the_same_is_chosen() -> None:
    several = byte_tokenizer()
    several.chat_template = {"default": "plain", "tool_use": "tools"}
    for tools in (None, [TOOL]):
        assert ChatTemplate(twin(several)).render(CHATS[0], tools) == ChatTemplate(several).render(CHATS[0], tools)
    several.chat_template = {"rag": "x"}
    with pytest.raises(ValueError, match="no default"):
        ChatTemplate(twin(several)).render(CHATS[0])


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__ }}{{ (1/0) }}",
    ],
)
def test_what_a_template_refuses_is_refused_by_both(template: str) -> None:
    tokenizer = byte_tokenizer(template)
    for each in (tokenizer, twin(tokenizer)):
        with pytest.raises(ValueError, match="refuses the messages"):
            ChatTemplate(each).render(CHATS[0])


def test_a_tokenizer_with_ways_of_its_own_has_no_spec() -> None:
    class Own(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _decode(self, *args: Any, **more: Any) -> str:
            return "mine"

    own = Own(tokenizer_object=byte_tokenizer().backend_tokenizer)
    assert TokenizerSpec.of(own) is None
    assert TokenizerSpec.of(object()) is None


def test_neither_torch_nor_transformers_is_imported(tmp_path: Path) -> None:
    spec = TokenizerSpec.of(byte_tokenizer(CHATML))
    assert spec is not None
    (tmp_path / "backend").write_bytes(spec.backend)
    program = f"""
import sys
from headrace.experience.text.fast_tokenizer import FastTokenizer, TokenizerSpec
from headrace.experience.text.tokens import TextCodec
spec = TokenizerSpec(open({str(tmp_path / "backend")!r}, "rb").read(), {{}}, 1, 2, {CHATML!r}, (), False, False)
ids = TextCodec(FastTokenizer(spec)).encode([{{"role": "user", "content": "hi"}}])
import json
print(json.dumps([ids.tolist(), [name for name in ("torch", "transformers") if name in sys.modules]]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    ids, imported = json.loads(ended.stdout)
    assert ids == TextCodec(byte_tokenizer(CHATML)).encode([{"role": "user", "content": "hi"}]).tolist()
    assert imported == []
