"""A tokenizer with one token for each character of the task, in Hugging Face format."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.cli.quickstart.task import CHARACTERS

PAD, END, UNKNOWN = "<pad>", "<end>", "<unknown>"


def make_tokenizer(context: int) -> PreTrainedTokenizerFast:
    """`context`: tokens of the longest sequence."""
    vocabulary = {token: index for index, token in enumerate([PAD, END, UNKNOWN, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
