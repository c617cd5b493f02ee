"""What a rollout function of an evaluation saves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rollout_helpers import PaperRewards, ScriptedEngine, says, settings

from headrace.config import load_config
from headrace.config.evaluation import HeldOut
from headrace.config.train import TrainConfig
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import GroupKey
from headrace.rollout.assembly import episode_runner
from headrace.rollout.rollout_function import RolloutFunctions
from headrace.rollout.single_turn import SingleTurn
from headrace.runtime.inline import InlineRuntime
from headrace.store.partials import Partials
from headrace.weights.version import INITIAL

PROMPT = Prompt("p9", "3+4=", {"answer": "7"})
JOB = {
    "model": {"path": "m"},
    "data": {"train": "t", "eval": "e"},
    "evaluation": {"sets": {"hard": {"data": "h"}}},
}


def test_what_an_evaluation_saves_its_set_reads_in_a_later_process_and_no_other_does(tmp_path: Path) -> None:
    config, kept = load_config(TrainConfig, JOB), Partials(tmp_path / "partial")
    found = []

    async def saves(buffer: Any, batch: int, evaluation: bool) -> Any:
        found.append(dict(buffer.metadata))
        groups = await buffer.get(1)
        await groups[0][0].generate()
        buffer.metadata["n"] = 1
        await buffer.save()
        assert kept.keys() == [], "a group in training may have the same key"
        return groups

    async def run(held_out: HeldOut) -> None:
        policy, functions = settings(ScriptedEngine(says("7")), services=InlineRuntime()), RolloutFunctions(None, saves)
        runner = episode_runner(config, SingleTurn(), functions, policy, PaperRewards(), held_out, kept)
        group = await runner.run_group(GroupKey(0, 0, 0), PROMPT, INITIAL, 0)
        assert [(str(sample.status), sample.reward) for sample in group.samples] == [("completed", 1.0)]

    plain, hard = config.held_out
    for held_out in (plain, hard, plain):
        asyncio.run(run(held_out))
    assert found == [{}, {}, {"n": 1}]
