"""Samples of the offline trainers that are longer than may be: told, dropped or cut."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

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
    what: str,
) -> list[tuple[str, list[PackRow]]]:
    """`lines`, each a name and its rows, as `config.too_long` says; how many were too long is logged. `what` they are,
    in the plural, of `sources`. Raises ConfigError."""
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
        return [(name, [_last(row, longest) for row in rows]) for name, rows in lines]
    if len(over) == len(lines):
        raise ConfigError(
            f"all {len(lines)} {what} of {named_all(sources)} have more than {longest} tokens, and data.too_long is "
            "drop; allow longer ones"
        )
    return [(name, rows) for name, rows in lines if max(map(len, rows)) <= longest]


def _last(row: PackRow, longest: int) -> PackRow:
    return row if len(row) <= longest else replace(row, tokens=row.tokens[-longest:], mask=row.mask[-longest:])
