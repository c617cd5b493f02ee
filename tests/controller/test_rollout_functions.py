"""Runs that a rollout function plays: over-sampling, aborts and partial rollouts, with the embedded engine."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from controller_jobs import make_job, start
from killed_run import run_killed

from headrace.cli.main import main
from headrace.config import ConfigError, load_config
from headrace.config.train import TrainConfig
from headrace.controller.planning.rollout_worker_count import rollout_workers
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group, GroupKey
from headrace.store import RunReader
from headrace.store.journal import Journal
from headrace.store.partials import Partials

ETA = 2
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_job" / "partial_rollout.py"
EVALUATED = """
import asyncio

async def play(buffer, batch, evaluation):
    buffer.metadata["calls"] = buffer.metadata.get("calls", 0) + 1
    await buffer.save()
    data = []
    while groups := await buffer.get(64):
        await asyncio.gather(*(sample.generate() for group in groups for sample in group))
        data += groups
    return data
"""
FUNCTION = f"rollout.function={EXAMPLE}:generate_rollout"


def job_of(folder: Path, **changes: object) -> Path:
    usual = {
        "async__max_staleness": ETA,
        "rollout__prompts_per_batch": 4,
        "rollout__sampling": {"max_new_tokens": 40},
        "trainer__batches": 8,
        "record__journal": "all",
    }
    return make_job(folder, **{**usual, **changes})


def groups_of(folder: Path) -> dict[GroupKey, Group]:
    """All that are in the journal."""
    journal = Journal(folder / "journal")
    writers = sorted({segment.writer for segment in journal.segments()})
    found = (decode_group(journal.read(each.place)) for writer in writers for each in journal.written(writer))
    return {group.key: group for group in found}


def check(folder: Path) -> Counter[str]:
    """The kinds of a finished run's events: the law and the bound hold in it, and nothing is kept that has ended."""
    with RunReader(folder) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        batches = [row.record for row in reader.metrics.read("batch")]
        kinds = Counter(event.kind for event in reader.events.read())
    assert max((int(stale) for record in batches for stale in record["staleness"]), default=0) <= ETA
    with sqlite3.connect(folder / "run.db") as database:
        running = {
            key
            for *key, state in database.execute("SELECT epoch, position, attempt, state FROM attempts")
            if state == "running"
            for key in [tuple(key)]
        }
    assert set(Partials(folder / "partial").keys()) <= running
    return kinds


def swapped(groups: dict[GroupKey, Group]) -> list[GroupKey]:
    """Those with a sample that was aborted, and gone on with by newer weights."""
    return [
        key
        for key, group in groups.items()
        if any(
            "aborted_at" in sample.metadata and len(set(sample.versions[sample.loss_mask])) > 1
            for sample in group.samples
        )
    ]


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("workers", [1, 0], ids=["in a worker", "in the run's process"])
def test_a_run_trains_through_it_and_evaluates(tmp_path: Path, workers: int) -> None:
    job, folder = job_of(tmp_path / "job"), tmp_path / "run"
    (tmp_path / "evaluated.py").write_text(EVALUATED)
    evaluated = f"evaluation.function={tmp_path}/evaluated.py:play"
    assert main(["train", str(job), FUNCTION, evaluated, f"rollout.workers={workers}", "--dir", str(folder)]) == 0
    kinds = check(folder)
    assert not any(kinds[each] for each in ("worker_lost", "failed_sample", "filter_failed"))
    # A worker may be done with each before the next version is there.
    assert workers or swapped(groups_of(folder)), "partial rollouts outlive swaps, each token with its version"
    with RunReader(folder) as reader:
        assert [row.number for row in reader.metrics.read("eval")] == [0, 8]
        assert all(not row.record["failed"] for row in reader.metrics.read("eval"))
    notes = json.loads(Partials(folder / "partial").read_notes("eval") or "{}")
    assert notes["calls"] >= 2, "one for each evaluation"


