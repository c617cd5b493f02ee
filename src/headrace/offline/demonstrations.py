"""Demonstrations and pairs of responses: read, checked and tokenised before a model is loaded."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import ConfigError
from headrace.config.data import SourceConfig, named_all
from headrace.config.pairs import PairDataConfig
from headrace.config.sft import SFTDataConfig
from headrace.experience.prompts.dataset import Prompt, open_prompts
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import TextCodec
from headrace.models.packing import PackRow
from headrace.offline.chat_turn import ChatTurn, chat_turn
from headrace.offline.sample_lengths import fitting

logger = logging.getLogger(__name__)


def read_demonstrations(
    config: SFTDataConfig,
    tokenizer: Any,
    *,
    sources: Sequence[SourceConfig] | None = None,
    end_token_id: int,
    stop_token_ids: Collection[int] = (),
    max_context: int | None,
    template: ChatTemplate | None = None,
) -> list[PackRow]:
    """One row a line of `sources` (those of `config.train` unless given): prompt, response, `end_token_id`. The
    response and the end enter the loss.

    `tokenizer`: a Hugging Face tokenizer; chat messages are rendered by `template` (its own, unless given), as they are
    for generation. Behind these a response ends with that of `stop_token_ids` which the template closes a turn with.
    Raises ConfigError naming the file, the line and the mend.
    """
    columns = {"response_column": config.response_column}
    codec, ends = TextCodec(tokenizer, template), (end_token_id, stop_token_ids)
    lines = _read(config, sources or config.sources, columns, tokenizer, codec, ends, max_context)
    return [row for _, (row,) in lines]


def read_pairs(
    config: PairDataConfig,
    tokenizer: Any,
    *,
    sources: Sequence[SourceConfig] | None = None,
    end_token_id: int,
    stop_token_ids: Collection[int] = (),
    max_context: int | None,
    template: ChatTemplate | None = None,
    compares: bool = True,
) -> list[tuple[PackRow, PackRow]]:
    """The chosen and the rejected response to one prompt a line; as `read_demonstrations` otherwise.

    `compares`: the loss is one of the difference between the two. Then lines where they are the same tokens are left
    out, and told: that difference is constant, so they have no gradient, and would only weigh down the mean.
    """
    columns = {"chosen_column": config.chosen_column, "rejected_column": config.rejected_column}
    codec, ends = TextCodec(tokenizer, template), (end_token_id, stop_token_ids)
    lines = _read(config, sources or config.sources, columns, tokenizer, codec, ends, max_context)
    pairs = [(chosen, rejected) for _, (chosen, rejected) in lines]
    alike = [compares and np.array_equal(chosen.tokens, rejected.tokens) for chosen, rejected in pairs]
    if all(alike):
        raise ConfigError(
            f"{named_all(sources or config.sources)}: the rejected response of every pair is the chosen one, so there "
            "is nothing to learn; correct data.chosen_column or data.rejected_column, or the data"
        )
    if any(alike):
        first = lines[alike.index(True)][0]
        logger.warning(
            "in %s of %s pairs, first in %s, the rejected response is the chosen one; they teach nothing, and are left "
            "out",
            f"{sum(alike):,}",
            f"{len(pairs):,}",
            first,
        )
    return [pair for pair, same in zip(pairs, alike, strict=True) if not same]


def _read(
    config: SFTDataConfig | PairDataConfig,
    sources: Sequence[SourceConfig],
    columns: Mapping[str, str],
    tokenizer: Any,
    codec: TextCodec,
    ends: tuple[int, Collection[int]],
    max_context: int | None,
) -> list[tuple[str, list[PackRow]]]:
    """For each line its name, and a row for each of `columns`, by the section's key that names it."""
    named: list[tuple[str, Prompt]] = []
    for source in sources:
        part = open_prompts(
            source,
            prompt_column=config.prompt_column,
            required_columns=tuple(columns.values()),
            tools_column=config.tools_column,
        )
        named += [(part.name_of(place), prompt) for place, prompt in enumerate(part)]
    texts = [[_response(prompt, column, key, where) for where, prompt in named] for key, column in columns.items()]
    prompts = _encode_prompts(named, tokenizer, codec)
    before = [codec.decode(ids[-1:], keep_special_tokens=True) for ids in prompts]
    turns = _turns(named, codec.template, *ends)
    opened = [[turn.opened(text) for turn, text in zip(turns, column, strict=True)] for column in texts]
    responses = [codec.encode_texts(column, before) for column in opened]
    lines = []
    for (where, _), ids, turn, *after in zip(named, prompts, turns, *responses, strict=True):
        lines.append((where, [_row(ids, [*response, turn.end_token_id]) for response in after]))
    return fitting(lines, config, sources, max_context, bos_token_id=tokenizer.bos_token_id, what="lines")


def _turns(
    named: Sequence[tuple[str, Prompt]], template: ChatTemplate, end_token_id: int, stop_token_ids: Collection[int]
) -> list[ChatTurn]:
    """That of every prompt's response. Text has none, but that it ends with the model's end."""
    of_text = of_chat = ChatTurn(end_token_id)
    is_chat = [not isinstance(prompt.content, str) for _, prompt in named]
    if any(is_chat):
        of_chat = chat_turn(template, stop_token_ids, end_token_id)
    return [of_chat if each else of_text for each in is_chat]


def _response(prompt: Prompt, column: str, key: str, where: str) -> str:
    response = prompt.row[column]
    if not isinstance(response, str) or not response:
        raise ConfigError(
            f"{where}: the response in column {column!r} is {response!r}; give the text that the model "
            f"is to answer, or set data.{key} to the column that has it"
        )
    return response


def _encode_prompts(
    named: Sequence[tuple[str, Prompt]], tokenizer: Any, codec: TextCodec
) -> list[Sequence[int] | NDArray[np.int32]]:
    """Ids of every prompt. Text goes to the tokenizer all at once, which is many times faster than one by one."""
    texts = [prompt.content for _, prompt in named if isinstance(prompt.content, str)]
    encoded = iter(tokenizer(texts)["input_ids"] if texts else [])
    ids: list[Sequence[int] | NDArray[np.int32]] = []
    for where, prompt in named:
        try:
            is_text = isinstance(prompt.content, str)
            ids.append(next(encoded) if is_text else codec.encode(prompt.content, prompt.tools))
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        if len(ids[-1]) == 0:
            raise ConfigError(f"{where}: the prompt {prompt.content!r} is encoded to no tokens")
    return ids


def _row(prompt: Sequence[int] | NDArray[np.int32], response: list[int]) -> PackRow:
    tokens = np.concatenate([np.asarray(prompt, dtype=np.int32), np.asarray(response, dtype=np.int32)])
    return PackRow(tokens=tokens, mask=np.arange(len(tokens)) >= len(prompt))
