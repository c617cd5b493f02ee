"""Demonstrations and pairs of responses: read, checked and tokenised before a model is loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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

logger = logging.getLogger(__name__)


def read_demonstrations(
    config: SFTDataConfig, tokenizer: Any, *, file: str | None = None, end_token_id: int, max_context: int | None
) -> list[PackRow]:
    """One row a line of `file` (`config.train` unless given): prompt, response, `end_token_id`. The response and the
    end enter the loss.

    `tokenizer`: a Hugging Face tokenizer; chat messages are rendered by its template, as they are for generation.
    Raises ConfigError naming the file, the line and the mend.
    """
    columns = {"response_column": config.response_column}
    path = file or config.train
    lines = _read(path, config.prompt_column, columns, tokenizer, end_token_id, max_context)
    return [row for _, (row,) in lines]


def read_pairs(
    config: PairDataConfig,
    tokenizer: Any,
    *,
    file: str | None = None,
    end_token_id: int,
    max_context: int | None,
    compares: bool = True,
) -> list[tuple[PackRow, PackRow]]:
    """The chosen and the rejected response to one prompt a line; as `read_demonstrations` otherwise.

    `compares`: the loss is one of the difference between the two. Then lines where they are the same tokens are left
    out, and told: that difference is constant, so they have no gradient, and would only weigh down the mean.
    """
    columns = {"chosen_column": config.chosen_column, "rejected_column": config.rejected_column}
    path = file or config.train
    lines = _read(path, config.prompt_column, columns, tokenizer, end_token_id, max_context)
    pairs = [(chosen, rejected) for _, (chosen, rejected) in lines]
    alike = [compares and np.array_equal(chosen.tokens, rejected.tokens) for chosen, rejected in pairs]
    if all(alike):
        raise ConfigError(
            f"{path}: the rejected response of every pair is the chosen one, so there is nothing to learn; "
            "correct data.chosen_column or data.rejected_column, or the data"
        )
    if any(alike):
        first = lines[alike.index(True)][0]
        logger.warning(
            "%s: in %s of %s pairs, first in %s, the rejected response is the chosen one; they teach nothing, and are "
            "left out",
            path,
            f"{sum(alike):,}",
            f"{len(pairs):,}",
            first,
        )
    return [pair for pair, same in zip(pairs, alike, strict=True) if not same]


def _read(
    file: str,
    prompt_column: str,
    columns: Mapping[str, str],
    tokenizer: Any,
    end_token_id: int,
    max_context: int | None,
) -> list[tuple[str, list[PackRow]]]:
    """For each line its name, and a row for each of `columns`, by the section's key that names it."""
    path = Path(file)
    dataset = PromptDataset.from_jsonl(
        path, prompt_column=prompt_column, id_column=None, required_columns=tuple(columns.values())
    )
    prompts = list(dataset)
    texts = [[_response(prompt, column, key, path) for prompt in prompts] for key, column in columns.items()]
    responses = [_encode(column, tokenizer) for column in texts]
    lines = []
    for prompt, before, *after in zip(prompts, _encode_prompts(prompts, tokenizer, path), *responses, strict=True):
        rows = [_row(before, [*response, end_token_id]) for response in after]
        longest = max(map(len, rows))
        if max_context is not None and longest > max_context:
            raise ConfigError(
                f"{_line(prompt, path)} has {longest} tokens with its response, and the model's context holds "
                f"{max_context}; shorten it, or remove the line"
            )
        lines.append((f"line {prompt.prompt_id}", rows))
    return lines


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
