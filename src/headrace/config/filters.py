"""Filters of groups, told apart by `type`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from headrace.config.base import Section
from headrace.config.values.name_or_function import tag_of


class RewardRangeFilter(Section):
    """Drops groups whose mean reward is outside of [low, high]."""

    type: Literal["reward_range"]
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> RewardRangeFilter:
        if self.low is None and self.high is None:
            raise ValueError("reward_range needs low, high or both")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"reward_range has low {self.low:g} above high {self.high:g}: no group would be kept")
        return self


class LengthFilter(Section):
    """Drops groups of which more than `share` of the responses are too short or too long."""

    type: Literal["length"]
    min_tokens: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    share: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _is_a_range(self) -> LengthFilter:
        if self.min_tokens is None and self.max_tokens is None:
            raise ValueError("length needs min_tokens, max_tokens or both")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"length has min_tokens {self.min_tokens} above max_tokens {self.max_tokens}: no group would be kept"
            )
        return self


class RepetitionFilter(Section):
    """Drops groups of which more than `share` of the responses repeat themselves: more than `max_repeated` of their
    runs of `ngram` tokens were there before."""

    type: Literal["repetition"]
    ngram: int = Field(default=8, ge=1)
    max_repeated: float = Field(default=0.5, ge=0, lt=1)
    share: float = Field(default=0.0, ge=0, lt=1)


class StalenessFilter(Section):
    """Drops groups with a token that would be staler than `max_staleness` in the batch that is composed when the group
    is finished. (In a later batch it may be staler: `async.max_staleness` is the bound on what is trained.)"""

    type: Literal["staleness"]
    max_staleness: int = Field(ge=0)


class FunctionFilter(Section):
    """A function of yours, called as `function(group, **arguments)`; it keeps a group by returning True."""

    type: Literal["function"]
    function: str
    """`path.py:function` or `module:function`."""
    arguments: dict[str, JsonValue] = Field(default={})


FilterConfig = Annotated[
    Annotated[str, Tag("name")]
    | Annotated[RewardRangeFilter, Tag("reward_range")]
    | Annotated[LengthFilter, Tag("length")]
    | Annotated[RepetitionFilter, Tag("repetition")]
    | Annotated[StalenessFilter, Tag("staleness")]
    | Annotated[FunctionFilter, Tag("function")],
    Discriminator(
        tag_of,
        custom_error_type="not_a_filter",
        custom_error_message=(
            "a filter is a name, or a mapping with type: reward_range, length, repetition, staleness or function"
        ),
    ),
]
"""An entry of `rollout.filters`: `zero_spread`, `path.py:function`, or one of the above."""
