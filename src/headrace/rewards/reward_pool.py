"""The rewards of a run: who judges each term of a row, and their sum."""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.config.errors import ConfigError
from headrace.config.reward import CODE_PATIENCE, CODE_TRIES, DEFAULT_BATCH, RewardConfig, RewardTerm
from headrace.experience.failures import FailureKind, describe
from headrace.experience.text.conversation import Messages
from headrace.observe.durations import Durations
from headrace.plugins.named import NOTHING_GIVEN, Given
from headrace.rewards.gathering import Gathering, judged_together
from headrace.rewards.judge import Ask, JudgeReward
from headrace.rewards.outcome import LARGEST, SCORE, RewardOutcome, Verdict, is_reward, is_scored
from headrace.rewards.processes.killed_in_time import WorkerPool
from headrace.rewards.processes.pickled import packed
from headrace.rewards.processes.prepared import GroupScorer as GroupFunctionScorer
from headrace.rewards.processes.prepared import Scorer as PreparedScorer
from headrace.rewards.processes.prepared import scorer_of
from headrace.rewards.processes.reward_process import Launch
from headrace.rewards.remote_reward import RemoteReward
from headrace.rewards.row_checks import is_for
from headrace.rewards.tools import find_walls
from headrace.rewards.trusted import InProcess
from headrace.runtime.processors import available_processors
from headrace.runtime.protocol import Clock
from headrace.sandbox.limits import NOBODY, Limits
from headrace.sandbox.users import own_users
from headrace.sandbox.walls import Walls

_GRACE_S = 0.5
"""A process that keeps the time of its calls itself is killed so much later, if it does not."""
_MIB = 2**20
_MOST_WORKERS = 256
"""As many as may be configured."""
_NO_WALLS = Walls(tool="none", disk_bytes=0, network=True, reads=None)

Kind = Literal["plain", "code", "walled", "here", "remote", "judge"]
"""Our own or trusted functions; programs of the model; the user's functions; trusted ones that were given as objects,
in the run's process; a server; a language model."""

PromptContent = str | Messages

logger = logging.getLogger(__name__)


def worker_count(config: RewardConfig) -> int:
    """Child processes for functions of one kind."""
    return config.workers or min(available_processors(), _MOST_WORKERS)


class Scorer(Protocol):
    """What an episode needs to be scored."""

    async def score(
        self,
        response: str,
        row: dict[str, Any],
        prompt: PromptContent,
        messages: Messages | None,
        ids: NDArray[np.int32] | None,
        earlier: Sequence[Messages],
    ) -> RewardOutcome: ...


class GroupScorer(Protocol):
    """What a group needs to be scored as a whole."""

    async def score_group(
        self,
        responses: Sequence[str],
        row: dict[str, Any],
        prompt: PromptContent,
        rewards: Sequence[float | None],
        messages: Sequence[Messages | None],
    ) -> list[RewardOutcome]: ...


class Rewards(Scorer, GroupScorer, Protocol):
    """What scores all of a run's samples."""

    times: Durations
    """Of the calls that have ended."""


class Judge(Protocol):
    async def __call__(self, arguments: list[Any]) -> Verdict: ...


