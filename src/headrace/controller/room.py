"""Whether prompts, and the responses that are asked for, fit into the model's context."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.config import ConfigError
from headrace.experience.dataset import Prompt
from headrace.rollout.tokens import TextCodec


@dataclass(frozen=True, slots=True)
class Room:
    text: TextCodec
    context: int
    """Tokens, prompt and response together."""
    vocab_size: int
    can_grow: bool
    """The model has more places than the context."""

    def check(self, prompts: Iterable[Prompt], path: str, key: str, max_new_tokens: int) -> int:
        """How many of the prompts of the file `path` leave room for fewer than `max_new_tokens`, which is the config's
        value of `key`.

        Raises ConfigError for a prompt that leaves no room at all, or that is encoded to ids which the model does not
        have; and if every one of them leaves room for fewer.
        """
        lengths = [self._length(prompt, f"{path}: prompt {prompt.prompt_id!r}") for prompt in prompts]
        cramped = sum(length + max_new_tokens > self.context for length in lengths)
        if lengths and cramped == len(lengths):
            raise ConfigError(
                f"{key} is {max_new_tokens}, and the context holds {self.context} tokens, prompt and response "
                f"together: no response could be so long, as the shortest prompt of {path} has {min(lengths)}; set "
                f"{key} to {self.context - max(lengths)}, for which all prompts leave room" + self._mend()
            )
        return cramped

    def _length(self, prompt: Prompt, where: str) -> int:
        try:
            ids = self.text.encode(prompt.content)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        if len(ids) >= self.context:
            raise ConfigError(
                f"{where} has {len(ids)} tokens, and the context holds {self.context}, prompt and response together; "
                + ("shorten it, remove the row" + self._mend() if self.can_grow else "shorten it, or remove it")
            )
        if (greatest := int(ids.max())) >= self.vocab_size:
            raise ConfigError(
                f"{where} is encoded to token id {greatest}, and the model's ids go from 0 to {self.vocab_size - 1}: "
                "the tokenizer is of another model; give the model's own"
            )
        return len(ids)

    def _mend(self) -> str:
        return ", or raise engine.max_context" if self.can_grow else ""