def ended_with_partials(job: Path, folder: Path, how: signal.Signals, *more: str) -> dict[GroupKey, Group]:
    """What had been put back, and not finished, when the run was ended by this signal."""
    partials, end = Partials(folder / "partial"), time.monotonic() + 90
    process = start("train", str(job), FUNCTION, *more, "--dir", str(folder))
    try:
        while not partials.keys() or batches_of(folder) < 2:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.002)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(how)
    except BaseException:
        process.kill()
        raise
    process.communicate(timeout=60)
    psutil.wait_procs(children, timeout=30)
    return {GroupKey(*key): decode_group(partials.read(key) or b"") for key in sorted(partials.keys())}


def batches_of(folder: Path) -> int:
    try:
        with sqlite3.connect(f"file:{folder}/run.db?mode=ro", uri=True) as database:
            (count,) = database.execute("SELECT count(*) FROM metrics WHERE kind = 'batch'").fetchone()
            return int(count)
    except sqlite3.Error:
        return 0


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(("how", "masks"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGINT, False)])
def test_a_run_that_is_ended_goes_on_with_all_that_was_put_back(
    tmp_path: Path, how: signal.Signals, masks: bool
) -> None:
    job, folder = job_of(tmp_path / "job", data__eval=None), tmp_path / "run"
    more = (f"rollout.mask_continued={masks}".lower(),)
    saved = ended_with_partials(job, folder, how, *more)
    if how is signal.SIGKILL:  # else the batch at hand is ended first
        assert any(sample.loss_mask.any() for group in saved.values() for sample in group.samples)
    assert main(["train", str(job), FUNCTION, *more, "--dir", str(folder), "--resume"]) == 0
    check(folder)
    groups, older = groups_of(folder), 0
    for key, group in saved.items():
        for had, has in zip(group.samples, groups[key].samples, strict=True):
            length = len(had)
            assert np.array_equal(has.tokens[:length], had.tokens), key
            kept = has.loss_mask[:length]
            assert masks or np.array_equal(kept, had.loss_mask), key
            older += int((had.loss_mask & ~kept).sum())
            for name in ("versions", "branches", "logprobs"):
                assert np.array_equal(getattr(has, name)[:length][kept], getattr(had, name)[kept]), (key, name)
    assert masks or not older


@pytest.mark.slow
@pytest.mark.cpu
def test_on_policy_what_was_begun_is_put_back_and_the_run_resumes(tmp_path: Path) -> None:
    job = job_of(tmp_path / "job", data__eval=None, async__mode="sync", async__max_staleness=0)
    folder = tmp_path / "run"
    run_killed(["train", str(job), FUNCTION, "--dir", str(folder)], folder, after=3)
    assert main(["train", str(job), FUNCTION, "--dir", str(folder), "--resume"]) == 0
    check(folder)


@pytest.mark.slow
@pytest.mark.cpu
def test_a_worker_that_is_killed_comes_back_and_the_run_ends_well(tmp_path: Path) -> None:
    job, folder = job_of(tmp_path / "job", data__eval=None, trainer__batches=30), tmp_path / "run"
    killed: list[int] = []

    def kill() -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end and len(killed) < 2:
            time.sleep(0.2)
            for each in psutil.Process().children():
                plays = "rollout/0" in " ".join(each.cmdline()) and (folder / "partial" / "metadata.json").exists()
                if plays and each.pid not in killed:
                    os.kill(each.pid, signal.SIGKILL)
                    killed.append(each.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    assert main(["train", str(job), FUNCTION, "trainer.epochs=8", "--dir", str(folder)]) == 0
    killer.join()
    assert killed
    assert check(folder)["worker_lost"] >= 1


def config_of(**rollout: object) -> TrainConfig:
    return load_config(TrainConfig, {"model": {"path": "m"}, "data": {"train": "t"}, "rollout": rollout}, ())


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        ({"buffer_filter": "own.py:f"}, "buffer_filter is of a rollout function, and function is not set"),
        ({"mask_continued": True}, "mask_continued is of a rollout function, and function is not set"),
    ],
)
def test_keys_without_a_function_are_refused(rollout: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(**rollout)


def test_one_worker_plays_all_of_it() -> None:
    assert rollout_workers(config_of(function="own.py:f"), {}) == 1
    assert rollout_workers(config_of(function="own.py:f", workers=0), {}) == 0
    with pytest.raises(ConfigError, match=r"rollout.workers is 2, but rollout.function is 'own.py:f', whose buffer"):
        rollout_workers(config_of(function="own.py:f", workers=2), {})
