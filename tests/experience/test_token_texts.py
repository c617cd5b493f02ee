"""Tokens as log-probs show them: put together they are the text, and its bytes."""

from __future__ import annotations

import pytest
from chat_styles import metaspace_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import TOKENIZERS, cleans, merges

from headrace.experience.text.fast_tokenizer import FastTokenizer, TokenizerSpec
from headrace.experience.text.token_texts import ShownToken, TokenTexts
from headrace.experience.text.tokens import TextCodec

EXACT = sorted(set(TOKENIZERS) - {"cleans"})


def codec_of(name: str, *, fast: bool) -> TextCodec:
    spec = TokenizerSpec.of(TOKENIZERS[name])
    assert spec is not None
    return TextCodec(FastTokenizer(spec) if fast else TOKENIZERS[name])


def shown(codec: TextCodec, parts: list[list[int]]) -> list[ShownToken]:
    """The log-prob of a token tells its place."""
    texts, found, place = TokenTexts(codec), list[ShownToken](), 0
    for part in parts:
        found += texts.push(part, [float(place + each) for each in range(len(part))])
        place += len(part)
    return found + texts.flush()


@settings(deadline=None, max_examples=200)
@given(name=st.sampled_from(EXACT), fast=st.booleans(), data=st.data())
def test_put_together_they_are_the_text(name: str, fast: bool, data: st.DataObject) -> None:
    """Of any tokens, in any parts, bytes of no character and special tokens among them."""
    codec = codec_of(name, fast=fast)
    known = st.integers(0, len(TOKENIZERS[name].get_vocab()) - 1)
    written = codec.encode_text(data.draw(st.text("ab .\n€😀", max_size=6))).tolist()
    parts = [*data.draw(st.lists(st.lists(known, max_size=6), max_size=8)), *([token] for token in written)]
    tokens = [token for part in parts for token in part]
    found = shown(codec, parts)
    assert [each.logprob for each in found] == list(range(len(tokens)))
    assert found == shown(codec, [tokens]) == shown(codec, [[token] for token in tokens])
    said = [each for token, each in zip(tokens, found, strict=True) if token not in codec.special_tokens]
    assert "".join(each.text for each in said) == codec.decode(tokens)
    assert sum(each.length for each in found) == len(codec.decode(tokens))


@settings(deadline=None, max_examples=100)
@given(name=st.sampled_from(EXACT), fast=st.booleans(), text=st.text("ab .\n€😀", max_size=12))
def test_put_together_their_bytes_are_those_of_the_text(name: str, fast: bool, text: str) -> None:
    codec = codec_of(name, fast=fast)
    tokens = codec.encode_text(text).tolist()
    data = [each.data for token, each in zip(tokens, shown(codec, [tokens]), strict=True)]
    assert b"".join(data).decode() == codec.decode(tokens)


@pytest.mark.parametrize(
    ("codec", "text", "found"),
    [
        (
            TextCodec(merges()),
            "a 😀",
            [("a", b"a"), (" ", b" \xf0\x9f"), ("😀", b"\x98\x80")],
        ),
        (
            TextCodec(metaspace_tokenizer()),
            " a a\n€b",
            [
                *(("a", b"a"), (" a", b" a"), ("\n", b"\n")),
                *(("", b"\xe2"), ("", b"\x82"), ("€", b"\xac"), ("b", b"b")),
            ],
        ),
        (TextCodec(cleans()), "a .", [("a", b"a"), (".", b".")]),
    ],
)
def test_what_a_token_adds(codec: TextCodec, text: str, found: list[tuple[str, bytes]]) -> None:
    tokens = codec.encode_text(text).tolist()
    assert [(each.text, each.data) for each in shown(codec, [tokens])] == found


def test_a_broken_character_is_shown_by_its_bytes() -> None:
    """A run of bytes of which any is wrong has no character, as the tokenizer has it."""
    codec = codec_of("falls back", fast=True)
    euro, word = codec.encode_text("€").tolist(), codec.encode_text("b").tolist()
    found = shown(codec, [[*word, *euro[-3:], euro[-1], *word]])
    assert "".join(each.text for each in found) == "b\ufffd\ufffd\ufffd\ufffdb"
    assert b"".join(each.data for each in found) == b"b\xe2\x82\xac\xacb"


def test_a_special_token_is_shown_and_adds_nothing() -> None:
    codec = codec_of("bytes", fast=True)
    smile, (end,) = codec.encode_text("😀").tolist(), codec.encode_text("<|im_end|>").tolist()
    found = shown(codec, [[*smile[:2], end, *smile[2:]]])
    assert [(each.text, each.length) for each in found] == [("", 0), ("", 0), ("<|im_end|>", 0), ("", 0), ("😀", 1)]
