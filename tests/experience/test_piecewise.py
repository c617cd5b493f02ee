"""Text of tokens as they come: at each moment the beginning of what all of them are decoded to."""

from __future__ import annotations

import pytest
from chat_styles import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.experience.text.fast_tokenizer import FastTokenizer, TokenizerSpec
from headrace.experience.text.piecewise import Piecewise
from headrace.experience.text.tokens import TextCodec


def falls_back() -> PreTrainedTokenizerFast:
    """As of Llama 2: words, and bytes for all else, a line's end included."""
    words = ["<unk>", "▁", "a", "▁a", "b", ".", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {word: i for i, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def merges() -> PreTrainedTokenizerFast:
    """Of bytes, some of which are one token: a space with the first half of a character, too."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    smile = [
        pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(" 😀")[0][0][place] for place in range(5)
    ]
    pairs = [(smile[0], smile[1]), (smile[0] + smile[1], smile[2]), (smile[3], smile[4])]
    vocab = {token: i for i, token in enumerate([*alphabet, *(a + b for a, b in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def cleans() -> PreTrainedTokenizerFast:
    """As of BERT: decoding takes out the space before a sign."""
    words = ["[UNK]", "[SEP]", "a", ".", "'", "n", "t"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", clean_up_tokenization_spaces=True, eos_token="[SEP]"
    )


TOKENIZERS = {"bytes": byte_tokenizer(), "merges": merges(), "falls back": falls_back(), "cleans": cleans()}


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
    codec = TextCodec(falls_back())
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
