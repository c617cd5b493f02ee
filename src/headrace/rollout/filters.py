"""Which finished groups are worth training on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headrace.config.errors import ConfigError
from headrace.experience.sample import Group
from headrace.rollout.failures import describe_exception
from headrace.rollout.plugins import load_function

BUILTIN_FILTERS = ("zero_spread",)

logger = logging.getLogger(__name__)


class Filter(Protocol):
    def __call__(self, group: Group) -> str | None:
        """Why `group` is dropped, in one short word that can be counted; None keeps it."""


def zero_spread(group: Group) -> str | None:
    """Drop a group whose trainable samples all have the same reward: relative to each other, none tells anything."""
    rewards = [sample.reward for sample in group.trainable if sample.reward is not None]
    return "zero_spread" if not rewards or min(rewards) == max(rewards) else None


@dataclass(frozen=True)
class UserFilter:
    """A user's `f(group) -> bool`, True to keep. Its drops are counted under the function's name."""

    name: str
    keep: Callable[[Group], object]

    def __call__(self, group: Group) -> str | None:
        return None if self.keep(group) else self.name


def load_filters(specs: Sequence[str]) -> tuple[Filter, ...]:
    """The filters that `rollout.filters` names. Raises ConfigError."""
    return tuple(_load(spec) for spec in specs)


def drop_reason(filters: Sequence[Filter], group: Group) -> str | None:
    """The first reason to drop `group`, or None. A filter that raises drops it too: `filter_error`."""
    for rule in filters:
        try:
            reason = rule(group)
        except Exception as error:
            logger.warning("a filter failed on group %s: %s", group.key, describe_exception(error))
            return "filter_error"
        if reason is not None:
            return reason
    return None


def _load(spec: str) -> Filter:
    if spec == "zero_spread":
        return zero_spread
    if ":" not in spec:
        raise ConfigError(f"rollout.filters has {spec!r}; write {', '.join(BUILTIN_FILTERS)} or path.py:function")
    return UserFilter(spec.rpartition(":")[2], load_function(spec, "rollout.filters", ("group",)))
