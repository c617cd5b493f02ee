"""Runs whose episodes are played in processes of their own: with the user's code, and with what it does to them."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from controller_jobs import make_job
from rollout_worker_code import SOURCE
from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM

from headrace.cli.main import main
from headrace.config import ConfigError, load_config
from headrace.config.train import TrainConfig
from headrace.controller.planning.rollout_worker_count import rollout_workers
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group
from headrace.models.loading import save_pretrained_folder
from headrace.runtime.process.site import site_parent
from headrace.store import RunReader
from headrace.store.journal import Journal

ETA = 2


def job_of(folder: Path, **changes: object) -> Path:
    job = make_job(folder, async__max_staleness=ETA, **changes)
    (folder / "own.py").write_text(SOURCE)
    return job


def own(job: Path, name: str) -> str:
    return f"{job.parent}/own.py:{name}"


def groups_of(folder: Path) -> list[Group]:
    """All that are in the journal."""
    journal = Journal(folder / "journal")
    writers = sorted({segment.writer for segment in journal.segments()})
    return [decode_group(journal.read(each.place)) for writer in writers for each in journal.written(writer)]


def kinds_of(folder: Path) -> Counter[str]:
    """The kinds of a finished run's events: the law and the bound hold in it."""
    with RunReader(folder) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        batches = [row.record for row in reader.metrics.read("batch")]
        kinds = Counter(event.kind for event in reader.events.read())
    assert max((int(stale) for record in batches for stale in record["staleness"]), default=0) <= ETA
    return kinds


def reasons_of(folder: Path) -> Counter[str]:
    import sqlite3

    with sqlite3.connect(folder / "run.db") as database:
        return Counter(reason for (reason,) in database.execute("SELECT reason FROM attempts WHERE state = 'dropped'"))


def train(*arguments: str) -> None:
    assert main(["train", *map(str, arguments)]) == 0


@pytest.mark.slow
@pytest.mark.cpu
def test_a_users_workflow_reward_and_filter_run_in_a_worker(tmp_path: Path) -> None:
    job, folder = job_of(tmp_path / "job", record__journal="all"), tmp_path / "run"
    train(job, f"rollout.workflow={own(job, 'Mine')}", f'rollout.filters=["{own(job, "keep")}"]', "--dir", folder)
    kinds = kinds_of(folder)
    assert not any(kinds[each] for each in ("worker_lost", "failed_sample", "filter_failed"))
    played = [sample.metadata for group in groups_of(folder) for sample in group.samples]
    assert len(played) >= 6 * 2 * 3
    assert len({each["pid"] for each in played}) == 1
    assert played[0]["pid"] != os.getpid()
    assert played[0]["imported"] == [], "Headrace's own code imports neither there"
    assert not reasons_of(folder), "the filter saw what was played in its own process"
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]  # of the run
    assert not list(site_parent().glob(f"headrace-*-{digest}-*")), "nothing is left in memory"


