"""Text and chat messages to token ids, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy, deepcopy
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.experience.text.after_turn import POLICY_TURN, looks_at_calls, text_after
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message, Tool
from headrace.experience.text.spellings import PROBE, Spelling, spelling_of

Content = str | list[Message]
"""Text, or chat messages: see `experience.text.messages`."""

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
"""Names of the tokens that stand for single bytes, in vocabularies that fall back to these."""
_ANCHORS = ("\n", "=")
"""Before a text that is in the middle of something, where its tokenizer puts a space before what it encodes: few tokens
begin with one and go on with what follows."""


class HFTokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    eos_token_id: int | None
    chat_template: Any

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any: ...

    def decode(self, token_ids: Any, *, skip_special_tokens: bool = False) -> Any: ...

    def convert_tokens_to_ids(self, token: str, /) -> Any: ...

    def convert_ids_to_tokens(self, token: int, /) -> Any: ...

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool, **more: Any
    ) -> Any: ...


class TextCodec:
    """One tokenizer with its chat template, as workflows use it."""

    def __init__(self, tokenizer: HFTokenizer, template: ChatTemplate | None = None) -> None:
        """`template` is the tokenizer's own, with nothing added, unless given."""
        self._tokenizer = tokenizer
        self.template = ChatTemplate(tokenizer) if template is None else template
        self._kept: frozenset[int] = frozenset()
        self._last: tuple[Content, Sequence[Tool] | None, NDArray[np.int32]] | None = None

    def encode(
        self, content: Content, tools: Sequence[Tool] | None = None, variables: Mapping[str, Any] | None = None
    ) -> NDArray[np.int32]:
        """Ids of a prompt, read-only. Text gets the tokenizer's own special tokens; messages, and the `tools` that the
        policy may call, are rendered by the chat template, up to where the policy's turn begins. `variables` of the
        template go before those of the config.

        Raises ValueError if nothing comes out, or if messages are given but there is no chat template, or it refuses
        them.
        """
        last = self._last  # as one, since others may encode on other threads
        if last is not None and not variables and _reads_alike(last[:2], (content, tools)):
            return last[2]  # a group asks one after another
        if isinstance(content, str):
            if tools:
                raise ValueError("a prompt of text has no place for tools; give chat messages")
            encoded = self._text(content)
        else:
            template = self.template.given(variables or {})
            encoded = self._plain(template.render(content, tools))
        if not encoded:
            raise ValueError(f"the prompt {content!r} is encoded to no tokens")
        ids = np.asarray(encoded, dtype=np.int32)
        ids.flags.writeable = False
        if not variables:
            self._last = (deepcopy(content), deepcopy(tools), ids)
        return ids

    def encode_observation(
        self,
        text: str,
        *,
        chat: bool,
        last_token: int | None = None,
        role: str = "user",
        tools: Sequence[Tool] | None = None,
    ) -> NDArray[np.int32]:
        """Ids of what an environment says after a turn of the policy, to be appended to the tokens so far.

        In a chat it becomes a message of `role`: what the template puts between the policy's words and its next turn,
        less the closing token if the policy wrote it (`last_token`). The history is never tokenised again.

        Raises ValueError if the template refuses it, or does not show what the assistant said.
        """
        if not chat:
            return self.encode_text(text)
        turn = [{"role": "user", "content": "-"}, {"role": "assistant", "content": POLICY_TURN}]
        closing = () if last_token is None else (last_token,)
        return self.encode_after([*turn, {"role": role, "content": text}], 1, last_token, closing, tools)

    def encode_text(self, text: str) -> NDArray[np.int32]:
        """Ids of `text` in the middle of something: no special token is added, and no space."""
        return np.asarray(self._in_the_middle(text), dtype=np.int32)

    def encode_texts(self, texts: Sequence[str], before: Sequence[str | None]) -> list[list[int]]:
        """As `encode_text`, many at once, with a tokenizer of Hugging Face's, which is faster by far: each as it reads
        behind what is `before` it, of which the end will do. None: it begins a text."""
        ids: dict[int, list[int]] = {}
        inner = [place for place, each in enumerate(before) if each is not None] if self._prepends else []
        for fallback in _ANCHORS:
            # A token beside the vocabulary parts a text, so that a space may be put behind it, too.
            anchors = [next(filter((before[place] or "").endswith, self._added_texts), fallback) for place in inner]
            heads = {anchor: self._plain(anchor) for anchor in set(anchors)}
            whole = self._all([anchor + texts[place] for anchor, place in zip(anchors, inner, strict=True)])
            for place, anchor, found in zip(inner, anchors, whole, strict=True):
                if (after := _after_head(heads[anchor], found)) is not None:
                    ids[place] = after
            inner = [place for place in inner if place not in ids]
        rest = [place for place in range(len(texts)) if place not in ids]
        ids.update(zip(rest, self._all([texts[place] for place in rest]), strict=True))
        return [ids[place] for place in range(len(texts))]

    def encode_after(
        self,
        messages: Sequence[Message],
        place: int,
        last_token: int | None = None,
        closing: Collection[int] = (),
        tools: Sequence[Tool] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> NDArray[np.int32]:
        """Ids of what the template puts between the end of what the policy wrote in `messages[place]`, and its next
        turn after all of `messages`. Where the policy wrote the closing token of its turn itself (`last_token`, one of
        `closing`), that of the template is left out, and white space before it. `variables` go before those of the
        config.

        Raises ValueError if the template refuses them, or does not show what the assistant said.
        """
        template = self.template.given(variables or {})
        by_difference = "tool_calls" in messages[place] and self._looks_at_calls
        ids = self._in_the_middle(text_after(template, messages, place, tools, by_difference=by_difference))
        if last_token is not None and last_token in closing:
            ids = ids[self._closing_length(ids, last_token, closing) :]
        return np.asarray(ids, dtype=np.int32)

    def _closing_length(self, ids: Sequence[int], last_token: int, closing: Collection[int]) -> int:
        """How many of `ids` close a turn again that `last_token` has closed: up to the template's closing token, where
        white space alone is before that. 0 where none does."""
        for place, token in enumerate(ids):
            is_blank = not self.decode([token], keep_special_tokens=True).strip()
            # A text of the user's may end a turn too, and that closes none.
            if token == last_token or (token in closing and not is_blank and last_token in self.special_tokens):
                return place + 1
            if not is_blank or last_token not in self._added:
                break
        return 0

    def truncated_left(self, ids: NDArray[np.int32], longest: int) -> NDArray[np.int32]:
        """See the function of this name."""
        return truncated_left(ids, longest, getattr(self._tokenizer, "bos_token_id", None))

    def decode(self, tokens: ArrayLike, *, keep_special_tokens: bool = False) -> str:
        """Text of `tokens`, special tokens left out unless they are kept."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        if self._kept and not keep_special_tokens:
            ids = [each for each in ids if each in self._kept or each not in self.special_tokens]
            keep_special_tokens = True
        return cast(str, self._tokenizer.decode(ids, skip_special_tokens=not keep_special_tokens))

    def keeping(self, kept: frozenset[int]) -> TextCodec:
        """The same, but that `decode` leaves none of these special tokens out."""
        keeps = copy(self)
        keeps._kept = kept
        return keeps

    @cached_property
    def special_tokens(self) -> Mapping[int, str]:
        """Those that decoding leaves out, by id."""
        return {token: each.content for token, each in self._added.items() if each.special}

    @cached_property
    def _added(self) -> Mapping[int, Any]:
        """Tokens beside the vocabulary, by id."""
        added: Mapping[int, Any] = getattr(self._tokenizer, "added_tokens_decoder", {})
        return added

    def bytes_of(self, token: int) -> bytes | None:
        """Of UTF-8 what `token` stands for, perhaps a part of a character. None where the vocabulary does not tell."""
        if token in self._added:
            return str(self._added[token].content).encode()
        name = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(name, str):
            return None
        return bytes([_BYTES.index(name)]) if token in self.byte_ids else self._spelling(name)

    @cached_property
    def _spelling(self) -> Spelling:
        names = map(self._tokenizer.convert_ids_to_tokens, self._plain(PROBE))
        return spelling_of("".join(map(str, names)))

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids that stand for single bytes where all else is words. What one of a run of them is decoded to depends on
        the others."""
        ids = {self._tokenizer.convert_tokens_to_ids(name) for name in _BYTES}
        return frozenset(ids) if len(ids) == len(_BYTES) else frozenset()

    @cached_property
    def cleans_up(self) -> bool:
        """Whether decoding takes out spaces before signs, so that a token changes the text of those before it."""
        return self.decode(self.encode_text("a .")).strip() == "a."

    @cached_property
    def _prepends(self) -> bool:
        """Whether a text gets a space before it, as of Llama 2."""
        ids = self._plain("b")
        return bool(ids) and (self.bytes_of(ids[0]) or b"").startswith(b" ")

    @cached_property
    def _looks_at_calls(self) -> bool:
        """Whether what comes after a call of a tool may depend on the call."""
        return looks_at_calls(self.template)

    @cached_property
    def _added_texts(self) -> tuple[str, ...]:
        """Of the tokens beside the vocabulary, the longest first."""
        return tuple(sorted((str(each.content) for each in self._added.values()), key=len, reverse=True))

    def _in_the_middle(self, text: str) -> list[int]:
        if self._prepends:
            for anchor in _ANCHORS:
                if (ids := _after_head(self._plain(anchor), self._plain(anchor + text))) is not None:
                    return ids
        return self._plain(text)

    def _text(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"])

    def _all(self, texts: list[str]) -> list[list[int]]:
        tokenizer: Any = self._tokenizer
        return list(tokenizer(texts, add_special_tokens=False)["input_ids"]) if texts else []

    def _plain(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _after_head(head: list[int], whole: list[int]) -> list[int] | None:
    """What comes after `head` in `whole`. None where a token is of both."""
    return whole[len(head) :] if head and whole[: len(head)] == head else None


def _reads_alike(one: Any, other: Any) -> bool:
    """Whether templates write both alike: they tell 1 from 1.0 and True, and the order of keys, as JSON does."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(_reads_alike, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_reads_alike, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else bool(one == other)  # -0.0 is not 0.0


def truncated_left(ids: NDArray[np.int32], longest: int, bos_token_id: int | None) -> NDArray[np.int32]:
    """The last `longest` of `ids`; the first one stays, where it is the token that begins every text."""
    if len(ids) <= longest:
        return ids
    if bos_token_id is not None and longest > 1 and ids[0] == bos_token_id:
        return np.concatenate([ids[:1], ids[len(ids) - longest + 1 :]])
    return ids[len(ids) - longest :]


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
