"""Tokenizers by how they make text of tokens."""

from __future__ import annotations

from typing import Any

from chat_styles import byte_tokenizer, metaspace_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


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


def prepending(normalizer: Any = None, pre_tokenizer: Any = None) -> PreTrainedTokenizerFast:
    """As of Llama 2 and Mistral: every text that is encoded gets a space before it, which decoding takes away."""
    words = [
        "<unk>",
        "▁",
        "▁a",
        "▁b",
        "bu",
        "but",
        "▁bu",
        "▁but",
        *"0123456abtu",
        *(f"<0x{n:02X}>" for n in range(256)),
    ]
    merges = [("▁", "a"), ("▁", "b"), ("b", "u"), ("bu", "t"), ("▁b", "u"), ("▁bu", "t"), ("▁", "bu"), ("▁", "but")]
    model = models.BPE({word: i for i, word in enumerate(words)}, merges, unk_token="<unk>", byte_fallback=True)
    backend = Tokenizer(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


TOKENIZERS = {"bytes": byte_tokenizer(), "merges": merges(), "falls back": metaspace_tokenizer(), "cleans": cleans()}
