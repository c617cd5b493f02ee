"""One client: whatever engines do, a completion has each of its tokens once, from a version that may serve it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.completions import Asked, Completion, Cut, GenerationAborted, NotServed, complete
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import (
    EngineError,
    EngineStats,
    FinishReason,
    GenerateRequest,
    PinnedVersion,
    RequestError,
    SamplingParams,
    SwapMode,
    SwapReport,
    TokenChunk,
)
from headrace.runtime.patience import Patience
from headrace.runtime.supervision import Often
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import INITIAL, Lineage, Version

PROMPT = np.array([3, 1, 4], np.int32)
VOCABULARY = 50


def token_at(key: int, place: int) -> int:
    """What every engine samples there: noise is keyed by the place."""
    return 2 + (key * 31 + place * 7) % (VOCABULARY - 2)


class RandomEngine:
    """Obeys the protocol: streams chunks of random sizes with pauses, is interrupted, swaps, and dies."""

    gives_kept_sets = True
    quiet = None
    rests = False
    asleep = ()
    slots = 4

    def __init__(self, runtime: VirtualRuntime, rng: random.Random, version: Version, *, deaths: float) -> None:
        self.version = version
        self.failure: Exception | None = None
        self.prompts: list[list[int]] = []
        self.ends = 0
        self._runtime = runtime
        self._rng = rng
        self._deaths = deaths

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        assert request.stream
        assert request.min_version is None or self.version.serves(request.min_version)
        self.prompts.append(request.prompt.tolist())
        sampled = 0
        try:
            while True:
                await self._runtime.clock.sleep(self._rng.random())
                if self.failure is not None or self._rng.random() < self._deaths:
                    self.failure = self.failure or EngineError("a fault of its own")
                    raise EngineError("lost")
                if self._rng.random() < 0.2:
                    self.version = Version(self.version.branch, self.version.number + 1)
                left = request.sampling.max_new_tokens - sampled
                count = min(self._rng.randint(0, 3), left)
                places = [len(request.prompt) + sampled + place for place in range(count)]
                sampled += count
                finish = FinishReason.LENGTH if sampled == request.sampling.max_new_tokens else None
                if finish is None and self._rng.random() < 0.2:
                    finish = FinishReason.INTERRUPTED
                yield self._chunk(request.noise_key, places, finish)
                if finish is not None:
                    return
        finally:
            self.ends += 1

    def _chunk(self, key: int, places: list[int], finish: FinishReason | None) -> TokenChunk:
        tokens = np.array([token_at(key, place) for place in places], np.int32)
        return TokenChunk(
            tokens,
            np.array([-place / 8 for place in places], np.float32),
            np.full(len(places), self.version.number, np.int32),
            np.full(len(places), self.version.branch, np.int32),
            finish,
            KeptSets.of(tokens, np.ones(len(tokens), np.int64), VOCABULARY) if places else None,
        )

    def abort(self, request_ids: Iterable[str]) -> None: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        raise NotImplementedError

    def pin(self) -> PinnedVersion:
        raise NotImplementedError

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, len(self.prompts), 0, 0, 0.0, 0.0)


def pool_of(runtime: VirtualRuntime, rng: random.Random, count: int, *, deaths: float) -> EnginePool:
    """Engines that come back with a version that is as new."""

    async def again(dead: Any, receiver: WeightReceiver) -> Any:
        await runtime.clock.sleep(rng.random() * 3)
        return RandomEngine(runtime, rng, dead.version, deaths=deaths / 2)

    engines = [RandomEngine(runtime, rng, Version(0, 4 + rng.randint(0, 2)), deaths=deaths) for _ in range(count)]
    pool = EnginePool(engines, runtime.clock, revive=again, return_deadline_s=600.0)
    pool.line = Lineage(0, {})
    for member in pool.members:
        member.state = EngineState.SERVING
    return pool


async def keep_alive(pool: EnginePool) -> None:
    while True:
        for member in pool.members:
            pool.look()
            if member.state is EngineState.EJECTED:
                await pool.come_back(member, MemoryPublisher().receiver())
        await pool.changed.wait(pool.clock, 1e6, "a death")


def asked(name: str, tokens: int = 12, **more: Any) -> Asked:
    sampling = SamplingParams(max_new_tokens=tokens, top_k=2)
    return Asked(name, PROMPT, sampling, noise_key=5, minimum=Version(0, 4), return_kept=True, **more)


def check(completion: Completion, tokens: int) -> None:
    places = range(len(PROMPT), len(PROMPT) + tokens)
    assert completion.tokens.tolist() == [token_at(5, place) for place in places], "none twice, none lost"
    assert completion.logprobs.tolist() == [-place / 8 for place in places]
    assert len(completion.versions) == len(completion.branches) == tokens
    assert completion.versions.min() >= 4
    assert completion.kept is not None
    assert len(completion.kept) == tokens
    assert completion.kept.contain(completion.tokens).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([0.0, 0.02, 0.06]))
def test_no_token_twice_and_none_lost_whatever_dies_and_is_interrupted(seed: int, engines: int, deaths: float) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pool = pool_of(runtime, random.Random(seed), engines, deaths=deaths)
        alive = runtime.spawn(keep_alive(pool), "keep alive")
        wanted = (complete(pool, asked(str(number), place=Place(Version(0, 4)))) for number in range(4))
        for completion in await asyncio.gather(*wanted):
            check(completion, 12)
            assert completion.finish_reason is FinishReason.LENGTH
        assert [member.outstanding for member in pool.members] == [0] * engines
        alive.cancel()

    run_virtually(main)


def test_the_clocks_stand_still_while_no_engine_may_serve() -> None:
    """An hour's outage under a limit of a minute."""

    async def main(runtime: VirtualRuntime) -> None:
        pool = pool_of(runtime, random.Random(1), 1, deaths=0.0)
        member = pool.members[0]
        pool.return_deadline_s = 7200.0
        patience = Patience(runtime.clock, 60.0)
        wanted = runtime.spawn(patience.wait_for(complete(pool, asked("a", still=(patience.still,))), "it"), "asked")
        await runtime.clock.sleep(1.0)
        member.engine.failure = EngineError("a fault of its own")  # type: ignore[misc]
        await runtime.clock.sleep(3600.0)
        assert pool.down_s is not None
        await pool.come_back(member, MemoryPublisher().receiver())
        check(await wanted, 12)
        assert 3500 < pool.outage.seconds() < 3700
        assert runtime.clock.now() > 3600

    run_virtually(main)


