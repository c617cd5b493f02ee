"""`kill -9` at random moments, of all kinds of process: nothing is lost, and nothing counted twice.

`make soak` makes HEADRACE_KILLS of them.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from controller_jobs import make_job, make_model, make_reward_model
from judge_models import ASKED, make_judge
from killing import RUN, Killing, require_nothing_lost

KILLS = int(os.environ.get("HEADRACE_KILLS", "50"))
ETA = 2
APART = {
    "algorithm__advantage": "reinforce_plus_plus",
    "rollout__workers": 2,
    "engine__process": True,
    "trainer__placement": "process",
    "functions__placement": "process",
}
PARTS = {
    "engine__process": True,
    "weights__transport": "collective",
    "trainer__placement": "process",
    "trainer__layout": "d2",
    "algorithm__recipe": "ppo",
    "algorithm__advantage": "gae",
    "algorithm__updates_per_batch": 2,  # with which a proximal policy is a model of its own
    "critic__placement": "process",
    "proximal__placement": "process",
    "algorithm__kl__coefficient": 0.1,
    "reference__placement": "process",
}
LENT = {
    "engine__process": True,
    "engine__lent": 1,
    "trainer__placement": "process",
    "algorithm__recipe": "opd",
    "teacher__placement": "process",
}
ON_RAY = {
    "runtime__kind": "ray",
    "algorithm__advantage": "reinforce_plus_plus",
    "rollout__workers": 2,
    "weights__transport": "collective",
    "algorithm__kl__coefficient": 0.1,
    "reference__placement": "process",
}
MOSTLY_WORKERS = {
    "rollout": 8.0,
    "functions": 3.0,
    "engine": 2.0,
    "reward": 2.0,
    "guardian": 1.0,
    "trainer": 1.0,
    "watchdog": 0.5,
    "janitor": 0.5,
    RUN: 0.4,
}
OF_PARTS = {
    "trainer": 3.0,
    "relay": 3.0,
    "critic": 2.0,
    "reference": 1.0,
    "proximal": 1.0,
    "reward": 1.0,
    "judge": 1.0,
    "engine": 1.0,
}
OF_LENT = {"lent": 2.0, "teacher": 2.0, "trainer": 1.0, "engine": 1.0}
OF_ACTORS = {"rollout": 3.0, "engine": 2.0, "relay": 1.0, "reference": 1.0, "trainer": 1.0, "functions": 1.0}


def killing(tmp_path: Path, seed: int, **changes: object) -> Killing:
    given = {
        "trainer__batches": 100_000,
        "async__max_staleness": ETA,
        "checkpoint__every": 4,
        "record__journal": "all",
        "data__eval": None,
        "runtime__restarts": {"workers": 10_000},  # how often is too often is another test's
    }
    job = make_job(tmp_path / "job", **{**given, **changes})
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "headrace.cli.main", "train", str(job), "--dir", str(folder), "--plain"]
    return Killing(command, folder, seed, tmp_path / "said.log")


@pytest.mark.slow
@pytest.mark.timeout(240 + 10 * KILLS)
def test_of_whatever_is_killed_nothing_is_lost_and_nothing_counts_twice(tmp_path: Path) -> None:
    run = killing(tmp_path, 0, **APART)
    try:
        run.kill(KILLS, MOSTLY_WORKERS, mean_s=0.8)
        run.finish(4)
    finally:
        run.close()
    assert run.killed.total() == KILLS, run.killed
    assert run.seen >= MOSTLY_WORKERS.keys(), "a kind is called otherwise, and is never killed"
    came_to = require_nothing_lost(run.folder, ETA)
    sys.stderr.write(f"killed {dict(run.killed)} in {run.lives} lives; groups that were finished: {dict(came_to)}\n")


@pytest.mark.slow
@pytest.mark.timeout(300 + KILLS)
def test_of_ranks_scorers_judges_and_relays(tmp_path: Path) -> None:
    """What is called reward is the reward model alone: a judge needs no process beside its engine's."""
    judge = {**ASKED, "model": str(make_judge(tmp_path / "judge", says_digits=True))}
    model = {"path": str(make_reward_model(tmp_path / "rm")), "placement": "process"}
    kill_parts(killing(tmp_path, 2, **PARTS, reward={"function": "judge", "judge": judge, "model": model}), OF_PARTS, 8)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(300 + KILLS)
def test_of_a_teacher_and_a_lent_engine(tmp_path: Path) -> None:
    teacher = make_model(tmp_path / "teacher")
    kill_parts(killing(tmp_path, 3, **LENT, teacher__model=str(teacher)), OF_LENT, 16)


def kill_parts(run: Killing, weights: dict[str, float], share: int) -> None:
    """One of so many of the test's kills."""
    try:
        run.kill(KILLS // share, weights, mean_s=3.0)
        run.finish(4)
    finally:
        run.close()
    assert run.killed.total() == KILLS // share, run.killed
    assert run.seen >= weights.keys()
    came_to = require_nothing_lost(run.folder, ETA)
    sys.stderr.write(f"killed {dict(run.killed)} in {run.lives} lives; groups that were finished: {dict(came_to)}\n")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'")
def test_on_one_ray(tmp_path: Path) -> None:
    """At last the raylet, with which all of them end: the run goes on where it is resumed."""
    run = killing(tmp_path, 1, **ON_RAY)
    try:
        run.kill(6, OF_ACTORS, mean_s=4.0)
        assert run.seen >= OF_ACTORS.keys()
        run.kill(7, {"raylet": 1.0}, mean_s=1.0)
        run.require_end("headrace: the run's Ray has ended: raylet (ended by signal 9); --resume the run once")
        run.finish(4)
    finally:
        run.close()
    assert run.lives == 2, "but for the one that is longer"
    require_nothing_lost(run.folder, ETA)
