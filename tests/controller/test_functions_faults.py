"""Runs in virtual time whose functions worker dies, beside all else that goes wrong: they end whole."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from simulated_jobs import check, job

from headrace.config import TrainConfig
from headrace.controller.simulation.hazards import TrainingFaults
from headrace.controller.simulation.simulated_functions import FunctionsFaults
from headrace.controller.simulation.simulated_rollouts import RolloutFaults
from headrace.controller.simulation.simulated_run import Faults, Outcome, simulate

QUICK, ALL = 8, 120
MODES: tuple[dict[str, Any], ...] = (
    {"mode": "sync", "max_staleness": 2},
    {"mode": "one_step_off", "max_staleness": 2},
    {"max_staleness": 2, "ahead": 12},
    {"max_staleness": 4, "ahead": 20},
)
SOURCE = """
def bonus(tokens, reward):
    return {"bonus": 0.1 * reward}

def places(bonus, group):
    assert len({one.key for one in group}) == 1
    return {"place": [0.1 * place for place, _ in enumerate(bonus)]}

def of_batch(place, batch):
    assert len(set(batch)) == 1
    return {"of_batch": place}

def watch(bonus, advantages):
    return {"watched": 0}

def advantage(data):
    assert set(data.columns) >= {"bonus", "place"}
    return data.columns["bonus"] - data.columns["place"] + data.values
"""


def config_of(folder: Path, seed: int) -> TrainConfig:
    """An advantage from a critic's values and columns of stages of every unit; nobody waits for `watch`."""
    own = f"{folder}/own.py"
    Path(own).write_text(SOURCE)
    stages = [
        {"name": "bonus", "reads": ["tokens", "reward"], "writes": ["bonus"]},
        {"name": "places", "reads": ["bonus", "group"], "writes": ["place"], "unit": "group"},
        {"name": "of_batch", "reads": ["place", "batch"], "writes": ["of_batch"], "unit": "batch"},
        {"name": "watch", "reads": ["bonus", "advantages"], "writes": ["watched"]},
    ]
    sealed = seed % 3 == 0
    return job(
        **{"async": {**MODES[seed % len(MODES)], "on_deadline": ("wait", "mask", "drop", "late")[seed // 4 % 4]}},
        rollout__samples_per_prompt=2,
        functions__placement="process",
        algorithm={
            "advantage": f"{own}:advantage",
            "advantage_reads": ["bonus", "place", "values", *(["of_batch"] if sealed else [])],
            "updates_per_batch": 1 + seed % 2,
            "stages": [
                {**one, "function": f"{own}:{one['name']}"} for one in stages if sealed or "batch" not in one["reads"]
            ],
        },
    )


def run(folder: Path, seed: int) -> tuple[TrainConfig, Outcome]:
    chance = random.Random(seed)
    config = config_of(folder, seed)
    faults = Faults(
        rollout=RolloutFaults(workers=2, deaths=((chance.uniform(1.0, 10.0), chance.randrange(2)),)),
        training=TrainingFaults(
            deaths=((chance.choice(("actor", "critic")), chance.randint(1, 12)),),
            lost_leases=((chance.choice(("actor", "critic")), chance.randint(1, 8)),),
        ),
        functions=FunctionsFaults(tuple(sorted(chance.uniform(0.5, 30.0) for _ in range(6)))),
    )
    return config, simulate(config, seed, faults, prompts=200, limit_s=3_000.0)


def end_whole(folder: Path, seeds: range) -> None:
    took: Counter[str] = Counter()
    for seed in seeds:
        config, outcome = run(folder, seed)
        try:
            check(outcome, config)
            assert not outcome.broken
            assert [life.end for life in outcome.lives] == ["finished"]
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        took.update(outcome.took)
    assert took["functions"] >= 2 * len(seeds)


@pytest.mark.slow
@pytest.mark.copied
def test_a_run_whose_functions_worker_dies_ends_whole(tmp_path: Path) -> None:
    end_whole(tmp_path, range(QUICK))


@pytest.mark.slow
@pytest.mark.soak
def test_so_do_many(tmp_path: Path) -> None:
    end_whole(tmp_path, range(QUICK, ALL))


def test_the_same_seed_goes_the_same_way(tmp_path: Path) -> None:
    assert run(tmp_path, 5)[1].trace_hash == run(tmp_path, 5)[1].trace_hash
