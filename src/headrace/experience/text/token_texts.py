"""Sampled tokens as log-probs show them: what each adds to the text, and the bytes that it stands for."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.experience.text.detokenize import Detokenizer
from headrace.experience.text.piecewise import Piecewise
from headrace.experience.text.tokens import TextCodec

_BROKEN = "\ufffd"
_UTF8 = getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True)
class ShownToken:
    text: str
    """What it adds to the text: nothing if it only begins a character. Of a special token its name."""
    data: bytes
    """Of UTF-8. Put together they are the text's, also where a character takes several tokens."""
    logprob: float
    length: int
    """Characters of the text that it adds; a special token, which is no part of it, adds none."""


class TokenTexts:
    """Put together, the texts of all tokens but the special ones are what `codec` decodes them to."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._pieces = Detokenizer(codec.decode, []) if codec.cleans_up else Piecewise(codec)
        self._waiting: list[tuple[int, float]] = []
        """Tokens with their log-probs, of whose text something is not known yet."""
        self._text = ""
        """What is known of it."""

    def push(self, tokens: Sequence[int], logprobs: Sequence[float]) -> list[ShownToken]:
        """Those whose text is certain now, however tokens come: these, and what waited for them."""
        shown: list[ShownToken] = []
        for token, logprob in zip(tokens, logprobs, strict=True):
            self._waiting.append((token, logprob))
            if token not in self._codec.special_tokens:
                self._text += self._pieces.push([token])
            if self._pieces.is_whole:
                shown += self._settled()
        return shown

    def flush(self) -> list[ShownToken]:
        """Those that still wait, when no more tokens come."""
        self._text += self._pieces.flush()
        return self._settled()

    def _settled(self) -> list[ShownToken]:
        waiting, text = self._waiting, self._text
        self._waiting, self._text = [], ""
        special = self._codec.special_tokens
        shares = iter(_shares(text, [self._codec.bytes_of(token) for token, _ in waiting if token not in special]))
        shown = []
        for token, logprob in waiting:
            if (name := special.get(token)) is not None:
                shown.append(ShownToken(name, name.encode(), logprob, 0))
            else:
                share, data = next(shares)
                shown.append(ShownToken(share, data, logprob, len(share)))
        return shown


def _shares(text: str, own: Sequence[bytes | None]) -> list[tuple[str, bytes]]:
    """What of a text each of its tokens adds, and its bytes, as their `own` ones tell: all of these but what decoding
    leaves out at the beginning, as the space before the first word. Where they do not tell, the last one adds all."""
    decoder = _UTF8("replace")
    parts = [decoder.decode(data or b"", final=place == len(own)) for place, data in enumerate(own, start=1)]
    meant = "".join(parts)
    known = [data for data in own if data is not None]
    if len(known) == len(own) and meant.endswith(text):
        left_out, shares = len(meant) - len(text), list[tuple[str, bytes]]()
        for part, data in zip(parts, known, strict=True):
            share = part[left_out:]
            left_out -= len(part) - len(share)
            shares.append((share, data if share == part else share.encode()))
        return shares
    is_broken = len(known) == len(own) and _BROKEN in meant
    datas = known if is_broken else [*[b""] * (len(own) - 1), text.encode()]
    return [("", data) for data in datas[:-1]] + [(text, datas[-1])]