class RewardPool:
    """Judges samples and groups as `config` says.

    A reward that raises, hangs, ends its process, meets a limit or gives no finite number fails its own sample, with a
    reason; nothing that it does reaches another sample. Of `code`, whatever the program does to itself is a 0.
    """

    def __init__(
        self,
        config: RewardConfig,
        *,
        clock: Clock,
        log_path: Path | None = None,
        ask: Ask | None = None,
        given: Given = NOTHING_GIVEN,
        columns: Sequence[str] | None = None,
        tokens: Mapping[str, str] | None = None,
    ) -> None:
        """`log_path` takes what the reward functions print; it is thrown away unless given. `ask` answers the questions
        of judges; without it they fail every sample. `given`: functions that were given as objects. `columns` of the
        rows, where a function's parameters are to be checked against them. `tokens` of reward servers, by environment
        variable; unless given, those of this process's environment."""
        self._tokens = tokens
        self._given = given
        self._columns = None if columns is None else list(columns)
        self.times = Durations()
        """Of the calls that have ended, those that failed included; without the wait for a free process."""
        self._config = config
        self._clock = clock
        self._log_path = log_path
        self._ask = ask
        self._is_open = False
        self._terms, self._names = config.all_terms, config.term_names
        self._open = AsyncExitStack()
        self._judges: dict[int, Judge] = {}
        """By the term's place."""
        self._group: Judge | None = None

    async def start(self) -> None:
        """Launch the processes. Raises ConfigError if a function does not load or cannot be called."""
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        self._is_open = True

    async def score(
        self,
        response: str,
        row: dict[str, Any],
        prompt: PromptContent,
        messages: Messages | None = None,
        ids: NDArray[np.int32] | None = None,
        earlier: Sequence[Messages] = (),
    ) -> RewardOutcome:
        """The reward of `response`: the weighted sum over the terms of its row that apply, or the first failure among
        them. `messages` are the whole conversation, where it is more than the prompt and the response; `ids` the tokens
        after the prompt; `earlier` the conversations before this one, of an episode of several histories.

        Neither, if the group's function or the reward model alone can tell.
        """
        if not self._is_open:
            raise RuntimeError("the reward pool is not started, or closed")
        if not self._terms:
            return RewardOutcome(None)
        places = [place for place, term in enumerate(self._terms) if is_for(self._config, term, row)]
        if not places:
            column = self._config.choose_by or ""
            detail = f"no term of reward.terms is for {column} {row.get(column)!r}"
            return RewardOutcome(None, describe(FailureKind.REWARD_RAISED, detail))
        common = [response, row, prompt, messages, *([None, list(earlier)] if earlier else [])]
        of_trl = [*common[:4], [] if ids is None else ids.tolist()]
        asked = {place: of_trl if self._terms[place].style == "trl" else common for place in places}
        if len(places) == 1:  # without a task of its own: most runs have one term, and a call for each sample
            verdicts = [await self._judges[places[0]](asked[places[0]])]
        else:
            verdicts = await asyncio.gather(*(self._judges[place](asked[place]) for place in places))
        if len(self._terms) == 1 and self._terms[0].weight == 1.0 and self._config.model.path is None:
            outcome = _outcome(verdicts[0])
            return outcome if outcome.value is not None or outcome.failure else _none_applies()
        judged = [
            (self._names[place], self._terms[place], verdict) for place, verdict in zip(places, verdicts, strict=True)
        ]
        return _sum(judged)

    async def score_group(
        self,
        responses: Sequence[str],
        row: dict[str, Any],
        prompt: PromptContent,
        rewards: Sequence[float | None],
        messages: Sequence[Messages | None] | None = None,
    ) -> list[RewardOutcome]:
        """The rewards of all samples of a group. `rewards` are those of `score`, `messages` each as there. A failure is
        that of every sample."""
        if self._group is None:
            raise RuntimeError("no reward.group is given, or the pool is not started, or closed")
        each = [None] * len(responses) if messages is None else list(messages)
        value, failure = await self._group([list(responses), row, prompt, list(rewards), each])
        if isinstance(value, list) and len(value) == len(responses) and all(map(is_reward, value)):
            return [RewardOutcome(reward) for reward in value]
        failure = failure or describe(FailureKind.REWARD_NAN, "the group's rewards are no list of finite numbers")
        return [RewardOutcome(None, failure)] * len(responses)

    async def close(self) -> None:
        """Kill every process and cancel every call, as if its caller had been cancelled. Idempotent."""
        self._judges, self._group, self._is_open = {}, None, False
        await self._open.aclose()

    async def _start(self) -> None:
        places: dict[Kind, list[int]] = {kind: [] for kind in get_args(Kind)}
        for place, term in enumerate(self._terms):
            places[self._kind_of(term.function)].append(place)
        group = self._config.group
        home = None if group is None else self._kind_of(group)
        for kind in ("plain", "code", "walled"):
            if places[kind] or kind == home:
                await self._add_pool(kind, places[kind], group if kind == home else None)
        if places["here"] or home == "here":
            self._add_in_process(places["here"], group if home == "here" else None)
        for place in places["remote"]:
            remote = RemoteReward(self._terms[place].remote, self._clock, self._tokens)
            self._open.push_async_callback(remote.close)
            await remote.start()
            self._judges[place] = self._timed(remote.judge)
        for place in places["judge"]:
            self._judges[place] = self._timed(JudgeReward(self._terms[place].judge, self._ask, self._clock).judge)

    def _timed(self, judge: Judge) -> Judge:
        async def timed(arguments: list[Any]) -> Verdict:
            began = self._clock.now()
            verdict = await judge(arguments)
            self.times.add(self._clock.now() - began)
            return verdict

        return timed

    def _kind_of(self, function: str) -> Kind:
        match function:
            case "code" | "remote" | "judge":
                return function
        if function in self._given and self._config.trusted:
            return "here"
        return "walled" if ":" in function and not self._config.trusted else "plain"

    def _add_in_process(self, places: Sequence[int], group: str | None) -> None:
        """Trusted functions that were given as objects."""
        terms = [self._terms[place].model_dump(mode="json") for place in places]
        scorers: list[PreparedScorer] = [scorer_of(term, columns=self._columns, given=self._given) for term in terms]
        if group is not None:
            scorers.append(GroupFunctionScorer(group, self._given))
        here = InProcess(scorers, timeout_s=self._config.timeout_s, clock=self._clock, times=self.times)
        self._open.push_async_callback(here.close)
        for position, place in enumerate(places):
            self._add_judge(place, partial(here.ask, position), at_once=1)
        if group is not None:
            self._group = partial(here.ask, len(places))

    def _add_judge(self, place: int, ask: Judge, *, at_once: int) -> None:
        """Of a term, whose process or thread is asked by `ask`; so many calls are answered at the same time."""
        term = self._terms[place]
        if term.style != "batched":
            self._judges[place] = ask
            return
        gathering = Gathering(
            partial(judged_together, ask), at_once=at_once, most=term.batch or DEFAULT_BATCH, what="batched reward"
        )
        self._open.push_async_callback(gathering.close)
        gathering.start()
        self._judges[place] = gathering.judge

    async def _add_pool(self, kind: Kind, places: Sequence[int], group: str | None) -> None:
        terms = [self._terms[place] for place in places]
        functions = [f"reward.function {term.function!r}" for term in terms]
        own = [term.function for term in terms] + ([] if group is None else [group])
        setup = {**self._setup(forks=kind == "walled"), "terms": [term.model_dump(mode="json") for term in terms]}
        for term in setup["terms"]:
            term["function"] = os.path.expanduser(term["function"])  # the process knows no home
        setup["columns"] = self._columns
        if kind == "code":
            setup["walls"] = asdict(await self._walls())
            setup["host"] = {"patience": CODE_PATIENCE, "tries": CODE_TRIES}
        count, longest_s = worker_count(self._config), self._config.code_s if kind == "code" else self._config.timeout_s
        users = [NOBODY] * count if kind == "plain" else self._open.enter_context(own_users(count))
        walls = await self._walls(own) if kind == "walled" else _NO_WALLS
        setup["network"] = "host" if walls.network else "this"
        try:
            setup["given"] = packed(self._given, own)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        pool = WorkerPool(
            Launch(
                what=", ".join([*functions, *([] if group is None else [f"reward.group {group!r}"])]),
                setup={**setup, "group": None if group is None else os.path.expanduser(group)},
                walls=walls,
                environment=self._environment() if kind == "walled" else None,
                log_path=self._log_path,
            ),
            users=users,
            timeout_s=longest_s + (0.0 if kind == "plain" else _GRACE_S),
            clock=self._clock,
            times=self.times,
        )
        self._open.push_async_callback(pool.close)
        await pool.start()
        for position, place in enumerate(places):
            self._add_judge(place, partial(pool.ask, position), at_once=count)
        if group is not None:
            self._group = partial(pool.ask, len(places))

    def _environment(self) -> dict[str, str]:
        names = ("PYTHONPATH", *self._config.sandbox.environment)  # the path is forgotten once all is loaded
        return {name: os.environ[name] for name in names if name in os.environ}

    def _setup(self, *, forks: bool) -> dict[str, Any]:
        sandbox = self._config.sandbox
        limits = Limits(
            memory_bytes=sandbox.memory_mib * _MIB,
            processes=sandbox.processes,
            open_files=sandbox.open_files,
            file_bytes=sandbox.disk_mib * _MIB,
            cpu_s=math.ceil(self._config.timeout_s) + 1,
        )
        return {"forks": forks, "limits": asdict(limits), "timeout_s": self._config.timeout_s, "walls": None}

    async def _walls(self, functions: Sequence[str] = ()) -> Walls:
        """Around the user's `functions`, or around programs of the model if there are none."""
        walls = await find_walls(self._config.sandbox, self._clock, own_function=bool(functions), functions=functions)
        if not walls.stand and self._config.sandbox.tool == "auto":
            logger.warning(
                "neither bubblewrap nor nsjail nor namespaces work here: code that is judged has limits, but it reads "
                "files and reaches the network"
            )
        return walls


