"""Models that are killed while nobody asks them anything: it is told at once, and seen to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job

from headrace.cli.main import main
from headrace.store import RunReader

LATE = """
import asyncio
import itertools
import time
from pathlib import Path

from children import child
from headrace.rollout.single_turn import SingleTurn

EPISODES = itertools.count()

class Late(SingleTurn):
    async def run(self, prompt, policy):
        number = next(EPISODES)
        if number == 6:  # the first of batch 1
            await asyncio.sleep(2)  # what was done for batch 0 is done
            child("WHO").kill()
            (Path(__file__).parent / "killed").write_text(str(time.time()))
        if 6 <= number < 12:
            await asyncio.sleep(12)
        return await super().run(prompt, policy)
"""
KINDS = ("trainer_lost", "trainer_healed", "went_back", "worker_lost")
PPO = {"algorithm__recipe": "ppo", "critic__placement": "process"}
REFERENCE = {"algorithm__kl__coefficient": 0.1, "reference__placement": "process"}


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("who", "kinds", "more"),
    [
        ("trainer/0", ["trainer_lost", "went_back"], {}),
        ("trainer/1", ["trainer_lost", "trainer_healed"], {"trainer__layout": "d2"}),
        pytest.param("critic/0", ["trainer_lost", "went_back"], PPO, marks=pytest.mark.soak),
        ("reference/0", ["worker_lost"], REFERENCE),
    ],
    ids=["trainer", "a replica", "critic", "reference"],
)
def test_one_that_is_killed_while_a_batch_is_waited_for_is_told_before_any_group_of_it_ends(
    who: str, kinds: list[str], more: dict[str, Any], tmp_path: Path
) -> None:
    job = make_job(
        tmp_path / "job",
        trainer__batches=3,
        trainer__placement="process",
        async__mode="sync",
        checkpoint__every=1,
        rollout__workflow=f"{tmp_path}/job/late.py:Late",
        rollout__workers=0,
        data__eval=None,
        **more,
    )
    (tmp_path / "job" / "late.py").write_text(LATE.replace("WHO", who))
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    killed = float((tmp_path / "job" / "killed").read_text())
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        assert [row.record["batch"] for row in reader.metrics.read("batch")] == [0, 1, 2]
        told = [event for event in reader.events.read() if event.kind in KINDS]
    assert [event.kind for event in told] == kinds
    assert who in told[0].data["message"]
    assert told[0].at - killed < 8.0
