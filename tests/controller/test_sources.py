"""Runs on several sources, under a curriculum, and on verl's files: real processes, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from controller_jobs import make_job, run, start
from forked import Forked

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.config.sft import SFTConfig
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import make_plan
from headrace.models.loading import load_tokenizer
from headrace.offline.demonstrations import read_demonstrations
from headrace.store import RunReader

BIG, SMALL = 7, 5
BATCHES = 9


def sources(folder: Path) -> list[dict[str, object]]:
    """Twice as many prompts of the one as of the other."""
    folder.mkdir(exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([{"prompt": f"{i}+{i}=", "level": 9.0 - i} for i in range(BIG)]), folder / "big.parquet"
    )
    (folder / "small.jsonl").write_text(
        "".join(json.dumps({"prompt": f"{i}-{i}=", "level": i}) + "\n" for i in range(SMALL))
    )
    return [{"path": str(folder / "big.parquet"), "weight": 2}, {"path": str(folder / "small.jsonl"), "weight": 1}]


def drawn(folder: Path) -> dict[tuple[int, int], tuple[int, str]]:
    """(row, prompt id) of every position."""
    with closing(sqlite3.connect(folder / "run.db")) as database:
        found: dict[tuple[int, int], tuple[int, str]] = {}
        for epoch, position, row, prompt_id in database.execute("SELECT epoch, position, row, prompt_id FROM attempts"):
            assert found.setdefault((epoch, position), (row, prompt_id)) == (row, prompt_id), "another row when retried"
        return found


def check_epochs(rows: dict[tuple[int, int], tuple[int, str]]) -> None:
    """Two of three prompts are of the big source; in each epoch of a source each row is drawn once."""
    in_order = [rows[key] for key in sorted(rows)]
    assert sorted(rows) == [divmod(place, BIG + SMALL) for place in range(len(rows))], "no position is left out"
    for name, size, first in (("big", BIG, 0), ("small", SMALL, BIG)):
        own = [(row, prompt_id) for row, prompt_id in in_order if first <= row < first + size]
        assert all(prompt_id == f"{name}/{row - first + 1}" for row, prompt_id in own)
        for begin in range(0, len(own), size):
            epoch = own[begin : begin + size]
            assert len(set(epoch)) == len(epoch), f"a row of {name} was doubled"
            assert len(epoch) == size or begin + size > len(own), f"a row of {name} was lost"
    assert abs(sum(row < BIG for row, _ in in_order) - len(in_order) * 2 / 3) <= 1


def wait_for_version(process: Forked, folder: Path, number: int) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if (folder / "run.db").exists():
            with RunReader(folder) as reader:
                if (reader.version() or (0, 0))[1] >= number:
                    return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError(f"the run did not reach version {number}")


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.copied
def test_a_run_by_pass_rates_that_is_killed_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    job = make_job(
        tmp_path / "job",
        data__train=sources(tmp_path / "data"),
        data__curriculum={"pass_rate": 0.5, "passes_above": 0.4},
        trainer__batches=BATCHES,
        checkpoint__every=4,
        async__mode="sync",
    )
    code, out = run("train", job, "--dir", tmp_path / "whole")
    assert code == 0, out
    whole = drawn(tmp_path / "whole")
    check_epochs(whole)
    with closing(sqlite3.connect(tmp_path / "whole" / "run.db")) as database:
        rates = [rate for (rate,) in database.execute("SELECT pass_rate FROM attempts WHERE state = 'trained'")]
    assert {0.0, 1 / 3, 2 / 3, 1.0} >= set(rates), "of three samples"
    with RunReader(tmp_path / "whole") as reader:
        by_source = [row.record["reward_sources"] for row in reader.metrics.read("batch")]
    assert {name for batch in by_source for name in batch} == {"big", "small"}

    folder = tmp_path / "killed"
    process = start("train", job, "--dir", folder)
    wait_for_version(process, folder, 6)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = drawn(folder)
    assert len(before) >= 12
    code, out = run("train", job, "--dir", folder, "--resume")
    assert code == 0, out
    after = drawn(folder)
    assert before.items() <= after.items(), "a row that was chosen is read again, not chosen again"
    assert after == whole, "the curriculum goes on as if nothing had been"
    with RunReader(folder) as reader:
        reader.counts().check()


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize(
    "curriculum",
    [
        {"pass_rate": 0.25},
        *(pytest.param(each, marks=pytest.mark.soak) for each in ({}, {"column": "level"})),
    ],
)
def test_an_asynchronous_run_on_weighted_sources_that_is_killed_twice_loses_and_doubles_nothing(
    tmp_path: Path, curriculum: dict[str, object]
) -> None:
    job = make_job(
        tmp_path / "job",
        data__train=sources(tmp_path / "data"),
        data__curriculum=curriculum,
        trainer__batches=100_000,
        rollout__sampling__max_new_tokens=24,
    )
    folder = tmp_path / "run"
    process = start("train", job, "--dir", folder)
    for version in (3, 7):
        wait_for_version(process, folder, version)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        before = drawn(folder)
        with RunReader(folder) as reader:
            reached = reader.version()[1]
        more = [f"trainer.batches={reached + 7}"] if version == 7 else []
        process = start("train", job, *more, "--dir", folder, "--resume")
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    after = drawn(folder)
    assert before.items() <= after.items()
    check_epochs(after)


def test_data_that_were_changed_are_refused_on_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_job(tmp_path / "job", data__train=sources(tmp_path / "data"), trainer__batches=1)
    assert main(["train", str(job), "--dir", str(tmp_path / "run")]) == 0
    with closing(sqlite3.connect(tmp_path / "run" / "run.db", isolation_level=None)) as database:
        database.execute("UPDATE run SET value = 'stopped' WHERE name = 'status'")
    rows = (tmp_path / "data" / "small.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "data" / "small.jsonl").write_text("".join(rows[1:]))
    capsys.readouterr()
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--resume"]) != 0
    said = capsys.readouterr().err
    assert "small.jsonl is not what it was when the run in" in said
    assert "(it held 5 rows, " in said
    assert "now 4 rows, " in said


def test_verls_parquet_with_nested_columns_is_trained_on(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{i}+1="}],
            "reward_model": {"style": "rule", "ground_truth": str(i + 1)},
            "extra_info": {"index": i},
        }
        for i in range(6)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    job = make_job(
        tmp_path / "job",
        data={"train": str(tmp_path / "train.parquet"), "id_column": "extra_info.index"},
        reward={"function": "exact", "answer_column": "reward_model.ground_truth", "workers": 1},
        rollout__filters=[],
        trainer__batches=1,
    )
    model = tmp_path / "job" / "model"
    (model / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    assert main(["train", str(job), "--dir", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["version"] == 1
    assert not summary["samples"]["failed"]
    assert {prompt_id for _, prompt_id in drawn(tmp_path / "run").values()} <= {"0", "1", "2", "3", "4", "5"}


def test_check_tells_shares_and_order(tmp_path: Path) -> None:
    job = make_job(
        tmp_path / "job",
        data__train=sources(tmp_path / "data"),
        data__curriculum={"column": "level"},
        data__eval={"path": str(tmp_path / "data" / "big.parquet")},
        trainer__batches=None,
        trainer__epochs=2,
    )
    plan = make_plan(load_config(TrainConfig, job))
    told = describe_plan(plan)
    assert "big.parquet, " in told
    assert ": 12 prompts; held out: 7" in told
    assert "big               66.7% of the prompts, 7 rows" in told
    assert "small             33.3% of the prompts, 5 rows" in told
    assert "by level, from the lowest, in every epoch of a source" in told
    assert plan.total_batches == 12, "2 x 12 prompts in batches of 2"


def test_demonstrations_come_from_any_source(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job")
    rows = [{"q": {"text": f"{i}+1="}, "a": str(i + 1)} for i in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "one.parquet")
    (tmp_path / "two.json").write_text(json.dumps(rows[:2]))
    data = {
        "train": [str(tmp_path / "one.parquet"), {"path": str(tmp_path / "two.json")}],
        "prompt_column": "q.text",
        "response_column": "a",
    }
    config = SFTConfig.model_validate({"model": {"path": str(job.parent / "model")}, "data": data})
    tokenizer = load_tokenizer(config.model.path)
    packed = read_demonstrations(config.data, tokenizer, end_token_id=0, max_context=None)
    texts = [tokenizer.decode(row.tokens[:-1]) for row in packed]
    assert texts == ["0+1=1", "1+1=2", "2+1=3", "3+1=4", "0+1=1", "1+1=2"]
    with pytest.raises(ValueError, match="has a weight, and here every row comes once"):
        SFTConfig.model_validate({"model": {"path": "m"}, "data": {**data, "train": [{"path": "a", "weight": 1}]}})
