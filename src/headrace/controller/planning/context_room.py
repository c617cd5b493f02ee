"""Whether prompts, and the responses that are asked for, fit into the model's context: counted before the start.

What is counted is exact. To be quick with a million prompts, only those are read and tokenised whose bytes do not tell
already that they leave room for the longest response (`experience.token_bound`), many at a time. What a template adds
to a chat is reckoned at twice what it adds to the first chat of a source, for each message, and what it adds to none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from headrace.config import ConfigError
from headrace.config.data import TooLong
from headrace.experience.prompts.dataset import Prompt, PromptDataset, SourcePrompts
from headrace.experience.text.tokens import TextCodec
from headrace.experience.token_bound import TokenBound, token_bound

_SLACK = 1024
"""Bytes that a template is taken to add to a chat without a word, where it refuses one."""
_AT_ONCE = 1024
"""Texts that the tokenizer is given together: it takes all processors for them."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found of the prompts of a file."""

    cramped: int
    """Prompts that leave room for fewer than the longest response. Of those that are kept."""
    too_long: tuple[int, ...]
    """Places of prompts that are longer than may be, ascending."""
    longest: int
    """Tokens that a prompt may have."""
    tokenised: int
    """Prompts that had to be."""


@dataclass(frozen=True, slots=True)
class Room:
    text: TextCodec
    tokenizer: Any
    context: int
    """Tokens, prompt and response together."""
    vocab_size: int
    can_grow: bool
    """The model has more places than the context."""
    too_long: TooLong = "fail"
    max_prompt_tokens: int | None = None

    def check(self, prompts: PromptDataset, path: str, key: str, max_new_tokens: int) -> Fit:
        """What fits of the prompts of the file `path`. `max_new_tokens` is the config's value of `key`.

        Raises ConfigError for a prompt that is encoded to ids which the model does not have; for one that is too long,
        if that is to `fail`; and if not one prompt is left, or not one of them leaves room for `max_new_tokens`.
        """
        longest = self._longest(max_new_tokens)
        lengths = dict(self._lengths(prompts, path, min(longest, self.context - max_new_tokens)))
        tokenised = len(lengths)
        over = tuple(place for place, length in lengths.items() if length > longest)
        if over and self.too_long == "fail":
            raise ConfigError(self._failure(prompts[over[0]], path, lengths[over[0]], longest, len(over), len(prompts)))
        if self.too_long == "truncate_left":
            lengths |= dict.fromkeys(over, longest)
        elif over:
            lengths = {place: length for place, length in lengths.items() if length <= longest}
        kept = len(prompts) - (len(over) if self.too_long == "drop" else 0)
        if len(prompts) and not kept:
            raise ConfigError(
                f"all {len(prompts)} prompts of {path} have more than {longest} tokens ({self._limit_key(key)}), and "
                "data.too_long is drop; allow longer ones" + self._mend()
            )
        cramped = {place: length for place, length in lengths.items() if length + max_new_tokens > self.context}
        if kept and len(cramped) == kept:
            shortest, most = min(cramped.values()), max(cramped.values())
            raise ConfigError(
                f"{key} is {max_new_tokens}, and the context holds {self.context} tokens, prompt and response "
                f"together: no response could be so long, as the shortest prompt of {path} has {shortest}; set "
                f"{key} to {self.context - most}, for which all prompts leave room" + self._mend()
            )
        return Fit(len(cramped), over, longest, tokenised)

    def _longest(self, max_new_tokens: int) -> int:
        room = 1 if self.too_long == "fail" or max_new_tokens >= self.context else max_new_tokens
        fits = self.context - room
        return fits if self.max_prompt_tokens is None else min(fits, self.max_prompt_tokens)

    def _lengths(self, prompts: PromptDataset, path: str, sure: int) -> Iterator[tuple[int, int]]:
        """(place, tokens) of each prompt that may have more than `sure` tokens."""
        bound = token_bound(self.tokenizer)
        if max(self.tokenizer.get_vocab().values(), default=0) >= self.vocab_size:
            bound = None  # then each is looked at, for an id that the model has not
        texts = ((place, *self._text(prompts[place], path)) for place in self._places(prompts, path, bound, sure))
        unsure = ((place, text, bare) for place, text, bare in texts if bound is None or not text or bound(text) > sure)
        while some := list(islice(unsure, _AT_ONCE)):
            for bare in (False, True):
                group = [(place, text) for place, text, is_bare in some if is_bare == bare]
                if not group:
                    continue
                encoded = self.tokenizer([text for _, text in group], add_special_tokens=not bare)["input_ids"]
                for (place, _), ids in zip(group, encoded, strict=True):
                    self._check_ids(ids, prompts[place], path)
                    yield place, len(ids)

    def _places(self, prompts: PromptDataset, path: str, bound: TokenBound | None, sure: int) -> Iterator[int]:
        """Of all prompts but those whose bytes are so few that they have no more than `sure` tokens."""
        begin = 0
        for part in prompts.parts:
            if bound is not None and isinstance(part, SourcePrompts):
                added, alone = (0, 0) if part.first_chat is None else self._added(part.first_chat, path)
                most = part.lengths.astype(np.int64) + (part.messages > 0) * alone + part.messages * (2 * added)
                yield from (np.flatnonzero(bound.of_bytes(most) > sure) + begin).tolist()
            else:
                yield from range(begin, begin + len(part))
            begin += len(part)

    def _added(self, chat: Prompt, path: str) -> tuple[int, int]:
        """Bytes that the template adds to a chat, and to one without a word: a default system message shows there."""
        words = [message["content"] for message in chat.content if isinstance(message, dict)]
        said = sum(len(text.encode(errors="replace")) for text in words)
        added = len(self._text(chat, path)[0].encode(errors="replace")) - said
        try:
            alone = len(self.text.template.render([{"role": "user", "content": ""}], None).encode(errors="replace"))
        except ValueError:
            alone = _SLACK
        return max(added, 0), alone

    def _text(self, prompt: Prompt, path: str) -> tuple[str, bool]:
        """What is tokenised, and whether without the tokenizer's own special tokens."""
        try:
            if isinstance(prompt.content, str):
                return prompt.content, False
            return self.text.template.render(prompt.content, prompt.tools), True
        except ValueError as error:
            raise ConfigError(f"{_name(prompt, path)}: {error}") from error

    def _check_ids(self, ids: Sequence[int], prompt: Prompt, path: str) -> None:
        if not ids:
            raise ConfigError(f"{_name(prompt, path)}: the prompt {prompt.content!r} is encoded to no tokens")
        if (greatest := max(ids)) >= self.vocab_size:
            raise ConfigError(
                f"{_name(prompt, path)} is encoded to token id {greatest}, and the model's ids go from 0 to "
                f"{self.vocab_size - 1}: the tokenizer is of another model; give the model's own"
            )

    def _failure(self, prompt: Prompt, path: str, length: int, longest: int, over: int, of: int) -> str:
        others = f" (so have {over} of {of})" if over > 1 else ""
        if longest < self.context - 1:
            holds = f"data.max_prompt_tokens is {longest}"
        else:
            holds = f"the context holds {self.context}, prompt and response together"
        return (
            f"{_name(prompt, path)} has {length} tokens, and {holds}{others}; shorten it, remove the row, or set "
            "data.too_long to drop or truncate_left" + self._mend()
        )

    def _limit_key(self, key: str) -> str:
        return "data.max_prompt_tokens" if self.max_prompt_tokens is not None else f"the context less {key}"

    def _mend(self) -> str:
        return ", or raise engine.max_context" if self.can_grow else ""


def _name(prompt: Prompt, path: str) -> str:
    return f"{path}: prompt {prompt.prompt_id!r}"
