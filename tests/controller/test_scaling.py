"""More and fewer engines and rollout workers while a run goes on, by the command, in real processes."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job, start
from forked import Forked

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.config.errors import ConfigError
from headrace.controller.control_socket import NAME, ask, listening
from headrace.controller.scaling import Scaling
from headrace.engines.absent import AbsentEngine
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import Engine, EngineError
from headrace.runtime.clock import SystemClock
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import Handle
from headrace.store import RunReader
from headrace.weights.in_process import MemoryPublisher

BATCHES, ETA = 110, 2


def told(run: Path) -> tuple[int, list[tuple[str, Any]]]:
    """Batches so far, and what it was scaled to."""
    if not (run / "run.db").exists():
        return 0, []
    with RunReader(run) as reader:
        events = [(event.data["what"], event.data["count"]) for event in reader.events.read() if event.kind == "scaled"]
        return len(list(reader.metrics.read("batch"))), events


def until(run: Path, batch: int, process: Forked) -> None:
    end = time.monotonic() + 120
    while told(run)[0] < batch:
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_run_gets_more_hands_and_gives_them_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\n\n\ndef reward(response, row):\n    time.sleep(0.06)\n    return len(response) % 7\n")
    job = make_job(
        tmp_path / "job",
        reward__function=f"{slow}:reward",
        trainer__batches=BATCHES,
        async__max_staleness=ETA,
        rollout__sampling__max_new_tokens=24,
        rollout__workers=1,
        engine__process="true",
        weights__transport="collective",
    )
    run = tmp_path / ("a-folder-of-a-long-name-" * 8) / "run"
    process = start("train", job, "--dir", run, "--plain")
    try:
        until(run, 2, process)
        assert stat.S_IMODE((run / NAME).stat().st_mode) == 0o600
        assert main(["scale", str(run), "--engines", "0"]) == 2
        assert "engines is 0; give a number from 1 to 64" in capsys.readouterr().err
        assert main(["scale", str(run), "--engines", "2", "--rollout-workers", "2"]) == 0
        said = capsys.readouterr().out
        assert "engines: 2\nasync.ahead stays at" in said
        assert said.endswith("rollout workers: 2\n")
        until(run, told(run)[0] + 6, process)
        assert main(["scale", str(run), "--engines", "1", "--rollout-workers", "1"]) == 0
        until(run, told(run)[0] + 4, process)
        assert main(["scale", str(run), "--engines", "1"]) == 0
        assert "engines: 1, as before" in capsys.readouterr().out
        out, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, out[-3000:]
    assert told(run)[1] == [("engines", 2), ("rollout workers", 2), ("engines", 1), ("rollout workers", 1)]
    with RunReader(run) as reader:
        reader.counts().check()
        batches = [row.record for row in reader.metrics.read("batch")]
        events = [*reader.events.read()]
    assert len(batches) == BATCHES
    assert max(int(stale) for record in batches for stale in record["staleness"]) <= ETA
    assert not any(record["failed_samples"] for record in batches)
    kinds = Counter(event.kind for event in events)
    assert (kinds["engine_added"], kinds["engine_removed"], kinds["engine_died"]) == (1, 1, 0)
    swaps = Counter(event.data.get("engine") for event in events if event.kind == "swap")
    assert swaps[1] >= 3, "the new one takes each version"
    relays = [tuple(event.data["relays"]) for event in events if event.kind == "weights_carried"]
    assert {(1,), (1, 2)} <= set(relays), "which has a relay of its own"
    assert relays[-1] == (1,)
    assert not (run / NAME).exists()
    assert main(["scale", str(run), "--engines", "2"]) == 2
    assert "is no run that is at work" in capsys.readouterr().err


def test_what_cannot_be_scaled_says_what_could_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", str(tmp_path)]) == 2
    assert "nothing to scale: give --engines N, --rollout-workers N, or both" in capsys.readouterr().err
    assert main(["scale", str(tmp_path / "none"), "--engines", "2"]) == 2
    assert "is no run that is at work" in capsys.readouterr().err


class NoMore:
    """`Hires` of a machine that is full."""

    kind = "embedded"

    async def hire(self) -> tuple[Engine, Handle]:
        raise EngineError("there is no room for it")

    async def release(self, index: int) -> None:
        raise AssertionError(index)


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (5, "async.ahead stays at 5 groups, 15 samples, of 16 that the engines decode at once: that binds; --resume "
            "with a larger one"),
        (6, "async.ahead stays at 6 groups, 18 samples; the engines decode 16 at once"),
    ],
)  # fmt: skip
def test_it_says_when_ahead_binds(tmp_path: Path, ahead: int, words: str) -> None:
    """Groups are of 3 samples, and two engines decode 8 sequences each."""

    class Engine8(AbsentEngine):
        slots = 8

    async def ask_for(engines: int, said: list[str]) -> None:
        config = load_config(TrainConfig, make_job(tmp_path / "job"))
        pool = EnginePool.of([Engine8(), Engine8()], SystemClock())
        pool.hires = NoMore()
        scaling = Scaling(config, pool, MemoryPublisher().receiver(), None, lambda kind, data: None, ahead=ahead)
        await scaling.answer({"scale": {"engines": engines}}, said.append)

    said: list[str] = []
    asyncio.run(ask_for(2, said))
    assert said == ["engines: 2, as before", words]
    with pytest.raises(ConfigError, match="engines: 2, and not 3: there is no room for it"):
        asyncio.run(ask_for(3, said))


def test_a_question_is_answered_line_by_line_and_a_bad_one_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(asked: Mapping[str, Any], say: Any) -> None:
        if "no" in asked:
            raise ConfigError("no such thing")
        if "late" in asked:
            raise WaitTimeout("an engine", 3.0)
        if "bug" in asked:
            raise KeyError("engine/7")
        say("one")
        say("two")

    async def main() -> None:
        said: list[str] = []
        async with listening(tmp_path, SystemClock(), answer):
            await asyncio.to_thread(ask, tmp_path, {"yes": 1}, said.append, seconds=5.0)
            with pytest.raises(ConfigError, match="no such thing"):
                await asyncio.to_thread(ask, tmp_path, {"no": 1}, said.append, seconds=5.0)
            with pytest.raises(ConfigError, match=r"^waited 3.0 s for an engine"):
                await asyncio.to_thread(ask, tmp_path, {"late": 1}, said.append, seconds=5.0)
            assert not caplog.records, "what is refused is for whoever asked"
            with pytest.raises(ConfigError, match=r"^KeyError: 'engine/7'$"):
                await asyncio.to_thread(ask, tmp_path, {"bug": 1}, said.append, seconds=5.0)
            (record,) = caplog.records
            assert record.getMessage() == "what was asked for was not done"
            assert record.exc_info is not None
            reader, writer = await asyncio.open_unix_connection(os.path.relpath(tmp_path / NAME))
            writer.write(b"[1\n")
            assert b"not understood" in await reader.read()
            writer.close()
        assert said == ["one", "two"]

    asyncio.run(main())


def test_whoever_asks_as_the_run_ends_is_told_so_and_nothing_else_is_said(tmp_path: Path) -> None:
    """Of two that ask, one has said nothing yet. The run's event loop ends at once behind them."""
    heard: list[str] = []
    logged: list[Any] = []
    ended: list[str] = []

    async def answer(asked: Mapping[str, Any], say: Any) -> None:
        say("one")
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # what is half there is taken down
            ended.append("answer")

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: logged.append(context))
        async with listening(tmp_path, SystemClock(), answer):
            ready.set()
            await asyncio.to_thread(begun.wait, 10.0)
        ended.append("run")

    def client() -> None:
        ready.wait(10.0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
            silent.connect(os.path.relpath(tmp_path / NAME))
            try:
                ask(tmp_path, {"yes": 1}, heard.append, seconds=10.0)
            except ConfigError as error:
                heard.append(str(error))
            heard.append(silent.recv(4096).decode())

    ready, begun, asking = threading.Event(), threading.Event(), threading.Thread(target=client)
    asking.start()
    asyncio.run(run())
    asking.join(10.0)
    assert logged == []
    words = "the run is ending, and does no more of it"
    assert heard == ["one", words, f'{{"error": "{words}"}}\n']
    assert ended == ["answer", "run"]


def test_whoever_is_not_heard_any_more_is_told_that_the_run_has_ended(tmp_path: Path) -> None:
    def end() -> None:
        with listener, listener.accept()[0]:
            pass  # what was asked is not read

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(os.path.relpath(tmp_path / NAME))
        listener.listen()
        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(ConfigError, match="ended before it had answered"):
            ask(tmp_path, {"yes": 1}, print, seconds=10.0)
        ending.join()


class _Hires:
    """Of engines that sample nothing."""

    kind = "vllm"

    def __init__(self) -> None:
        self.released: list[int] = []
        self._count = 1

    async def hire(self) -> tuple[Engine, Handle]:
        self._count += 1
        return AbsentEngine(), Handle(f"engine/{self._count - 1}", self._count - 1, "")

    async def release(self, index: int) -> None:
        self.released.append(index)


class Slow(_Hires):
    """Each takes ten minutes: until it is there, or until it has started."""

    def __init__(self, clock: Clock, phase: str) -> None:
        super().__init__()
        self._clock = clock
        self._phase = phase

    async def hire(self) -> tuple[Engine, Handle]:
        if self._phase == "made":
            await self._clock.sleep(600.0)
        engine, handle = await super().hire()
        if self._phase == "started":
            engine.start = lambda: self._clock.sleep(600.0)  # type: ignore[method-assign]
        return engine, handle


async def scaled(runtime: VirtualRuntime, phase: str, *numbers: int) -> tuple[list[Any], EnginePool, Slow]:
    """Of one engine so many are asked for, one command five minutes after the other: what each said, or the error, and
    when it had ended."""
    config = TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t.jsonl"}})
    pool = EnginePool([AbsentEngine()], runtime.clock, handles=[Handle("engine/0", 0, "")])
    pool.hires = hires = Slow(runtime.clock, phase)
    await pool.start()
    scaling = Scaling(config, pool, MemoryPublisher().receiver(), None, lambda kind, data: None, ahead=4)

    async def command(number: int) -> tuple[float, list[str]]:
        said: list[str] = []
        try:
            await scaling.answer({"scale": {"engines": number}}, said.append)
        except ConfigError as error:
            said.append(str(error))
        return runtime.clock.now(), [words for words in said if "ahead" not in words]

    commands = []
    for number in numbers:
        commands.append(asyncio.ensure_future(command(number)))
        await runtime.clock.sleep(300.0)
    return await asyncio.gather(*commands), pool, hires


@pytest.mark.parametrize(("phase", "released"), [("made", []), ("started", [1])])
def test_an_engine_that_is_being_made_and_is_not_wanted_any_more_is_made_no_further(
    phase: str, released: list[int]
) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        ends, pool, hires = await scaled(runtime, phase, 4, 1)
        assert ends == [
            (300.0, ["engines: 1, and not 4: 1 were asked for meanwhile"]),
            (300.0, ["engines: 1, as before"]),
        ]
        assert [member.state for member in pool.members if member.state is not EngineState.GONE] == ["serving"]
        assert hires.released == released
        await runtime.clock.sleep(3600.0)
        assert len(pool.members) == 1 + len(released)

    run_virtually(main)


def test_one_that_is_wanted_still_is_made_and_the_command_before_asks_for_no_more() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        ends, _, hires = await scaled(runtime, "made", 4, 3)
        assert ends == [
            (600.0, ["engines: 2", "engines: 2, and not 4: 3 were asked for meanwhile"]),
            (1200.0, ["engines: 3"]),
        ]
        assert not hires.released

    run_virtually(main)


def test_who_asks_for_as_many_again_has_them_made() -> None:
    async def main(runtime: VirtualRuntime) -> None:
        ends, pool, _ = await scaled(runtime, "made", 2, 1, 2)
        assert [said[-1] for _, said in ends] == [
            "engines: 1, and not 2: 1 were asked for meanwhile",
            "engines: 1, as before",
            "engines: 2",
        ]
        assert [member.state for member in pool.members] == [EngineState.SERVING] * 2

    run_virtually(main)


@pytest.mark.parametrize("state", [EngineState.EJECTED, EngineState.STARTING])
def test_one_that_serves_nobody_is_taken_out_before_one_that_serves(state: EngineState) -> None:
    async def main(runtime: VirtualRuntime) -> None:
        config = TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t.jsonl"}})
        pool = EnginePool.of([AbsentEngine() for _ in range(3)], runtime.clock)
        pool.hires = hires = _Hires()
        pool.members[1].state = state
        scaling = Scaling(config, pool, MemoryPublisher().receiver(), None, lambda kind, data: None, ahead=4)
        await scaling.answer({"scale": {"engines": 2}}, lambda line: None)
        assert hires.released == [1]
        await scaling.answer({"scale": {"engines": 1}}, lambda line: None)
        assert hires.released == [1, 2]

    run_virtually(main)


@pytest.mark.parametrize("fault", [EngineError("its worker died"), asyncio.CancelledError()])
def test_an_engine_that_gets_no_relay_is_ended_and_the_next_has_a_place_of_its_own(fault: BaseException) -> None:
    config = TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "t.jsonl"}})
    told: list[tuple[str, str]] = []
    faults: list[BaseException] = [fault]

    async def came(engine: Engine, worker: str) -> None:
        told.append((worker, str(engine.version)))
        if faults:
            raise faults.pop()

    async def main(runtime: VirtualRuntime) -> None:
        pool = EnginePool([AbsentEngine()], runtime.clock, handles=[Handle("engine/0", 0, "")])
        pool.hires, pool.came = (hires := _Hires()), came
        added: list[dict[str, Any]] = []
        pool.events.tell_to(lambda kind, data: added.append(data) if kind == "engine_added" else None)
        await pool.start()
        scaling = Scaling(config, pool, MemoryPublisher().receiver(), None, lambda kind, data: None, ahead=4)
        expected = ConfigError if isinstance(fault, EngineError) else asyncio.CancelledError
        with pytest.raises(expected):
            await scaling.answer({"scale": {"engines": 2}}, lambda line: None)
        assert hires.released == [1]
        assert [member.state for member in pool.members] == [EngineState.SERVING, EngineState.GONE]
        await scaling.answer({"scale": {"engines": 2}}, lambda line: None)
        assert [member.state for member in pool.members][2:] == [EngineState.SERVING]
        assert pool.handles[2].worker == "engine/2"
        assert added == [{"engine": 2, "kind": "vllm", "version": "v0"}]
        assert [worker for worker, _ in told] == ["engine/1", "engine/2"]
        assert hires.released == [1]

    run_virtually(main)