@pytest.mark.slow
@pytest.mark.cpu
def test_ppo_with_two_workers_and_engines_in_processes_evaluates_and_resumes(tmp_path: Path) -> None:
    job = job_of(
        tmp_path / "job",
        algorithm__advantage="gae",
        algorithm__kl__coefficient=0.1,
        rollout__workers=2,
        rollout__filters=[{"type": "repetition", "max_repeated": 0.99}],
        engine__process=True,
        record__journal="all",
    )
    folder = tmp_path / "run"
    train(job, "trainer.batches=3", "--dir", folder)
    train(job, "--dir", folder, "--resume")
    kinds_of(folder)
    writers = {segment.writer for segment in Journal(folder / "journal").segments()}
    assert len(writers) >= 3, "each worker has a journal of its own, and each process begins new ones"
    with RunReader(folder) as reader:
        assert [row.number for row in reader.metrics.read("eval")] == [0, 3, 6]
        assert all(not row.record["failed"] for row in reader.metrics.read("eval"))


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    "changes",
    [{}, {"algorithm__kl__coefficient": 0.1, "reference__placement": "process"}],
    ids=["alone", "with a reference in a process"],
)
def test_a_worker_that_is_killed_in_mid_run_costs_no_finished_group(tmp_path: Path, changes: dict[str, object]) -> None:
    job, folder = job_of(tmp_path / "job", trainer__batches=40, data__eval=None, **changes), tmp_path / "run"
    killed: list[int] = []

    def kill() -> None:
        begun, end = folder / "run.db", time.monotonic() + 60
        while time.monotonic() < end and len(killed) < 2:
            time.sleep(0.2)
            if not begun.exists():
                continue
            for each in psutil.Process().children():
                if "rollout/0" in " ".join(each.cmdline()) and each.pid not in killed and _batches(folder) > 3:
                    os.kill(each.pid, signal.SIGKILL)
                    killed.append(each.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    train(job, f"rollout.workflow={own(job, 'Mine')}", "trainer.epochs=8", "--dir", folder)
    killer.join()
    assert killed
    kinds = kinds_of(folder)
    assert kinds["worker_lost"] >= 1
    assert set(reasons_of(folder)) <= {"zero_spread"}, "a loss is neither an attempt nor a drop"


def _batches(folder: Path) -> int:
    with RunReader(folder) as reader:
        return len(reader.metrics.read("batch"))


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("workflow", "more", "said"),
    [("Exits", (), "ended with exit code 3"), ("Blocks", ("rollout.block_timeout_s=5",), "has not turned for")],
)
def test_a_row_that_ends_or_blocks_its_process_is_left_out(
    tmp_path: Path, workflow: str, more: Sequence[str], said: str
) -> None:
    job, folder = job_of(tmp_path / "job", trainer__batches=10, data__eval=None), tmp_path / "run"
    chosen = (f"rollout.workflow={own(job, workflow)}", "rollout.max_attempts=1", "data.shuffle=false")
    train(job, *chosen, *more, "--dir", folder)
    kinds_of(folder)
    with RunReader(folder) as reader:
        lost = [event.data["message"] for event in reader.events.read() if event.kind == "worker_lost"]
    assert len(lost) == 3, "the third loss under the group hands it back"
    assert all(said in each for each in lost)
    assert reasons_of(folder) - Counter(zero_spread=100) == {"exhausted (failed: worker_lost)": 1}


@pytest.mark.slow
@pytest.mark.cpu
def test_a_row_that_ends_the_only_worker_is_left_out_with_nothing_else_to_play(tmp_path: Path) -> None:
    """In `sync` all others of its batch have finished before it ends the process, attempt for attempt."""
    job, folder = make_job(tmp_path / "job", trainer__batches=4, data__eval=None, async__mode="sync"), tmp_path / "run"
    (job.parent / "own.py").write_text(SOURCE)
    train(
        job,
        f"rollout.workflow={own(job, 'ExitsLate')}",
        "data.shuffle=false",
        "rollout.filters=[]",
        "--dir",
        folder,
    )
    kinds = kinds_of(folder)
    assert kinds["worker_lost"] == 9, "three attempts, of three losses each"
    assert reasons_of(folder)["exhausted (failed: worker_lost)"] == 1


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.cpu
def test_rows_that_end_and_block_the_only_worker_in_one_batch_are_left_out(tmp_path: Path) -> None:
    """Attempt for attempt, and one after another: the run has no row for longer than a wait may be."""
    job, folder = make_job(tmp_path / "job", trainer__batches=3, data__eval=None, async__mode="sync"), tmp_path / "run"
    (job.parent / "own.py").write_text(SOURCE)
    train(
        job,
        f"rollout.workflow={own(job, 'ExitsAndBlocks')}",
        "rollout.block_timeout_s=3",
        "rollout.episode_timeout_s=20",
        "runtime.stall_timeout_s=25",
        "data.shuffle=false",
        "rollout.filters=[]",
        "--dir",
        folder,
    )
    kinds_of(folder)
    assert reasons_of(folder)["exhausted (failed: worker_lost)"] == 2


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("workers", ["auto", "0"])
def test_an_episode_that_swallows_its_cancellation_costs_its_own_samples(tmp_path: Path, workers: str) -> None:
    job, folder = job_of(tmp_path / "job", trainer__batches=6, data__eval=None), tmp_path / "run"
    chosen = (f"rollout.workflow={own(job, 'NeverEnds')}", f"rollout.workers={workers}", "rollout.max_attempts=1")
    limits = ("rollout.episode_timeout_s=3", "runtime.stall_timeout_s=40", "data.shuffle=false", "rollout.filters=[]")
    train(job, *chosen, *limits, "--dir", folder)
    assert "worker_lost" not in kinds_of(folder)
    assert reasons_of(folder) == {"exhausted (failed: timeout)": 1}