def test_when_engines_serve_but_none_is_new_enough_the_request_is_handed_back_at_the_deadline() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pool = pool_of(runtime, random.Random(1), 2, deaths=0.0)
        late = Asked("a", PROMPT, SamplingParams(4), 5, minimum=Version(0, 99))
        with pytest.raises(NotServed, match=r"needs v99 or newer; engines have v\d, v\d, and none came within 600 s"):
            await complete(pool, late)
        assert runtime.clock.now() == 600.0

    run_virtually(main)


def test_an_engine_on_a_branch_that_was_left_serves_nothing() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pool = pool_of(runtime, random.Random(1), 2, deaths=0.0)
        pool.line = Lineage(1, {0: 4})
        pool.members[0].engine.version = Version(0, 6)  # type: ignore[misc]
        pool.members[1].engine.version = Version(1, 5)  # type: ignore[misc]
        completion = await complete(pool, asked("a"))
        assert set(completion.branches.tolist()) == {1}
        assert pool.admit(lambda number: True, 1).version.branch == 1  # type: ignore[union-attr]

    run_virtually(main)


def test_what_runs_when_the_run_goes_back_is_served_on_from_where_it_goes_on() -> None:
    """Its tokens of the left branch stay; what is asked for then has a floor on the new one."""

    async def main(runtime: VirtualRuntime) -> None:
        pool = pool_of(runtime, random.Random(1), 1, deaths=0.0)
        (member,) = pool.members
        running = runtime.spawn(complete(pool, asked("a", tokens=60)), "a")
        await runtime.clock.sleep(4.0)
        assert pool.version.number >= 4
        pool.line.go_back(Version(1, 2), {0: 2})  # type: ignore[attr-defined]
        await runtime.clock.sleep(1.0)
        assert pool.admit(lambda number: True, 1) is None
        assert pool.version == Version(0, 2)
        member.engine.version = Version(1, 2)  # type: ignore[misc]
        pool.changed.notify()
        completion = await running
        assert completion.tokens.tolist() == [token_at(5, len(PROMPT) + place) for place in range(60)]
        assert completion.branches.tolist() == sorted(completion.branches.tolist())
        assert set(completion.branches.tolist()) == {0, 1}
        later = await complete(pool, asked("b", place=Place(Version(0, 4), home=0)))
        assert set(later.branches.tolist()) == {1}

    run_virtually(main)


