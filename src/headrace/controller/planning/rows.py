"""The prompts of a run, training's and those of its held-out sets: read, and made to fit the context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from headrace.config import TrainConfig
from headrace.config.data import SourceConfig
from headrace.config.reward import RewardConfig
from headrace.controller.planning.context_room import Fit, Room
from headrace.controller.planning.prompt_notes import told_of
from headrace.experience.prompts.dataset import PromptDataset, open_prompts
from headrace.plugins.named import Given
from headrace.rewards.reward_pool import RewardPool
from headrace.rewards.row_checks import check_rows, read_columns, required_columns
from headrace.runtime.inline import SystemClock


@dataclass(frozen=True, slots=True)
class Fits:
    """What was found of the prompts' lengths."""

    prompts: Fit
    held_out: Mapping[str, Fit]


@dataclass(frozen=True, slots=True)
class Rows:
    prompts: PromptDataset
    """Without a row where the run trains on a record."""
    held_out: Mapping[str, PromptDataset]
    """By the name of the set, as all that is of held-out sets."""

    @property
    def sets(self) -> tuple[PromptDataset, ...]:
        """All of them."""
        return self.prompts, *self.held_out.values()

    def fits(self, config: TrainConfig, room: Room) -> Fits:
        """Raises ConfigError as `Room.check`."""
        key, limit = "rollout.sampling.max_new_tokens", config.rollout.sampling.max_new_tokens
        prompts, held_out = room.check(self.prompts, config.data.described, key, limit), {}
        for each in config.held_out:
            its_key = key if each.max_new_tokens == limit else f"{each.key}.max_new_tokens"
            held_out[each.name] = room.check(self.held_out[each.name], each.source.path, its_key, each.max_new_tokens)
        return Fits(prompts, held_out)

    def counts(self, fits: Fits) -> dict[str, tuple[int, Fit]]:
        """Number of prompts, and what was found of them, by what they are called."""
        held_out = {told_of(name): (len(rows), fits.held_out[name]) for name, rows in self.held_out.items()}
        return {"prompts": (len(self.prompts), fits.prompts), **held_out}

    def without_too_long(self, fits: Fits) -> Rows:
        """Those that fit."""
        held_out = {name: rows.without(fits.held_out[name].too_long) for name, rows in self.held_out.items()}
        return Rows(self.prompts.without(fits.prompts.too_long), held_out)


def read_rows(config: TrainConfig, *, is_recorded: bool) -> Rows:
    """`is_recorded`: the run trains on a record, and has no prompts but those of held-out sets. Raises ConfigError."""
    prompts = PromptDataset()
    if not is_recorded:
        prompts = open_sources(config, config.data.sources, config.data.prompt_column, config.reward, orders=True)
    return Rows(
        prompts,
        {each.name: open_sources(config, (each.source,), each.prompt_column, each.reward) for each in config.held_out},
    )


def open_sources(
    config: TrainConfig,
    sources: Sequence[SourceConfig],
    prompt_column: str,
    reward: RewardConfig,
    *,
    orders: bool = False,
) -> PromptDataset:
    """`orders`: the rows are drawn in the curriculum's order. Raises ConfigError."""
    # An environment gives the rewards of its episodes itself, as a rule, and so does an agent.
    scores = config.rollout.environment is None and config.rollout.agent is None
    return PromptDataset(
        *(
            open_prompts(
                source,
                prompt_column=prompt_column,
                id_column=config.data.id_column,
                tools_column=config.data.tools_column,
                required_columns=required_columns(reward) if scores else (),
                read_columns=read_columns(reward) if scores else (),
                check=partial(check_rows, reward) if scores else None,
                numbers=config.data.curriculum.column if orders else None,
                name=source.called if len(sources) > 1 else "",
            )
            for source in sources
        )
    )


async def check_rewards(config: TrainConfig, rows: Rows, given: Given) -> None:
    """Load the reward functions where they will run: in processes of their own, of which one will do. Raises
    ConfigError."""
    scored = [(config.reward, rows.prompts), *((each.reward, rows.held_out[each.name]) for each in config.held_out)]
    done: list[RewardConfig] = []
    for reward, prompts in scored:
        if not len(prompts) or reward in done:
            continue
        done.append(reward)
        alone = reward.model_copy(update={"workers": 1})
        pool = RewardPool(alone, clock=SystemClock(), columns=tuple(prompts[0].row), given=given)
        try:
            await pool.start()
        finally:
            await pool.close()