def config_of(folder: Path, **changes: object) -> TrainConfig:
    return load_config(TrainConfig, job_of(folder, **changes))


@pytest.mark.slow
@pytest.mark.cpu
def test_a_tokenizer_that_is_python_alone_plays_in_a_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = ByT5Tokenizer()
    job, folder = job_of(tmp_path / "job", data__eval=None, trainer__batches=2), tmp_path / "run"
    shutil.rmtree(job.parent / "model")
    shape = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
    config = LlamaConfig(
        **shape, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, bos_token_id=None
    )
    save_pretrained_folder(LlamaForCausalLM(config), tokenizer, job.parent / "model")
    workflow = f"rollout.workflow={own(job, 'Mine')}"
    assert main(["check", str(job), workflow]) == 0
    assert "the tokenizer is Python's alone: each process imports transformers for it" in capsys.readouterr().out
    train(job, workflow, "--dir", folder)
    assert not kinds_of(folder)["failed_sample"]


def test_auto_is_a_worker_for_code_of_the_users_own(tmp_path: Path) -> None:
    built_in = config_of(tmp_path / "a")
    assert rollout_workers(built_in, {}) == 0
    for number, changes in enumerate(
        [
            {"rollout__workflow": "own.py:Mine"},
            {"rollout__workflow": "multi_turn", "rollout__environment": "own.py:Mine"},
            {"rollout__filters": ["own.py:keep"]},
            {"rollout__filters": [{"type": "function", "function": "own.py:keep"}]},
            {"rollout__workers": 1},
        ]
    ):
        config = config_of(tmp_path / str(number), **changes)
        assert rollout_workers(config, {}) == 1
    assert rollout_workers(config_of(tmp_path / "b", rollout__workflow="own.py:Mine", rollout__workers=0), {}) == 0


def test_what_was_given_in_python_stays_in_the_process(tmp_path: Path) -> None:
    given = {"<memory>:Mine": object}
    auto = config_of(tmp_path / "a", rollout__workflow="<memory>:Mine")
    assert rollout_workers(auto, given) == 0
    with pytest.raises(ConfigError, match=r"rollout.workers is 1, but rollout.workflow is '<memory>:Mine'.*name it"):
        rollout_workers(config_of(tmp_path / "b", rollout__workflow="<memory>:Mine", rollout__workers=1), given)
    with pytest.raises(ConfigError, match=r"reward.function is 'own.py:score'"):
        rollout_workers(
            config_of(tmp_path / "c", reward__function="own.py:score", rollout__workers=2), {"own.py:score": len}
        )


def test_check_says_who_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = job_of(tmp_path / "job")
    assert main(["check", str(job), f"rollout.workflow={own(job, 'Mine')}"]) == 0
    said = capsys.readouterr().out
    assert "1 process of its own (auto: rollout.workflow" in said
    assert "nothing global in them is shared with this process" in said
    assert main(["check", str(job)]) == 0
    assert "of its own (auto" not in capsys.readouterr().out