def test_an_engine_that_dies_again_and_again_without_a_token_is_gone() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pool = pool_of(runtime, random.Random(1), 1, deaths=2.0)
        alive = runtime.spawn(keep_alive(pool), "keep alive")
        with pytest.raises(EngineError, match=r"no engine is left|lost"):
            await complete(pool, asked("a"))
        assert pool.members[0].deaths == 5
        assert pool.failure is not None
        alive.cancel()

    run_virtually(main)


class Says:
    """Gives one chunk, of one token unless told."""

    gives_kept_sets, quiet, rests, asleep, slots, version, failure = True, None, False, (), 1, INITIAL, None

    def __init__(
        self, finish: FinishReason | None, error: Exception | None = None, logprob: float = 0.0, tokens: int = 1
    ) -> None:
        self._finish, self._error, self._logprob, self._tokens = finish, error, logprob, tokens
        self.aborted: list[str] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        if self._error is not None:
            raise self._error
        zeros = np.zeros(self._tokens, np.int32)
        yield TokenChunk(zeros, np.full(self._tokens, self._logprob, np.float32), zeros, zeros, self._finish)

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted.extend(request_ids)


class Leaving(Says):
    """May be taken out."""

    def __init__(self) -> None:
        super().__init__(FinishReason.STOP)

    async def stop(self) -> None: ...


@pytest.mark.parametrize(
    ("engine", "error", "words"),
    [
        (Says(FinishReason.ABORT), GenerationAborted, "request a was aborted"),
        (Says(None, tokens=0), EngineError, "ended without a finish reason"),
        (Says(None, RequestError("id 999")), RequestError, "id 999"),
        (Says(FinishReason.STOP, logprob=np.nan), EngineError, "request a.*: token 0 came with a log-prob of nan"),
        (Says(FinishReason.STOP, logprob=-np.inf), EngineError, "token 0 came with a log-prob of -inf"),
        (Says(None, EngineError("not finite")), EngineError, "not finite"),
    ],
)
def test_what_is_no_outage_is_told(engine: Any, error: type[Exception], words: str) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pool = EnginePool.of([engine], runtime.clock)
        with pytest.raises(error, match=words):
            await complete(pool, Asked("a", PROMPT, SamplingParams(4), 5))

    run_virtually(main)


def test_a_groups_tokens_are_load_from_its_admission_and_leave_as_they_come() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pool = pool_of(runtime, random.Random(3), 2, deaths=0.0)
        first = pool.admit(lambda number: True, 24)
        assert first is not None
        with pool.taken(first):
            second = pool.admit(lambda number: True, 24)
            assert second is not None
            assert {first.home, second.home} == {0, 1}, "a burst is spread, before anything is asked"
            await complete(pool, asked("a", place=first))
            assert pool.members[first.home or 0].outstanding == 12
        assert [member.outstanding for member in pool.members] == [0, 0]

    run_virtually(main)


