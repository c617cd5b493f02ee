"""Text and chat messages to token ids, and back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any, Protocol, cast

import jinja2
import numpy as np
from numpy.typing import ArrayLike, NDArray

Content = str | list[dict[str, str]]
"""Text, or chat messages, each with `role` and `content`."""

_POLICY_TURN = "\x02policy\x03"
"""Stands for what the policy wrote while the chat template renders what comes after it."""


class HFTokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    eos_token_id: int | None
    chat_template: Any

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> Any: ...

    def apply_chat_template(self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool) -> Any: ...


class TextCodec:
    """One tokenizer, as workflows use it."""

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self._tokenizer = tokenizer
        self._last: tuple[Content, NDArray[np.int32]] | None = None

    def encode(self, content: Content) -> NDArray[np.int32]:
        """Ids of a prompt, read-only. Text gets the tokenizer's own special tokens; messages are rendered by its
        chat template, up to where the policy's turn begins.

        Raises ValueError if nothing comes out, or if messages are given but there is no chat template, or it refuses
        them.
        """
        last = self._last  # as one, since others may encode on other threads
        if last is not None and last[0] == content:  # the episodes of a group ask one after another
            return last[1]
        encoded = self._text(content) if isinstance(content, str) else self._plain(self._render(content))
        if not encoded:
            raise ValueError(f"the prompt {content!r} is encoded to no tokens")
        ids = np.asarray(encoded, dtype=np.int32)
        ids.flags.writeable = False
        self._last = (deepcopy(content), ids)
        return ids

    def encode_observation(self, text: str, *, chat: bool, last_token: int | None = None) -> NDArray[np.int32]:
        """Ids of what an environment says after a turn of the policy, to be appended to the tokens so far.

        In a chat it becomes a user's message: what the template puts between the policy's words and its next turn,
        less the closing token if the policy wrote it (`last_token`). The history is never tokenised again.
        """
        if not chat:
            return np.asarray(self._plain(text), dtype=np.int32)
        history = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _POLICY_TURN}]
        rendered = self._render([*history, {"role": "user", "content": text}])
        _, found, after = rendered.partition(_POLICY_TURN)
        if not found:
            raise ValueError("the chat template does not show an assistant's message; environments need one that does")
        ids = self._plain(after)
        if ids and ids[0] == last_token:
            ids = ids[1:]
        return np.asarray(ids, dtype=np.int32)

    def decode(self, tokens: ArrayLike, *, keep_special_tokens: bool = False) -> str:
        """Text of `tokens`, special tokens left out unless they are kept."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        return cast(str, self._tokenizer.decode(ids, skip_special_tokens=not keep_special_tokens))

    def _text(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        if not self._tokenizer.chat_template:
            raise ValueError(
                "the prompt is a list of chat messages, but the model's tokenizer has no chat template; "
                "give prompts as text, or use a tokenizer with a chat_template"
            )
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except (jinja2.TemplateError, TypeError, LookupError, ArithmeticError) as error:
            raise ValueError(
                f"the tokenizer's chat template refuses the messages: {type(error).__name__}: {error}; give messages "
                "that it takes (as to roles and their order), or mend the template"
            ) from error
        return cast(str, text)


def stop_token_ids(
    tokenizer: HFTokenizer, generation_eos: int | Iterable[int] | None, extra: Iterable[int] = ()
) -> tuple[int, ...]:
    """Ids that end a response, ascending: the tokenizer's, those of the model's generation config, and `extra`."""
    ids = set(extra)
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if isinstance(generation_eos, int):
        ids.add(generation_eos)
    elif generation_eos is not None:
        ids.update(generation_eos)
    return tuple(sorted(ids))
