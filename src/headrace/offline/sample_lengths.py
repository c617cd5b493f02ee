"""Samples of the offline trainers that are longer than may be: told, dropped or cut."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.config import ConfigError
from headrace.config.data import SourceConfig, named_all
from headrace.config.pairs import PairDataConfig
from headrace.config.sft import SFTDataConfig
from headrace.models.packing import PackRow

logger = logging.getLogger(__name__)


def fitting(
    lines: Sequence[tuple[str, list[PackRow]]],
    config: SFTDataConfig | PairDataConfig,
    sources: Sequence[SourceConfig],
    max_context: int | None,
    *,
    bos_token_id: int | None,
    what: str,
) -> list[tuple[str, list[PackRow]]]:
    """`lines`, each a name and its rows, as `config.too_long` says; how many were too long is logged. `bos_token_id`
    is the token that begins every text, if any. `what` they are, in the plural, of `sources`. Raises ConfigError."""
    given = [length for length in (config.max_tokens, max_context) if length is not None]
    if not given:
        return list(lines)
    longest = min(given)
    over = [name for name, rows in lines if max(map(len, rows)) > longest]
    if not over:
        return list(lines)
    if config.too_long == "fail":
        length = max(len(row) for name, rows in lines if name == over[0] for row in rows)
        holds = (
            f"the model's context holds {longest}" if longest == max_context else f"data.max_tokens allows {longest}"
        )
        others = f" (and {len(over) - 1} more {what} have too many)" if len(over) > 1 else ""
        raise ConfigError(
            f"{over[0]} has {length} tokens with its response, and {holds}{others}; shorten it, remove "
            "the line, or set data.too_long to drop or truncate_left"
        )
    logger.warning(
        "%s: %s of %s %s are too long, with more than %s tokens (data.too_long: %s)",
        named_all(sources),
        f"{len(over):,}",
        f"{len(lines):,}",
        what,
        f"{longest:,}",
        config.too_long,
    )
    if config.too_long == "truncate_left":
        return [(name, _truncated_left(rows, longest, bos_token_id)) for name, rows in lines]
    if len(over) == len(lines):
        raise ConfigError(
            f"all {len(lines)} {what} of {named_all(sources)} have more than {longest} tokens, and data.too_long is "
            "drop; allow longer ones"
        )
    return [(name, rows) for name, rows in lines if max(map(len, rows)) <= longest]


def _truncated_left(rows: list[PackRow], longest: int, bos_token_id: int | None) -> list[PackRow]:
    """Rows of one prompt, of which as much is left in each as the longest of them leaves room for."""
    over = max(map(len, rows)) - longest
    if over <= 0:
        return rows
    begin = int(longest > 1 and bos_token_id is not None and rows[0].tokens[0] == bos_token_id)
    prompt = max(begin, min(int(row.mask.argmax()) for row in rows))
    shorter = [_without(row, begin, min(begin + over, prompt)) for row in rows]
    return [_without(row, begin, begin + max(0, len(row) - longest)) for row in shorter]


def _without(row: PackRow, begin: int, end: int) -> PackRow:
    kept = [slice(begin), slice(end, None)]
    tokens, mask = (np.concatenate([values[each] for each in kept]) for values in (row.tokens, row.mask))
    return replace(row, tokens=tokens, mask=mask)