def test_what_an_engine_had_that_is_gone_stays_together_at_another_one() -> None:
    """With all that it is reckoned with; what is at work elsewhere meanwhile, or comes late, changes nothing of it."""

    async def main(runtime: VirtualRuntime) -> None:
        pool = EnginePool.of([Leaving() for _ in range(3)], runtime.clock)  # type: ignore[list-item]
        place = pool.admit(lambda number: True, 24)
        assert place is not None
        assert place.home == 0
        loads = [0, 3, 2]
        pool.members[1].outstanding, pool.members[2].outstanding = loads[1:]
        with pool.taken(place), pool.asked(pool.members[0], place, 8) as came:
            came(4)
            assert [member.outstanding for member in pool.members] == [20, 3, 2]
            await pool.dismiss(pool.members[0], "fewer were asked for")
            assert pool.route(0, place) is pool.members[2]
            assert [member.outstanding for member in pool.members] == [0, 3, 22]
            came(1)
            pool.members[1].outstanding = 0
            assert pool.route(0, place) is pool.members[2], "its keys and values are there"
            with pool.asked(pool.members[2], place, 8) as came_there:
                came_there(5)
            assert [member.outstanding for member in pool.members] == [0, 0, 17]
        assert [member.outstanding for member in pool.members] == [0, 0, 2]

    run_virtually(main)


@pytest.mark.parametrize("state", [EngineState.EJECTED, EngineState.STARTING])
def test_what_an_engine_had_that_comes_back_goes_there_again(state: EngineState) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        pool = EnginePool.of([Leaving() for _ in range(2)], runtime.clock)  # type: ignore[list-item]
        place = Place(INITIAL, home=0)
        pool.members[0].state = state
        assert pool.route(0, place) is pool.members[1]
        pool.members[0].state = EngineState.SERVING
        assert pool.route(0, place) is pool.members[0]
        pinned = Place(INITIAL, home=0, only=(0, 1))
        pool.members[0].state = EngineState.GONE
        assert pool.route(0, pinned) is pool.members[1]
        assert pinned.home == 0

    run_virtually(main)


def test_an_engine_that_is_down_is_waited_for_where_those_that_serve_have_failed_the_request() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        good: Any = Says(FinishReason.STOP)
        pool = EnginePool.of([Says(None, EngineError("not finite")), good], runtime.clock)  # type: ignore[list-item]
        pool.return_deadline_s = 60.0
        pool.members[1].state = EngineState.EJECTED

        async def come_back() -> None:
            await runtime.clock.sleep(7.0)
            pool.members[1].state = EngineState.SERVING
            pool.changed.notify()

        back = runtime.spawn(come_back(), "return")
        completion = await complete(pool, Asked("a", PROMPT, SamplingParams(4), 5))
        assert (len(completion.tokens), runtime.clock.now()) == (1, 7.0)
        await back
        pool.members[1].state = EngineState.EJECTED
        with pytest.raises(EngineError, match=r"no engine is left .* \(failed\), ejected") as raised:
            await complete(pool, Asked("c", PROMPT, SamplingParams(4), 5))
        assert (type(raised.value), runtime.clock.now()) == (EngineError, 67.75), "it would only be made again for ever"
        pool.members[1].state = EngineState.GONE
        with pytest.raises(EngineError, match=r"no engine is left .* \(failed\), gone"):
            await complete(pool, Asked("b", PROMPT, SamplingParams(4), 5))
        assert runtime.clock.now() == 68.5, "after two pauses, of 0.25 and 0.5 s"

    run_virtually(main)


class Breaks(Says):
    """Gives so many tokens to each request in turn, and then breaks off; but the last one ends."""

    def __init__(self, *tokens: int) -> None:
        super().__init__(None)
        self.left = list(tokens)
        self.prompts: list[int] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        self.prompts.append(len(request.prompt))
        count = self.left.pop(0)
        places = np.arange(len(request.prompt), len(request.prompt) + count, dtype=np.int32)
        finish = None if self.left else FinishReason.LENGTH
        versions = np.zeros(count, np.int32)
        if count or finish is not None:
            yield TokenChunk(places, np.zeros(count, np.float32), versions, versions, finish)
        if finish is None:
            raise EngineError("the connection was reset")


