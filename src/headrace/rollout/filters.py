"""Which finished groups are worth training on."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.config.errors import ConfigError
from headrace.config.filters import (
    FilterConfig,
    FunctionFilter,
    LengthFilter,
    RepetitionFilter,
    RewardRangeFilter,
    StalenessFilter,
)
from headrace.experience.header import GroupHeader
from headrace.experience.sample import Group, Sample
from headrace.plugins.named import NOTHING_GIVEN, Given, load_function
from headrace.plugins.raised import describe_exception
from headrace.runtime.refs import RefLost

BUILTIN_FILTERS = ("zero_spread",)
"""Those that have no parameters."""


class _NoVerdict(TypeError):
    """What a filter of the user's own returned is neither True nor False."""


Whole = Callable[[], Group]
"""Loads a group's tokens, for a filter that looks at them."""


DROPPED_AS = "headrace.dropped_as"
"""In the metadata of a group's first sample: the rollout function, or the filter of its buffer, did not want it."""


class Filter(Protocol):
    def __call__(self, group: GroupHeader, whole: Whole, batch: int, /) -> str | None:
        """Why `group` is dropped, in one short word that can be counted; None keeps it. `batch`: the earliest that it
        could be trained in."""


def zero_spread(group: GroupHeader, whole: Whole, batch: int) -> str | None:
    """Drop a group whose episodes all have the same reward: relative to each other, none tells anything."""
    rewards = _rewards(group)
    return "zero_spread" if not rewards or min(rewards) == max(rewards) else None


@dataclass(frozen=True)
class RewardRange:
    """Drops a group whose mean reward over its episodes is outside of the range, or that has none."""

    config: RewardRangeFilter

    def __call__(self, group: GroupHeader, whole: Whole, batch: int) -> str | None:
        rewards = _rewards(group)
        low, high = self.config.low, self.config.high
        if not rewards:
            return "reward_range"
        mean = sum(rewards) / len(rewards)
        return "reward_range" if (low is not None and mean < low) or (high is not None and mean > high) else None


@dataclass(frozen=True)
class Length:
    """Drops a group by how many tokens the policy chose in its trainable samples."""

    config: LengthFilter

    def __call__(self, group: GroupHeader, whole: Whole, batch: int) -> str | None:
        least, most = self.config.min_tokens or 0, self.config.max_tokens
        lengths = [sample.response_tokens for sample in group.trainable]
        share = _share(length < least or _exceeds(length, most) for length in lengths)
        return "length" if share > self.config.share else None


@dataclass(frozen=True)
class Repetition:
    """Drops a group by how much its trainable samples repeat themselves."""

    config: RepetitionFilter

    def __call__(self, group: GroupHeader, whole: Whole, batch: int) -> str | None:
        ngram, most = self.config.ngram, self.config.max_repeated
        share = _share(repeated_share(sample, ngram) > most for sample in whole().trainable)
        return "repetition" if share > self.config.share else None


@dataclass(frozen=True)
class Staleness:
    """Drops a group that is too old: in the earliest batch that could train it, a token would be too stale."""

    config: StalenessFilter

    def __call__(self, group: GroupHeader, whole: Whole, batch: int) -> str | None:
        oldest = min((span.number for sample in group.trainable for span in sample.spans), default=batch)
        return "staleness" if batch - oldest > self.config.max_staleness else None


@dataclass(frozen=True)
class UserFilter:
    """A user's `f(group) -> bool`, True to keep. Its drops are counted under the function's name."""

    name: str
    keep: Callable[[Group], object]

    def __call__(self, group: GroupHeader, whole: Whole, batch: int) -> str | None:
        return None if self._is_kept(self.keep(whole())) else self.name

    def _is_kept(self, verdict: object) -> bool:
        """Raises an error unless it is a bool, also one of numpy's or torch's."""
        item = getattr(verdict, "item", None)
        plain = item() if callable(item) else verdict
        if isinstance(plain, bool):
            return plain
        raise _NoVerdict(
            f"the filter {self.name} returned {reprlib.repr(verdict)} ({type(verdict).__name__}); return True to keep "
            "the group, or False to drop it"
        )


def not_taken(group: GroupHeader, whole: Whole, batch: int) -> str | None:
    """Drop a group that a rollout function or the filter of its buffer did not want, for the reason that it has."""
    reasons = [sample.metadata.get(DROPPED_AS) for sample in whole().samples]
    return next((str(reason) for reason in reasons if reason is not None), None)


def looks_inside(rule: Filter) -> bool:
    """Whether it looks at more than a header."""
    return rule is not_taken or isinstance(rule, UserFilter | Repetition)


def repeated_share(sample: Sample, ngram: int) -> float:
    """Of the runs of `ngram` tokens that the policy chose, the share that was there before; 0 if there is none.

    Tokens between which the policy was given others count as neighbours.
    """
    tokens = sample.tokens[sample.loss_mask]
    count = len(tokens) - ngram + 1
    if count <= 0:
        return 0.0
    runs = np.lib.stride_tricks.sliding_window_view(tokens, ngram)
    return 1.0 - len(np.unique(runs, axis=0)) / count


def load_filters(
    specs: Sequence[FilterConfig], given: Given = NOTHING_GIVEN, *, has_function: bool = False
) -> tuple[Filter, ...]:
    """The filters that `rollout.filters` names; `has_function`: behind what a rollout function drops. Raises
    ConfigError."""
    first = (not_taken,) if has_function else ()
    return (*first, *(_load(spec, given) for spec in specs))


def drop_reason(
    filters: Sequence[Filter],
    group: GroupHeader,
    whole: Whole,
    batch: int,
    failed: Callable[[str], None] = lambda words: None,
) -> str | None:
    """The first reason to drop `group`, or None. `whole` is called if a filter looks at tokens. A filter that raises
    drops it too: `filter_error`; `failed` is told why. `batch`: the earliest that it could be trained in."""
    for rule in filters:
        try:
            reason = rule(group, whole, batch)
        except RefLost:
            raise
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a Rust extension that panics, say
            failed(str(error) if isinstance(error, _NoVerdict) else describe_exception(error))
            return "filter_error"
        if reason is not None:
            return reason
    return None


def _load(spec: FilterConfig, given: Given) -> Filter:
    match spec:
        case RewardRangeFilter():
            return RewardRange(spec)
        case LengthFilter():
            return Length(spec)
        case RepetitionFilter():
            return Repetition(spec)
        case StalenessFilter():
            return Staleness(spec)
        case FunctionFilter():
            return _user_filter(spec.function, spec.arguments, given)
        case "zero_spread":
            return zero_spread
    if ":" not in spec:
        raise ConfigError(
            f"rollout.filters has {spec!r}; write {', '.join(BUILTIN_FILTERS)} or path.py:function, or a mapping with "
            "type: reward_range, length, repetition, staleness or function"
        )
    return _user_filter(spec, {}, given)


def _user_filter(spec: str, arguments: Mapping[str, object], given: Given) -> Filter:
    function = load_function(spec, "rollout.filters", ("group",), tuple(arguments), given=given)
    return UserFilter(spec.rpartition(":")[2], lambda group: function(group, **arguments))


def _rewards(group: GroupHeader) -> list[float]:
    """Of each episode that has one, that of its last trainable sample."""
    return [*{sample.episode: sample.reward for sample in group.trainable if sample.reward is not None}.values()]


def _share(are_so: Iterable[bool]) -> float:
    """Of the samples; 0 if there are none."""
    found = list(are_so)
    return sum(found) / len(found) if found else 0.0


def _exceeds(value: int, most: int | None) -> bool:
    return most is not None and value > most
