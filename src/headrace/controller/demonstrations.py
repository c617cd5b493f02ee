"""Demonstrations and pairs of responses: read, checked and tokenised before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import ConfigError
from headrace.config.pairs import PairDataConfig
from headrace.config.sft import SFTDataConfig
from headrace.experience.dataset import Prompt, PromptDataset
from headrace.models.packing import PackRow
from headrace.rollout.tokens import TextCodec


def read_demonstrations(
    config: SFTDataConfig, tokenizer: Any, *, end_token_id: int, max_context: int | None
) -> list[PackRow]:
    """One row a line of `config.train`: prompt, response, `end_token_id`. The response and the end enter the loss.

    `tokenizer`: a Hugging Face tokenizer; chat messages are rendered by its template, as they are for generation.
    Raises ConfigError naming the file, the line and the mend.
    """
    columns = (config.response_column,)
    keys = ("response_column",)
    return [
        row for (row,) in _read(config.train, config.prompt_column, columns, keys, tokenizer, end_token_id, max_context)
    ]


def read_pairs(
    config: PairDataConfig, tokenizer: Any, *, end_token_id: int, max_context: int | None
) -> list[tuple[PackRow, PackRow]]:
    """The chosen and the rejected response to one prompt a line; as `read_demonstrations` otherwise."""
    columns = (config.chosen_column, config.rejected_column)
    keys = ("chosen_column", "rejected_column")
    return [
        (chosen, rejected)
        for chosen, rejected in _read(
            config.train, config.prompt_column, columns, keys, tokenizer, end_token_id, max_context
        )
    ]


def _read(
    file: str,
    prompt_column: str,
    columns: Sequence[str],
    keys: Sequence[str],
    tokenizer: Any,
    end_token_id: int,
    max_context: int | None,
) -> list[list[PackRow]]:
    """For each line a row for each of `columns`, which the section's `keys` name."""
    path = Path(file)
    dataset = PromptDataset.from_jsonl(
        path, prompt_column=prompt_column, id_column=None, required_columns=tuple(columns)
    )
    prompts = list(dataset)
    texts = [
        [_response(prompt, column, key, path) for prompt in prompts] for column, key in zip(columns, keys, strict=True)
    ]
    responses = [_encode(column, tokenizer) for column in texts]
    rows = []
    for prompt, before, *after in zip(prompts, _encode_prompts(prompts, tokenizer, path), *responses, strict=True):
        line = [_row(before, [*response, end_token_id]) for response in after]
        longest = max(map(len, line))
        if max_context is not None and longest > max_context:
            raise ConfigError(
                f"{_line(prompt, path)} has {longest} tokens with its response, and the model's context holds "
                f"{max_context}; shorten it, or remove the line"
            )
        rows.append(line)
    return rows


def _response(prompt: Prompt, column: str, key: str, path: Path) -> str:
    response = prompt.row[column]
    if not isinstance(response, str) or not response:
        raise ConfigError(
            f"{_line(prompt, path)}: the response in column {column!r} is {response!r}; give the text that the model "
            f"is to answer, or set data.{key} to the column that has it"
        )
    return response


def _encode_prompts(prompts: Sequence[Prompt], tokenizer: Any, path: Path) -> list[Sequence[int] | NDArray[np.int32]]:
    """Ids of every prompt. Text goes to the tokenizer all at once, which is many times faster than one by one."""
    texts = [prompt.content for prompt in prompts if isinstance(prompt.content, str)]
    encoded = iter(_encode(texts, tokenizer, special_tokens=True))
    codec = TextCodec(tokenizer)
    ids: list[Sequence[int] | NDArray[np.int32]] = []
    for prompt in prompts:
        try:
            ids.append(next(encoded) if isinstance(prompt.content, str) else codec.encode(prompt.content))
        except ValueError as error:
            raise ConfigError(f"{_line(prompt, path)}: {error}") from error
        if len(ids[-1]) == 0:
            raise ConfigError(f"{_line(prompt, path)}: the prompt {prompt.content!r} is encoded to no tokens")
    return ids


def _encode(texts: list[str], tokenizer: Any, *, special_tokens: bool = False) -> list[list[int]]:
    return list(tokenizer(texts, add_special_tokens=special_tokens)["input_ids"]) if texts else []


def _row(prompt: Sequence[int] | NDArray[np.int32], response: list[int]) -> PackRow:
    tokens = np.concatenate([np.asarray(prompt, dtype=np.int32), np.asarray(response, dtype=np.int32)])
    return PackRow(tokens=tokens, mask=np.arange(len(tokens)) >= len(prompt))


def _line(prompt: Prompt, path: Path) -> str:
    """A prompt without an id of its own is called by its line number."""
    return f"{path}, line {prompt.prompt_id}"
