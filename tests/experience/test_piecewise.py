"""Text of tokens as they come: at each moment the beginning of what all of them are decoded to."""

from __future__ import annotations

import pytest
from chat_styles import byte_tokenizer, metaspace_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import TOKENIZERS

from headrace.experience.text.fast_tokenizer import FastTokenizer, TokenizerSpec
from headrace.experience.text.piecewise import Piecewise
from headrace.experience.text.tokens import TextCodec


@settings(deadline=None, max_examples=200)
@given(name=st.sampled_from(sorted(TOKENIZERS)), fast=st.booleans(), data=st.data())
def test_pieces_are_the_beginning_of_the_whole(name: str, fast: bool, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    spec = TokenizerSpec.of(tokenizer)
    assert spec is not None
    codec = TextCodec(FastTokenizer(spec) if fast else tokenizer)
    size = len(tokenizer.get_vocab())
    cuts = data.draw(st.lists(st.lists(st.integers(0, size - 1), max_size=6), max_size=8))
    written = codec.encode_text(data.draw(st.text("ab .\n€😀", max_size=6))).tolist()
    parts = [*cuts, *([token] for token in written)]
    whole = codec.decode([token for part in parts for token in part])
    pieces = Piecewise(codec)
    given = ""
    for part in parts:
        given += pieces.push(part)
        assert whole.startswith(given)


def test_what_was_held_back_comes_with_what_follows() -> None:
    codec = TextCodec(metaspace_tokenizer())
    pieces = Piecewise(codec)
    tokens = codec.encode_text(" a\n€b").tolist()
    assert [pieces.push([token]) for token in tokens] == ["a", "", "", "", "", "\n€b"]
    codec = TextCodec(byte_tokenizer())
    pieces = Piecewise(codec)
    assert [pieces.push([token]) for token in codec.encode_text("a😀").tolist()] == ["a", "", "", "", "😀"]


@pytest.mark.parametrize(
    ("name", "found"), [("bytes", (False, 0)), ("falls back", (False, 256)), ("cleans", (True, 0))]
)
def test_what_a_tokenizer_does_is_found(name: str, found: tuple[bool, int]) -> None:
    codec = TextCodec(TOKENIZERS[name])
    assert (codec.cleans_up, len(codec.byte_ids)) == found
