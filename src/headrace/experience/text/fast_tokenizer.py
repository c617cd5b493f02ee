"""A tokenizer by the `tokenizers` library alone: the same ids and text as transformers gives, without importing it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from headrace.experience.text.render import chosen_template, render_chat

_CLEANED = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)
"""What `clean_up_tokenization_spaces` replaces, one after another."""
_OWN_WAYS = ("__call__", "_encode_plus", "decode", "_decode", "apply_chat_template", "get_chat_template")
"""Methods of a tokenizer that decide what it gives: a class with its own is not what its `tokenizer.json` says."""


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """All that a tokenizer's ids and texts follow from: plain data."""

    backend: bytes
    """As `tokenizer.json` has it, UTF-8, with what transformers changed in it when it was loaded."""
    special_tokens: Mapping[str, str]
    """By their names in chat templates, as `bos_token`."""
    eos_token_id: int | None
    bos_token_id: int | None
    chat_template: str | Mapping[str, str] | None
    all_special_tokens: tuple[str, ...]
    cleans_up: bool
    splits_special_tokens: bool

    @staticmethod
    def of(tokenizer: Any) -> TokenizerSpec | None:
        """Of a Hugging Face tokenizer; None of one that does in Python what others leave to their backend."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer) or not _has_common_ways(tokenizer):
            return None
        cleans_up = bool(tokenizer.clean_up_tokenization_spaces)
        if cleans_up and type(backend.model).__name__ == "BPE":
            cleans_up = tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
        return TokenizerSpec(
            backend=backend.to_str().encode(),
            special_tokens=dict(tokenizer.special_tokens_map),
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
            chat_template=tokenizer.chat_template,
            all_special_tokens=tuple(tokenizer.all_special_tokens),
            cleans_up=cleans_up,
            splits_special_tokens=bool(tokenizer.split_special_tokens),
        )


class FastTokenizer:
    """Implements `HFTokenizer`, as far as rollouts ask it."""

    def __init__(self, spec: TokenizerSpec) -> None:
        self.chat_template: Any = spec.chat_template
        self.eos_token_id = spec.eos_token_id
        self.bos_token_id = spec.bos_token_id
        self.special_tokens_map = dict(spec.special_tokens)
        self.all_special_tokens = list(spec.all_special_tokens)
        self._cleans_up = spec.cleans_up
        self._backend = Tokenizer.from_str(bytes(spec.backend).decode())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = spec.splits_special_tokens

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """Those beside the vocabulary, by id."""
        return dict(self._backend.get_added_tokens_decoder())

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """`input_ids` of `text`."""
        (encoded,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)  # without offsets
        return {"input_ids": encoded.ids}

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of one token, None if there is no such token."""
        return self._backend.token_to_id(token)

    def convert_ids_to_tokens(self, token: int) -> str | None:
        """The name of one token in the vocabulary, None if there is no such token."""
        return self._backend.id_to_token(token)

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> str:
        """Text of ids: a list, an array, or one."""
        ids = np.asarray(token_ids, dtype=np.int64).reshape(-1).tolist()
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        if self._cleans_up:
            for old, new in _CLEANED:
                text = text.replace(old, new)
        return text

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = False,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The text of messages. Raises ValueError, and what the template raises."""
        if tokenize:
            raise ValueError("a chat is rendered as text here; encode that")
        return render_chat(
            chosen_template(self.chat_template, tools),
            conversation,
            tools,
            {**self.special_tokens_map, **variables},
            add_generation_prompt=add_generation_prompt,
        )


def _has_common_ways(tokenizer: Any) -> bool:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    common = (PreTrainedTokenizerFast, PreTrainedTokenizerBase)
    own = type(tokenizer)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return False
    names = (*_OWN_WAYS, "clean_up_tokenization")
    return all(any(getattr(own, name) is getattr(base, name, None) for base in common) for name in names)
