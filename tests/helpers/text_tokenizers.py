"""Tokenizers by how they make text of tokens."""

from __future__ import annotations

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


TOKENIZERS = {"bytes": byte_tokenizer(), "merges": merges(), "falls back": metaspace_tokenizer(), "cleans": cleans()}
