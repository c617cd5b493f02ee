"""The bound that spares most prompts their tokenising is never below the truth."""

from __future__ import annotations

import pytest
from chat_styles import byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from headrace.experience.token_bound import token_bound


def with_bos() -> object:
    tokenizer = byte_tokenizer()
    begin = tokenizer.convert_tokens_to_ids("<|begin_of_text|>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    return tokenizer


def composing() -> object:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def of_words() -> object:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "a": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?")


TOKENIZERS = {"plain": byte_tokenizer(), "bos": with_bos(), "nfc": composing(), "words": of_words()}


@given(st.sampled_from(sorted(TOKENIZERS)), st.text() | st.text("a\u0344\ufb2c\u1100\u1161\U0001d160é日"))
def test_no_text_has_more_tokens_than_its_bound(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    bound = token_bound(tokenizer)
    assert bound is not None
    assert len(tokenizer(text)["input_ids"]) <= bound(text)  # type: ignore[operator]


def test_the_bound_is_reached_by_a_tokenizer_without_merges() -> None:
    bound = token_bound(TOKENIZERS["bos"])
    assert bound is not None
    assert bound("aé") == len(TOKENIZERS["bos"]("aé")["input_ids"]) == 4  # type: ignore[operator]


def test_other_kinds_have_no_known_bound() -> None:
    for change in (
        lambda backend: setattr(backend, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda backend: setattr(backend, "pre_tokenizer", pre_tokenizers.Metaspace()),
        lambda backend: setattr(backend, "normalizer", normalizers.Replace("a", "bbbb")),
        lambda backend: setattr(backend, "normalizer", normalizers.NFKC()),
    ):
        tokenizer = byte_tokenizer()
        change(tokenizer.backend_tokenizer)
        assert token_bound(tokenizer) is None
    assert token_bound(object()) is None


@pytest.mark.parametrize("text", ["\u0344", "\ufb2c", "\U0001d160"])
def test_texts_that_grow_in_normalisation_are_within_it(text: str) -> None:
    tokenizer = TOKENIZERS["nfc"]
    bound = token_bound(tokenizer)
    assert bound is not None
    assert len(text.encode()) < len(tokenizer(text)["input_ids"]) <= bound(text)  # type: ignore[operator]
