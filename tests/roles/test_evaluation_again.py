"""An evaluation that begins again while a server still has the requests that it left: in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import observe_samples
from rollout_helpers import PaperRewards, settings

from headrace.engines.pool import EnginePool
from headrace.engines.protocol import FinishReason, GenerateRequest, SamplingParams
from headrace.engines.servers.dialect import Expected, Piece, Span
from headrace.engines.servers.engine import Limits, ServerEngine
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.records.codec import encode_group
from headrace.experience.records.restored_refs import RestoredRefs
from headrace.experience.sample import Group
from headrace.observe.durations import Durations
from headrace.roles.reissue import Losses
from headrace.roles.rollout_seats import RolloutSeats
from headrace.roles.rollout_workers import RolloutWorkers
from headrace.roles.workers.rollout_types import Assignment
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.evaluation import Evaluation, PromptRunner
from headrace.rollout.single_turn import SingleTurn
from headrace.rollout.workflow import Workflow
from headrace.runtime.signal import Signal
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import WorkerLost
from headrace.weights.version import INITIAL

STEP_S, ABORT_S = 0.1, 3.0
PROMPTS = [Prompt(str(number), "1+1=", {}) for number in range(2)]
SAMPLES = 2
ROOM = 4 * len(PROMPTS) * SAMPLES


@dataclass
class Server:
    """A token a step and request. One that is aborted gives tokens for a while."""

    runtime: VirtualRuntime
    name: str = "a server"
    together: int | None = None
    retracts: bool = False
    count: int = 0
    asked: list[GenerateRequest] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)

    async def is_up(self) -> bool:
        return True

    async def meet(self, expected: Expected) -> None:
        pass

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        self.asked.append(request)
        sampled = 0
        while sampled < request.sampling.max_new_tokens and request.request_id not in self.aborted:
            await self.runtime.clock.sleep(STEP_S)
            self.count += 1
            sampled += 1
            yield Piece(np.full(1, 5, np.int32), np.full(1, -1.0, np.float32))
        finish = FinishReason.ABORT if request.request_id in self.aborted else FinishReason.LENGTH
        none = Piece(np.empty(0, np.int32), np.empty(0, np.float32))
        yield Piece(none.tokens, none.logprobs, finish=finish, spans=(Span("default", 0, sampled),))

    async def abort(self, request_ids: Iterable[str]) -> None:
        await self.runtime.clock.sleep(ABORT_S)
        self.aborted |= set(request_ids)

    async def sampled(self) -> int | None:
        return self.count

    async def fares(self) -> None:
        return None


class Named:
    """Keeps the names of episodes, as agents see them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def run(self, prompt: Prompt, policy: Any) -> Any:
        self.names.append(policy.name)
        return await SingleTurn().run(prompt, policy)


def evaluated(
    test: Callable[[Evaluation, Server, VirtualRuntime], Coroutine[Any, Any, None]],
    runs_on: Callable[[PromptRunner, Any, VirtualRuntime], Coroutine[Any, Any, PromptRunner]] | None = None,
    workflow: Workflow | None = None,
) -> None:
    """`runs_on`: who plays, given who plays in this process."""
    data = {"train": "t.jsonl", "eval": "e.jsonl"}
    config = observe_samples.config(data=data, evaluation={"samples": SAMPLES, "temperature": 1.0})

    async def main(runtime: VirtualRuntime) -> None:
        server = Server(runtime)
        dialect: Any = server
        engine = ServerEngine(dialect, Limits(ROOM, max_context=64, vocab_size=100, dtype="float32"), runtime)
        await engine.start()
        policy = settings(
            engine,
            engines=EnginePool.of([engine], runtime.clock),
            clock=runtime.clock,
            sampling=SamplingParams(max_new_tokens=10),
            request_timeout_s=100.0,
        )
        runner: PromptRunner = EpisodeRunner(
            workflow=workflow or SingleTurn(),
            policy=policy,
            rewards=PaperRewards(),
            clock=runtime.clock,
            samples_per_prompt=SAMPLES,
            episode_timeout_s=100.0,
        )
        held_out = config.held_out[0]
        if runs_on is not None:
            runner = await runs_on(runner, held_out, runtime)
        services: Any = runtime
        await test(Evaluation(held_out, runner, PROMPTS, lambda tokens: "", services, concurrency=2), server, runtime)
        await engine.stop()

    run_virtually(main)