def _outcome(verdict: Verdict) -> RewardOutcome:
    """Of a reward that does not apply neither value nor failure."""
    value, failure = verdict
    if failure is None and is_scored(value):
        return RewardOutcome(value.get(SCORE), terms={name: one for name, one in value.items() if name != SCORE})
    if failure is None and not is_reward(value):
        return RewardOutcome(None, describe(FailureKind.REWARD_NAN, _not_a_reward(value)))
    return RewardOutcome(value if isinstance(value, float) else None, failure)


def _none_applies() -> RewardOutcome:
    return RewardOutcome(None, describe(FailureKind.REWARD_NAN, "it is None: no reward applies to the sample"))


def _not_a_reward(value: object) -> str:
    if not isinstance(value, float) or not math.isfinite(value):
        return "the reward is no finite number"
    return f"the reward is {value:g}, which is beyond {LARGEST:g}; scale it"


def _sum(judged: Sequence[tuple[str, RewardTerm, Verdict]]) -> RewardOutcome:
    """Of (name, term, its verdict)."""
    values: dict[str, float] = {}
    total, applies = 0.0, False
    for name, term, verdict in judged:
        outcome = _outcome(verdict)
        if outcome.value is None and outcome.failure is None:
            continue
        if outcome.value is None:
            kind, _, detail = (outcome.failure or "").partition(": ")
            return RewardOutcome(None, describe(FailureKind(kind), f"{term.function}: {detail}"))
        total += term.weight * outcome.value
        values[name] = outcome.value
        values |= {f"{name}.{metric}": value for metric, value in outcome.terms.items()}
        applies = True
    if not applies:
        return _none_applies()
    return replace(_outcome((total, None)), terms=values)
