"""What the time of trainer and engines goes to: each cause by hand, and that all of it adds up in real runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from controller_jobs import make_job, run, start

from headrace.controller.time_spent import TimeSpent
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineStats
from headrace.observe import spent
from headrace.observe.spent import Activity, AtWork
from headrace.runtime.signal import Signal


@dataclass
class World:
    """A run whose state is set by hand: in each step so many seconds pass, of which the engine computes or rests."""

    time: float = 100.0
    stats_: dict[str, float] = field(default_factory=lambda: {"busy_s": 7.0, "swap_stall_s": 1.0, "idle_s": 3.0})
    version: Any = field(default_factory=lambda: SimpleNamespace(number=0))
    batch: int = 0
    members: tuple[Any, ...] = ()
    is_absent: bool = False
    running_groups: int = 0
    is_sealed: bool = False
    is_finished: bool = False
    bound: str | None = None
    changed: Signal = field(default_factory=Signal)

    def __post_init__(self) -> None:
        self.members = (self.engine(0, self.stats),)

    def engine(self, index: int, stats: Callable[[], EngineStats]) -> SimpleNamespace:
        return SimpleNamespace(index=index, name=f"engine {index}", state=EngineState.SERVING, stats=stats)

    @property
    def own(self) -> tuple[Any, ...]:
        """None is lent."""
        return self.members

    def now(self) -> float:
        return self.time

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, 0, 0, **self.stats_)  # type: ignore[arg-type]

    def shut_by(self, version: int) -> str | None:
        return self.bound

    def set(self, **state: Any) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.changed.notify()

    def passes(self, seconds: float, **engine: float) -> None:
        self.time += seconds
        for name, value in engine.items():
            self.stats_[name] = self.stats_.get(name, 0.0) + value


def made(*, on_policy: bool = False) -> tuple[World, Activity, TimeSpent]:
    world, activity = World(), Activity()
    time = TimeSpent(world, world, world, activity, on_policy=on_policy)  # type: ignore[arg-type]
    return world, activity, time


def test_the_time_in_which_the_trainers_devices_are_lent_is_counted() -> None:
    world, activity, time = made()
    for seconds in (2.0, 3.0):
        activity.lends(lent=True)
        world.passes(seconds)
        activity.lends(lent=False)
        world.passes(1.0)
    assert time.lent_s() == 5.0


def test_the_trainers_waits_for_rows_are_told_apart_by_what_stands_in_the_way() -> None:
    world, activity, time = made()
    world.passes(1)
    with activity.evaluation():
        world.passes(2, busy_s=2)
    with activity.training(spent.TRAINS):
        world.passes(10, busy_s=10)
        with activity.training(spent.ROWS):
            world.set(running_groups=3)
            world.passes(20, busy_s=15, idle_s=5)  # while the engine rests, rewards are at it
            world.set(running_groups=0, is_sealed=True)
            world.passes(4)
            with activity.computes("reference"):
                world.passes(5)
            with activity.computes("trainer"):
                world.passes(6)
            world.set(is_sealed=False, batch=1)
            world.passes(7)
            with activity.evaluation():
                world.passes(8)
        with activity.training(spent.CRITIC):
            world.passes(0.5)
    with activity.training(spent.PUBLISHES):
        world.passes(0.25)
    assert time.trainer_s() == {
        spent.OTHER: 1.0,
        spent.EVALUATION: 2.0 + 8.0,
        spent.TRAINS: 10.0,
        spent.GENERATION: 15.0,
        spent.REWARDS: 5.0,
        spent.COLUMNS: 4.0 + 5.0,
        spent.SCORES: 6.0,
        spent.NEW_WEIGHTS: 7.0,
        spent.CRITIC: 0.5,
        spent.PUBLISHES: 0.25,
    }
    assert sum(time.trainer_s().values()) == world.time - 100.0
    assert sum(time.engines_s().values()) == world.time - 100.0


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ({"running_groups": 1, "bound": "staleness"}, spent.REWARDS),
        ({"bound": "staleness"}, f"{spent.TRAINER} (max_staleness)"),
        ({"bound": "staleness", "batch": 1}, spent.NEW_WEIGHTS),
        ({"bound": "ahead", "batch": 1}, f"{spent.TRAINER} (ahead)"),
        ({"bound": "bytes"}, f"{spent.TRAINER} (table_gib)"),
        ({"bound": "prompts"}, spent.NO_PROMPTS),
        ({"bound": None}, spent.OTHER),
        ({"bound": "prompts", "is_finished": True}, spent.OTHER),
    ],
)
def test_engines_without_work_wait_for_what_keeps_it_from_them(state: dict[str, Any], cause: str) -> None:
    world, activity, time = made()
    with activity.training(spent.TRAINS):
        world.set(**state)
        world.passes(10, busy_s=4, recompute_s=1, swap_stall_s=1.5, idle_s=4)
        engines = time.engines_s()
    rest = {spent.OTHER: 1.5} if cause != spent.OTHER else {}
    causes = {cause: 4.0} if cause != spent.OTHER else {spent.OTHER: 5.5}
    assert engines == {spent.COMPUTES: 3.0, spent.SWAPS: 1.5, **causes, **rest}


def test_on_policy_no_bound_is_named_and_before_the_first_batch_engines_wait_for_nobody() -> None:
    world, activity, time = made(on_policy=True)
    world.set(bound="staleness")
    world.passes(2, idle_s=2)
    with activity.training(spent.TRAINS):
        world.passes(3, idle_s=3)
        assert time.engines_s() == {spent.OTHER: 2.0, spent.TRAINER: 3.0}


def test_what_is_counted_twice_never_makes_more_than_all() -> None:
    world, activity, time = made()
    with activity.training(spent.TRAINS):
        world.set(bound="ahead")
        world.passes(5, swap_stall_s=3, idle_s=4)
        assert time.engines_s() == {spent.SWAPS: 3.0, f"{spent.TRAINER} (ahead)": 2.0}


def test_engines_that_come_and_go_change_nothing_of_the_time_before() -> None:
    """Both are busy for 80 % while they are there: 0.8 of 1,000 s by one, of 100 s by two; then one for all of 10 s."""
    world, activity, time = made()
    second = {"busy_s": 0.0, "swap_stall_s": 0.0, "idle_s": 0.0}
    ahead = f"{spent.TRAINER} (ahead)"
    with activity.training(spent.TRAINS):
        world.set(bound="ahead")
        world.passes(1000, busy_s=800, idle_s=200)
        assert time.engines_s() == {spent.COMPUTES: 800.0, ahead: 200.0}
        came = world.engine(1, lambda: EngineStats(0, 0, 0, 0, 0, **second))  # type: ignore[arg-type]
        world.members = (*world.members, came)
        world.changed.notify()
        assert time.engines_s() == {spent.COMPUTES: 800.0, ahead: 200.0}
        second |= {"busy_s": 80.0, "idle_s": 20.0}
        world.passes(100, busy_s=80, idle_s=20)
        assert time.engines_s() == {spent.COMPUTES: 880.0, ahead: 220.0}
        came.state = EngineState.GONE
        world.changed.notify()
        second |= {"idle_s": 30.0}
        world.passes(10, busy_s=10)
        assert time.engines_s() == {spent.COMPUTES: 890.0, ahead: 220.0}


def times(folder: Path) -> tuple[dict[str, Any], float]:
    summary = json.loads((folder / "summary.json").read_text())
    return summary["time"], summary["wall_s"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.soak)])
def test_the_times_of_a_run_add_up_also_after_a_resume(tmp_path: Path, mode: str) -> None:
    # So many that the run still goes when its second line has been read.
    config = make_job(tmp_path / "job", async__mode=mode, trainer__batches=80)
    folder = tmp_path / "run"
    process = start("train", config, "--dir", folder, "--plain")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("batch 2/"):
            process.send_signal(signal.SIGINT)
            break
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
    _, stopped_s = times(folder)
    code, out = run("train", config, "--dir", folder, "--plain", "--resume")
    assert code == 0, out
    assert times(folder)[1] > stopped_s
    _adds_up(folder, mode)


def _adds_up(folder: Path, mode: str) -> None:
    time, wall = times(folder)
    assert sum(time["trainer_s"].values()) == pytest.approx(wall, rel=0.01)
    assert sum(time["engines_s"].values()) == pytest.approx(wall, rel=0.01)
    assert time["trainer_s"][spent.TRAINS] >= 0.9 * time["train_s"]
    assert time["engines_s"][spent.COMPUTES] <= time["generate_s"] + 1e-9
    assert time["trainer_s"][spent.CHECKPOINTS] > 0
    if mode == "sync":
        # They take turns: while one computes the other waits for it.
        assert time["engines_s"][spent.TRAINER] > 0.5 * time["train_s"]
        assert time["trainer_s"][spent.GENERATION] > 0


def test_each_that_has_a_device_is_busy_while_it_computes() -> None:
    """Whoever asks: the actor, or a column that the trainer scores. Calls that overlap count once."""
    world, activity, time = made()
    assert time.busy_s() == {}
    with activity.computes("trainer"):
        world.passes(2.0, busy_s=0.5)
        with activity.computes("trainer"):
            world.passes(1.0)
    world.passes(3.0, busy_s=2.5, idle_s=0.5)
    assert time.busy_s() == {"engine 0": 3.0, "trainer": 3.0}
    with activity.computes("critic"):
        world.passes(1.0)
    assert time.busy_s() == {"engine 0": 3.0, "trainer": 3.0, "critic": 1.0}


def test_others_that_have_a_model_are_told_of_by_their_own_seconds() -> None:
    """From the run's beginning on. Of who gives out a lane here, and counts for itself too, the lane's stand."""
    world, activity = World(), Activity()
    own = {"reference": 4.0, "teacher": 1.0, "trainer/0": 2.0, "trainer": 2.0}
    time = TimeSpent(world, world, world, activity, on_policy=False, others=lambda: {**own})  # type: ignore[arg-type]
    assert time.busy_s() == {}
    own |= {"reference": 6.5, "trainer/0": 5.0, "trainer/1": 1.0, "trainer": 9.0}
    with activity.computes("trainer"):
        world.passes(3.5)
    assert time.busy_s() == {"reference": 2.5, "trainer/0": 3.0, "trainer/1": 1.0, "trainer": 3.5}


def test_a_device_is_as_busy_as_all_that_are_on_it() -> None:
    """Ranks count for their model. What an engine computed before it moved counts where it was."""
    world, activity = World(), Activity()
    own = {"reference": 0.0, "trainer/0": 0.0, "trainer/1": 0.0, "trainer": 0.0}
    on = {"trainer/0": ["slot 0"], "trainer/1": ["slot 1"], "reference": ["slot 1"], "engine 0": ["slot 0"]}
    time = TimeSpent(
        world,  # type: ignore[arg-type]
        world,  # type: ignore[arg-type]
        world,  # type: ignore[arg-type]
        activity,
        on_policy=False,
        others=lambda: {**own},
        devices=lambda who: on[who],
    )
    assert time.device_s() == {}
    own |= {"reference": 2.5, "trainer/0": 3.0, "trainer/1": 1.0, "trainer": 3.5}
    with activity.computes("trainer"):
        world.passes(3.5, busy_s=0.5)
    assert time.device_s() == {"slot 0": 3.0 + 0.5, "slot 1": 1.0 + 2.5}
    own |= {"trainer/0": 4.0, "trainer": 4.5}
    world.passes(1.0, busy_s=1.0)
    world.set(is_absent=True)  # its node is lost
    on["engine 0"] = ["slot 2", "slot 3"]
    world.set(is_absent=False)
    world.passes(2.0, busy_s=2.0)
    assert time.device_s() == {"slot 0": 4.0 + 1.5, "slot 1": 3.5, "slot 2": 2.0, "slot 3": 2.0}
    assert time.busy_s() == {"reference": 2.5, "trainer/0": 4.0, "trainer/1": 1.0, "trainer": 3.5, "engine 0": 3.5}


def test_what_one_is_at_together_counts_once() -> None:
    now = [10.0]
    at_work = AtWork(lambda: now[0])
    with at_work.at_it("all", 0):
        now[0] += 1
        with at_work.at_it("all", 1):
            now[0] += 2
            assert [at_work.seconds(who) for who in ("all", 0, 1, 2)] == [3, 3, 2, 0]
    now[0] += 4
    with at_work.at_it("all", 1):
        now[0] += 8
    assert [at_work.seconds(who) for who in ("all", 0, 1)] == [11, 3, 10]