def test_one_that_begins_again_asks_under_other_names_and_draws_the_same() -> None:
    workflow = Named()

    async def test(evaluation: Evaluation, server: Server, runtime: VirtualRuntime) -> None:
        running = asyncio.ensure_future(evaluation.run(INITIAL))
        await runtime.clock.sleep(3.5 * STEP_S)
        running.cancel()
        await asyncio.wait([running])
        count = len(PROMPTS) * SAMPLES
        assert (len(server.asked), server.aborted) == (count, set())
        result = await evaluation.run(INITIAL)
        assert (result["drawn"], result["failed"], result["last_failure"]) == (count, 0, None)
        assert len({request.request_id for request in server.asked}) == 2 * count
        first, again = server.asked[:count], server.asked[count:]
        assert sorted(each.noise_key for each in first) == sorted(each.noise_key for each in again)
        assert sorted(workflow.names[:count]) == sorted(workflow.names[count:])

    evaluated(test, workflow=workflow)


@dataclass
class Workers:
    """Two that play in this process. The first `losses` times that one answers it is lost, in the middle."""

    runner: PromptRunner
    runtime: VirtualRuntime
    losses: int
    given: list[Assignment] = field(default_factory=list)
    changed: Signal = field(default_factory=Signal)
    lost: dict[int, str] = field(default_factory=dict)

    async def call(self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None) -> list[Any]:
        return [None]

    async def stream(
        self, method: str, *args: Any, rank: int, what: str, seconds: float | None = None
    ) -> AsyncGenerator[Any, None]:
        given: Assignment = args[0]
        self.given.append(given)
        playing = asyncio.ensure_future(self._group(given))
        try:
            if self.losses:
                self.losses -= 1
                await self.runtime.clock.sleep(3.5 * STEP_S)
                self.lost[rank] = "exit code 3"
                self.changed.notify()
                raise WorkerLost(rank, "exit code 3")
            yield encode_group(await playing)
        finally:
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)

    async def _group(self, given: Assignment) -> Group:
        return await self.runner.run_group(given.key, given.prompt, given.version, given.deadline, given.issue)

    async def cleared(self, rank: int) -> None:
        pass

    async def restart(self, rank: int) -> None:
        self.lost.pop(rank, None)
        self.changed.notify()


def on_workers(losses: int, made: list[Workers]) -> Callable[[PromptRunner, Any, VirtualRuntime], Any]:
    async def runs_on(runner: PromptRunner, held_out: Any, runtime: VirtualRuntime) -> PromptRunner:
        kind: Any = RolloutWorkers
        of_losses, workers = Losses(), Workers(runner, runtime, losses)
        writers = SimpleNamespace(begin=lambda: 1, end=lambda writer: None)
        seats = RolloutSeats(workers, 2, runtime, writers, of_losses)  # type: ignore[arg-type]
        await seats.begin()
        refs = RestoredRefs(runtime.refs, lambda place: b"")
        made.append(workers)
        played = kind(seats, runtime, None, refs, of_losses, times=Durations(), blocked_s=600.0)
        found: PromptRunner = played.answers(held_out)
        return found

    return runs_on


def test_a_prompt_whose_worker_was_lost_is_asked_under_other_names() -> None:
    async def test(evaluation: Evaluation, server: Server, runtime: VirtualRuntime) -> None:
        result = await evaluation.run(INITIAL)
        count = len(PROMPTS) * SAMPLES
        assert (result["drawn"], result["failed"], result["last_failure"]) == (count, 0, None)
        assert len(server.asked) == count + SAMPLES
        assert len({request.noise_key for request in server.asked}) == count

    evaluated(test, on_workers(1, []))


def test_names_of_no_two_tries_are_the_same_whether_it_began_again_or_workers_were_lost() -> None:
    made: list[Workers] = []

    async def test(evaluation: Evaluation, server: Server, runtime: VirtualRuntime) -> None:
        for _ in range(3):
            made[0].losses = 4  # two of each prompt: with one more it is left out
            assert (await evaluation.run(INITIAL))["failed"] == 0
        issues = [(given.key, given.issue) for given in made[0].given]
        assert len(issues) == 3 * 3 * len(PROMPTS) == len(set(issues))

    evaluated(test, on_workers(0, made))
