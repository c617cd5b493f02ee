"""Whole conversations as samples of supervised fine-tuning, with the loss on what chosen roles said."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from headrace.config import ConfigError
from headrace.config.data import SourceConfig
from headrace.config.sft import SFTDataConfig
from headrace.experience.prompts.dataset import open_prompts
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.loss_spans import LossTurns, Part, conversation_parts
from headrace.experience.text.tokens import TextCodec
from headrace.models.packing import PackRow
from headrace.offline.sample_lengths import fitting


def read_conversations(
    config: SFTDataConfig,
    template: ChatTemplate,
    *,
    sources: Sequence[SourceConfig] | None = None,
    roles: Collection[str],
    turns: LossTurns,
    end_token_id: int,
    stop_token_ids: Collection[int],
    max_context: int | None,
) -> list[PackRow]:
    """One row a line of `sources` (those of `config.train` unless given), or one for each turn in the loss, if they are
    `split`.

    What is in the loss is tokenised apart from what is not, as when the model generates it, without a space that the
    whole has not. A turn's loss ends with that of `stop_token_ids` which the template closes it with; `end_token_id` is
    added to a sample whose last turn it does not close. Raises ConfigError naming the file, the line and the mend.
    """
    assert config.messages_column is not None
    samples: list[tuple[str, list[Part]]] = []
    for source in sources or config.sources:
        try:
            prompts = open_prompts(source, prompt_column=config.messages_column, tools_column=config.tools_column)
        except ConfigError as error:  # which takes the column for that of prompts
            words = str(error).replace("prompt column", "column").replace("data.prompt_column", "data.messages_column")
            raise ConfigError(words) from error
        for place, prompt in enumerate(prompts):
            name = prompts.name_of(place)
            try:
                if isinstance(prompt.content, str):
                    raise ValueError(f"column {config.messages_column!r} is text; give a list of chat messages")
                made = conversation_parts(template, prompt.content, prompt.tools, roles, turns)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from error
            samples += [(name, sample) for sample in made]
    texts = [part.text for _, parts in samples for part in parts]
    before = [each.text if each else None for _, parts in samples for each in (None, *parts[:-1])]
    ids = iter(TextCodec(template.tokenizer, template).encode_texts(texts, before))
    stops = frozenset(stop_token_ids)
    lines = []
    for name, parts in samples:
        row = _row([(next(ids), part.in_loss) for part in parts], stops, end_token_id)
        if row is None:
            raise ConfigError(f"{name}: there is no token in the loss; correct the line, or remove it")
        lines.append((name, [row]))
    sources, bos = sources or config.sources, template.tokenizer.bos_token_id
    fit = fitting(lines, config, sources, max_context, bos_token_id=bos, what="samples")
    return [row for _, (row,) in fit]


def _row(parts: Sequence[tuple[list[int], bool]], stops: frozenset[int], end_token_id: int) -> PackRow | None:
    """None if nothing is in the loss. What comes after the last token in the loss is left out."""
    tokens: list[int] = []
    mask: list[bool] = []
    for ids, in_loss in parts:
        chosen = _turn_tokens(ids, stops) if in_loss else 0
        tokens += ids
        mask += [True] * chosen + [False] * (len(ids) - chosen)
    if not any(mask):
        return None
    end = max(place for place, chosen in enumerate(mask) if chosen) + 1
    tokens, mask = tokens[:end], mask[:end]
    if tokens[-1] not in stops:
        tokens, mask = [*tokens, end_token_id], [*mask, True]
    return PackRow(tokens=np.asarray(tokens, dtype=np.int32), mask=np.asarray(mask, dtype=np.bool_))


def _turn_tokens(ids: Sequence[int], stops: frozenset[int]) -> int:
    """How many tokens are the turn's own: up to the one that closes it, if any, since what the template puts after that
    is nobody's."""
    places = [place for place, token in enumerate(ids) if token in stops]
    return places[-1] + 1 if places else len(ids)
