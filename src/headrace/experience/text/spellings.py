"""How vocabularies spell the bytes that their tokens stand for."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

_PRINTED = tuple(chain(range(ord("!"), ord("~") + 1), range(ord("¡"), ord("¬") + 1), range(ord("®"), ord("ÿ") + 1)))
"""Bytes that the alphabet of GPT-2 writes as the character of that number; the others are, in their order, those from
256 on. See `bytes_to_unicode` of https://github.com/openai/gpt-2/blob/master/src/encoder.py."""
_OTHERS = tuple(byte for byte in range(256) if byte not in _PRINTED)
_ALPHABET = {chr(byte): byte for byte in _PRINTED} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
_SPACE = "▁"
"""For a space, in the vocabularies of SentencePiece."""
_SPACE_BYTE = next(letter for letter, byte in _ALPHABET.items() if byte == ord(" "))

Spelling = Callable[[str], bytes | None]
"""The bytes of a token by its name; None where that does not tell."""
PROBE = "a b"


def spelling_of(names: str) -> Spelling:
    """That of a vocabulary, by the names, put together, of the tokens that `PROBE` is encoded to."""
    if _SPACE_BYTE in names:
        return _bytes
    return _words if _SPACE in names else _unknown


def _bytes(name: str) -> bytes | None:
    known = [_ALPHABET.get(letter) for letter in name]
    return None if None in known else bytes(byte for byte in known if byte is not None)


def _words(name: str) -> bytes:
    return name.replace(_SPACE, " ").encode()


def _unknown(name: str) -> None:
    return None
