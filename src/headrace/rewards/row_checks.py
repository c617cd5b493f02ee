"""What a reward needs of the rows: the columns that it reads, and whether every row has a reward at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.config.errors import ConfigError
from headrace.config.reward import RewardConfig, RewardTerm
from headrace.rewards.answers import fault_of
from headrace.rewards.builtin import BUILTIN_REWARDS
from headrace.rewards.styles import ground_truth

_OURS = (*BUILTIN_REWARDS, "code")


def required_columns(config: RewardConfig) -> tuple[str, ...]:
    """Columns that every row must have for this reward."""
    columns = [] if config.choose_by is None else [config.choose_by]
    columns += [column for term in config.all_terms if not term.rows for column in _columns_of(term)]
    return tuple(dict.fromkeys(columns))


def read_columns(config: RewardConfig) -> tuple[str, ...]:
    """Columns that `check_rows` reads, where a row has them."""
    columns = [] if config.choose_by is None else [config.choose_by]
    columns += [column for term in config.all_terms for column in _columns_of(term)]
    return tuple(dict.fromkeys(columns))


def check_rows(config: RewardConfig, rows: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Raises ConfigError for the first of `rows`, each with its name, that has no reward, or lacks a column for it, or
    has an answer that its reward cannot compare with."""
    all_terms = config.all_terms
    for term in all_terms:
        if term.answer is not None and term.function in _OURS and (fault := fault_of(term.function, term.answer)):
            raise ConfigError(f"reward.answer is no answer for {term.function}: {fault}; correct it")
    for name, row in rows:
        terms = [term for term in all_terms if is_for(config, term, row)]
        if not terms and all_terms:
            known = sorted({value for term in all_terms for value in term.rows})
            raise ConfigError(
                f"{name} has {config.choose_by} {row.get(config.choose_by or '')!r}, and no reward is for that: "
                f"reward.terms has rows {', '.join(known)}; add a term, or correct the row"
            )
        for term in terms:
            for column in _columns_of(term):
                if row.get(column) is None:
                    raise ConfigError(
                        f"{name} has no value in column {column!r}, which its reward {term.function} needs; fill it "
                        f"in, or correct {'judge.prompt' if term.function == 'judge' else 'answer_column'}"
                    )
            if term.style == "verl":
                try:
                    ground_truth(row, term.answer_column, term.answer)
                except ValueError as error:
                    raise ConfigError(f"{name}: {error}, which {term.function} (style: verl) needs") from error
            reads = term.function in _OURS and term.answer is None
            if reads and (fault := fault_of(term.function, row[term.answer_column])):
                raise ConfigError(
                    f"{name}, column {term.answer_column!r}: its reward {term.function} could not compare with that: "
                    f"{fault}; correct the row, or remove it"
                )


def is_for(config: RewardConfig, term: RewardTerm, row: dict[str, Any]) -> bool:
    """Whether `row` has this term."""
    return not term.rows or (config.choose_by is not None and str(row.get(config.choose_by)) in term.rows)


def _columns_of(term: RewardTerm) -> list[str]:
    if term.function == "judge":
        return list(term.judge.columns)
    return [term.answer_column] if term.function in _OURS and term.answer is None else []