def test_a_single_engine_that_broke_off_and_lives_is_asked_again_from_what_it_gave_after_a_pause() -> None:
    """Pauses: 0.25, then 0.25 and 0.5 since a token came between, then 0.25."""

    async def main(runtime: VirtualRuntime) -> None:
        engine: Any = Breaks(2, 1, 0, 2, 3)
        pool = EnginePool.of([engine], runtime.clock)
        completion = await complete(pool, Asked("a", PROMPT, SamplingParams(8), 5))
        assert completion.tokens.tolist() == [3, 4, 5, 6, 7, 8, 9, 10]
        assert engine.prompts == [3, 5, 6, 6, 8]
        assert runtime.clock.now() == 1.25

    run_virtually(main)


def test_what_breaks_off_three_times_without_a_token_between_fails() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engine: Any = Breaks(2, 0, 0, 6)
        pool = EnginePool.of([engine], runtime.clock)
        with pytest.raises(EngineError, match="the connection was reset"):
            await complete(pool, Asked("a", PROMPT, SamplingParams(8), 5))
        assert (engine.prompts, runtime.clock.now()) == ([3, 5, 5], 0.75)

    run_virtually(main)


def test_what_broke_off_goes_to_another_at_once_and_to_one_that_failed_it_after_a_pause() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engines: list[Any] = [Breaks(2, 1, 3), Breaks(2, 1)]
        pool = EnginePool.of(engines, runtime.clock)
        completion = await complete(pool, Asked("a", PROMPT, SamplingParams(8), 5))
        assert completion.tokens.tolist() == [3, 4, 5, 6, 7, 8]
        assert [engine.prompts for engine in engines] == [[3, 7], [5, 8]]
        assert runtime.clock.now() == 0.25

    run_virtually(main)


def test_while_it_is_paused_before_it_is_asked_again_it_may_be_cut_off() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engine: Any = Breaks(2, 6)
        cut = Cut()
        pool = EnginePool.of([engine], runtime.clock)
        wanted = runtime.spawn(complete(pool, Asked("a", PROMPT, SamplingParams(8), 5, cut=cut)), "asked")
        await runtime.clock.sleep(0.1)
        cut.end()
        with pytest.raises(GenerationAborted):
            await wanted
        assert engine.prompts == [3]

    run_virtually(main)


# An engine that rests, since what it has loaded is of no version, is asked for nothing until it has taken one.

Body = Callable[[EnginePool, list[RandomEngine], VirtualRuntime], Awaitable[None]]


def resting(count: int, body: Body) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        engines = [RandomEngine(runtime, random.Random(n), Version(0, 4), deaths=0.0) for n in range(count)]
        pool = EnginePool.of(engines, runtime.clock)
        pool.return_deadline_s = 600.0
        await body(pool, engines, runtime)

    run_virtually(main)


def test_what_is_asked_of_one_that_rests_goes_to_another() -> None:
    async def body(pool: EnginePool, engines: list[RandomEngine], runtime: VirtualRuntime) -> None:
        place = pool.admit(lambda number: True, 100)
        assert place is not None
        assert place.home == 0
        engines[0].rests = True
        assert len((await complete(pool, asked("a", place=place))).tokens) == 12
        assert not engines[0].prompts
        assert engines[1].prompts
        again = pool.admit(lambda number: True, 100)
        assert again is not None
        assert again.home == 1
        assert pool.down_s is None

    resting(2, body)


def test_of_a_single_one_that_rests_it_waits_and_the_clocks_stand_still() -> None:
    async def body(pool: EnginePool, engines: list[RandomEngine], runtime: VirtualRuntime) -> None:
        engines[0].rests = True
        waiting = asyncio.ensure_future(complete(pool, asked("a")))
        await runtime.clock.sleep(50.0)
        assert not engines[0].prompts
        assert pool.down_s == pytest.approx(50.0)
        assert pool.admit(lambda number: True, 100) is None
        with pytest.raises(EngineError, match="no engine serves"):
            pool.pin()
        engines[0].rests = False
        pool.changed.notify()
        assert len((await waiting).tokens) == 12
        assert pool.outage.seconds() == pytest.approx(50.0)
        assert pool.down_s is None

    resting(1, body)


