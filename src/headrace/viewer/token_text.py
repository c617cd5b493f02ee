"""Text of a run's tokens, by its tokenizer's file alone: nothing of torch is imported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from headrace.config.reading.config_text import values_of
from headrace.config.values.paths import path_of

_FILE = "tokenizer.json"


class TokenTexts:
    """Where there is no tokenizer any more, tokens show as their ids."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def of_run(cls, path: Path, config_yaml: str) -> TokenTexts:
        """The tokenizer of the run's newest checkpoint, else of the model that it began with."""
        checkpoints = sorted((path / "checkpoints").glob(f"*/model/{_FILE}"), key=lambda file: file.stat().st_mtime)
        model = (values_of(config_yaml) or {}).get("model", {}).get("path", "")
        for file in (*reversed(checkpoints), path_of(str(model)) / _FILE):
            if file.is_file():
                return cls(Tokenizer.from_file(str(file)))
        return cls(None)

    def decode(self, tokens: ArrayLike) -> str:
        """Special tokens included."""
        ids = _ids(tokens)
        if self._tokenizer is None:
            return "".join(f"<{id}>" for id in ids)
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    def pieces(self, tokens: ArrayLike) -> list[str]:
        """The text that each token adds; "" of one that is part of a character that a later one completes."""
        ids = _ids(tokens)
        if self._tokenizer is None:
            return [f"<{id}>" for id in ids]
        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer, id) or "" for id in ids]


def _ids(tokens: ArrayLike) -> list[int]:
    return [int(id) for id in np.asarray(tokens).tolist()]