def test_the_death_of_one_that_rests_is_noticed() -> None:
    async def body(pool: EnginePool, engines: list[RandomEngine], runtime: VirtualRuntime) -> None:
        engines[0].rests, engines[0].failure = True, EngineError("it ended")
        pool.look()
        assert pool.members[0].state is EngineState.GONE

    resting(2, body)


def test_an_engine_that_is_added_serves_once_all_have_heard_of_it() -> None:
    async def body(pool: EnginePool, engines: list[RandomEngine], runtime: VirtualRuntime) -> None:
        seen: list[int | None] = []
        added = RandomEngine(runtime, random.Random(9), Version(0, 6), deaths=0.0)
        member = pool.add(added)

        async def tell() -> None:
            chosen = pool.route(6, None)
            seen.append(None if chosen is None else chosen.index)

        assert pool.route(6, None) is None
        await pool.welcome(member, None, tell)
        chosen = pool.route(6, None)
        assert seen == [None], "it is told, and does not serve yet"
        assert chosen is member
        await pool.dismiss(member, "it was taken out of the run")
        assert pool.route(6, None) is None
        assert member.state is EngineState.GONE
        assert not pool.members[0].view.failures

    resting(1, body)


def test_an_engine_that_is_added_takes_what_is_published_while_others_hear_of_it() -> None:
    class Published:
        version = Version(0, 6)

        def latest(self) -> Version:
            return self.version

    class Takes(RandomEngine):
        async def update(self, receiver: Any, mode: Any) -> Any:
            await self._runtime.clock.sleep(1.0)
            if self.version == Version(0, 7):
                published.version = Version(0, 8)
            self.version = receiver.latest()
            return self.version

    published: Any = Published()

    async def body(pool: EnginePool, engines: list[RandomEngine], runtime: VirtualRuntime) -> None:
        added = Takes(runtime, random.Random(9), INITIAL, deaths=0.0)
        member = pool.add(added)

        async def tell() -> None:
            assert added.version == Version(0, 6)
            published.version = Version(0, 7)

        await pool.welcome(member, published, tell)
        assert member.state is EngineState.SERVING
        assert added.version == published.version

    resting(1, body)


def test_an_engine_that_dies_too_often_within_a_time_is_gone_though_it_gives_tokens_and_others_serve() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        rng = random.Random(1)

        async def again(dead: Any, receiver: WeightReceiver | None) -> Any:
            return RandomEngine(runtime, rng, dead.version, deaths=0.0)

        engines = [RandomEngine(runtime, rng, Version(0, 4), deaths=0.0) for _ in range(2)]
        pool = EnginePool(engines, runtime.clock, revive=again, often=Often(3, 600.0))
        pool.line = Lineage(0, {})
        told: list[str] = []
        pool.events.tell_to(lambda kind, data: told.append(data["message"]) if kind == "engine_died" else None)
        for member in pool.members:
            member.state = EngineState.SERVING
        dying = pool.members[0]
        for seconds in (0.0, 700.0, 100.0, 100.0):
            await runtime.clock.sleep(seconds)
            check(await complete(pool, asked("a", place=Place(Version(0, 4), home=0))), 12)
            assert dying.deaths == 0
            dying.engine.failure = EngineError("a fault of its own")  # type: ignore[misc]
            pool.look()
            if dying.state is EngineState.EJECTED:
                await pool.come_back(dying, MemoryPublisher().receiver())
        assert dying.state is EngineState.GONE
        assert told[-1] == (
            "engine 0 died and does not come back: a fault of its own; that was so 3 times within 600 s "
            "(runtime.restarts.workers)"
        )
        assert pool.failure is None
        check(await complete(pool, asked("a")), 12)

    run_virtually(main)
