"""Several ranks that train one model: the same step as one rank's, and an end that is told."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import ALONE, make_job
from rank_runs import CRITIC, Kills, Weights, kill_ranks, last_checkpoint, trained
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.config.layout import LayoutConfig
from headrace.store import RunReader
from headrace.store.journal import Journal
from headrace.training.layouts.ranks import layout_of
from headrace.training.pieces import Piece
from headrace.training.rank_workers import RankWorkers
from headrace.training.state import read_record, read_state

pytestmark = [pytest.mark.slow, pytest.mark.cpu]


def gradients(folder: Path, weights: Weights) -> Weights:
    """What the last step was made by, clipped: with betas of 0, the first moments of the run's last checkpoint."""
    last = last_checkpoint(folder)
    found = {f"exp_avg.{name}": Piece.of_whole(torch.empty_like(tensor)) for name, tensor in weights.items()}
    read_state(last, read_record(last), found, exactly=False)
    return {name.removeprefix("exp_avg."): piece.tensor for name, piece in found.items()}


REFERENCE = {"algorithm__kl__coefficient": 0.1, "reference__placement": "hybrid"}
SMALL = {"trainer__max_tokens_per_microbatch": 24}
EPOCHS = {"algorithm__epochs_per_batch": 2, "algorithm__objective": "decoupled"}
CUT = {"rollout__sampling": {"max_new_tokens": 8, "top_p": 0.9}}
M2PO = {"algorithm__recipe": "m2po"}
ON_DISK = {"weights__transport": "disk"}


@pytest.mark.parametrize(
    ("layouts", "changes"),
    [
        (["d3"], SMALL),
        ([{"dp": 2, "zero": 3}], REFERENCE),
        pytest.param(["d2"], REFERENCE, marks=pytest.mark.soak),
        pytest.param(["d2", "t2"], EPOCHS, marks=pytest.mark.soak),
        (["d2t2"], CUT),
        pytest.param([{"dp": 2, "zero": 2}], CUT, marks=pytest.mark.soak),
        (["c2"], SMALL | EPOCHS),
        (["t2"], M2PO | ON_DISK),
        ([{"zero": 3}], CRITIC | {"critic__layout": "c2t2"}),
        (["p2"], SMALL | REFERENCE | EPOCHS),
        pytest.param(*([{"pp": 2, "schedule": "gpipe"}], CRITIC | {"critic__layout": "d2p2"}), marks=pytest.mark.soak),
    ],
    ids=[
        *("small micro-batches", "reference", "reference of replicas", "epochs", "top-p", "top-p of parts", "context"),
        *("whole batch", "critic", "pipeline", "pipelines of both"),
    ],
)
def test_ranks_step_as_one_does(tmp_path: Path, layouts: list[object], changes: dict[str, Any]) -> None:
    """Loss, norm, gradients and weights of the first batch, whose rollouts are the same: to float32's rounding of sums.
    Of each tensor gradients to 4e-6 of the largest one, and the change of weights to as much of itself, beside one unit
    in the last place of the weight."""
    alone = {key: value for key, value in changes.items() if key != "critic__layout"}
    (one, *_), weights = trained(tmp_path / "1", "d1", trainer__batches=1, **alone)
    begun = load_file(tmp_path / "1" / "job" / "model" / "model.safetensors")
    of_one = gradients(tmp_path / "1", weights)
    for number, layout in enumerate(layouts):
        (other, *_), found = trained(tmp_path / f"ranks{number}", layout, trainer__batches=1, **changes)
        assert other["trained_tokens"] == one["trained_tokens"]
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-5, abs=1e-6)
        assert other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-6)
        assert other["entropy"] == pytest.approx(one["entropy"], rel=1e-6)
        assert other["mismatch_max_abs"] < 1e-5
        own_layout = layout_of(LayoutConfig.model_validate(layout))
        assert other["rows_read_bytes"] == one["rows_read_bytes"] > 0, "once, whoever computes with them"
        assert (other["rows_told_bytes"] > 0) == (own_layout.size > own_layout.dp)
        if "critic__layout" in changes:
            assert other["critic_loss"] == pytest.approx(one["critic_loss"], rel=1e-5)
        busy = json.loads((tmp_path / f"ranks{number}" / "run" / "summary.json").read_text())["time"]["busy"]
        of_ranks = [share for name, share in busy.items() if name.startswith("trainer/")]
        assert len(of_ranks) == (own_layout.size if own_layout.size > 1 else 0)
        assert all(0 < share <= 1 for share in of_ranks)
        assert found.keys() == weights.keys()
        own = gradients(tmp_path / f"ranks{number}", weights)
        for name, tensor in weights.items():
            apart, most = (float(each.abs().max()) for each in (own[name] - of_one[name], of_one[name]))
            assert most > 0
            assert apart <= 4e-6 * most, name
            apart, moved = (float((tensor - other).abs().max()) for other in (found[name], begun[name]))
            assert apart <= 4e-6 * moved + 2.0**-23 * float(tensor.abs().max()), name


def test_a_resumed_run_of_ranks_is_the_run_bit_for_bit(tmp_path: Path) -> None:
    """And one that goes on in another layout is it to rounding."""
    layout, lasting = (
        {"dp": 2, "tp": 2, "zero": 2},
        {"trainer__batches": 3, "trainer__optimizer": {"lr": 1e-3}, **ALONE},
    )
    _, whole = trained(tmp_path / "whole", layout, **lasting)
    trained(tmp_path / "run", layout, "trainer.batches=2", **lasting)
    saved = tmp_path / "run" / "run" / "checkpoints" / "step_2"
    assert len([*saved.glob("trainer-*-of-4.safetensors")]) == 4
    boxes = json.loads((saved / "manifest.json").read_text())["boxes"]
    assert sorted(boxes) == [f"trainer-{rank}-of-4.safetensors" for rank in range(4)]
    head = [one for file in boxes.values() for name, one in file.items() if name.startswith("exp_avg.model.embed")]
    assert sum(prod(one["shape"]) for one in head) == prod(head[0]["whole"]), "all of it, and none of it twice"
    shutil.copytree(tmp_path / "run" / "run", tmp_path / "other")
    _, again = trained(tmp_path / "run", layout, "--resume", **lasting)
    assert all(torch.equal(whole[name], tensor) for name, tensor in again.items())
    (tmp_path / "run" / "run").rename(tmp_path / "run" / "first")
    (tmp_path / "other").rename(tmp_path / "run" / "run")
    _, other = trained(tmp_path / "run", "c2", "--resume", **lasting)
    assert all(float((whole[name] - tensor).abs().max()) < 1e-4 for name, tensor in other.items())
    origin = ["--from", str(tmp_path / "whole" / "run"), "--from-optimizer"]
    _, begun = trained(tmp_path / "from", "d1", *origin, **{**lasting, "trainer__batches": 1})
    assert begun.keys() == whole.keys()


@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    ("layout", "changes", "kills"),
    [
        (
            {"dp": 2},
            {},
            {
                ("step", 1): 1,  # the other makes it, and goes on until the next batch
                ("add_up", 2): 0,
                ("snapshot", 4): 0,
                ("write_state", 1): 0,
            },
        ),
        pytest.param(
            {"dp": 2, "replicas": 2, "tp": 2},
            {},
            {("add_up", 1): 3, ("accumulate_held", 3): 1},
            marks=pytest.mark.soak,
        ),
        # Between the two steps of a batch: the first one is made, by all; or by those that are left. What the first
        # rank published is there yet.
        pytest.param(
            {"dp": 2, "replicas": 2, "tp": 2},
            EPOCHS | ON_DISK | {"trainer__batches": 3},
            {("add_up", 1): 0, ("step", 3): 3},
            marks=pytest.mark.soak,
        ),
    ],
    ids=["ranks", "groups of ranks", "between steps"],
)
def test_what_another_replica_has_whole_is_healed_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, int], changes: dict[str, Any], kills: Kills
) -> None:
    """Whenever it dies: weights are those of a run in which none does, on one branch, and no batch counts twice."""
    often = {
        "trainer__batches": 5,
        "trainer__optimizer": {"lr": 1e-3},
        "runtime__restarts": {"most": 9},
        **ALONE,
        **changes,
    }
    whole, weights = trained(tmp_path / "whole", layout, **often)
    kill_ranks(monkeypatch, kills)
    records, healed = trained(tmp_path / "healed", layout, **often)
    assert all(torch.equal(weights[name], tensor) for name, tensor in healed.items())
    assert [record["loss"] for record in records] == [record["loss"] for record in whole]
    with RunReader(tmp_path / "healed" / "run") as reader:
        kinds = [event.kind for event in reader.events.read()]
        assert (kinds.count("trainer_lost"), kinds.count("trainer_healed")) == (len(kills), len(kills))
        assert "went_back" not in kinds
        rows = reader.metrics.read("batch")
        assert [(row.branch, row.record["batch"]) for row in rows] == [(0, batch) for batch in range(len(whole))]


def test_a_rank_is_healed_while_rollouts_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `async`: groups that run when it dies come to their end while it is away, as they were issued."""
    told = kill_ranks(monkeypatch, {("add_up", 2): 1})
    outcomes, run = RankWorkers._outcomes, tmp_path / "run"
    running: list[set[tuple[int, ...]]] = []
    """Before the loss, and as the other heals it."""

    async def watched(ranks: RankWorkers, method: str, *args: Any) -> Any:
        if method == "heal" or (method == "add_up" and not running and [name for name, _ in told].count(method) == 2):
            with closing(sqlite3.connect(run / "run.db")) as database:
                rows = database.execute("SELECT epoch, position, attempt FROM attempts WHERE state = 'running'")
                running.append(set(rows))
        return await outcomes(ranks, method, *args)

    monkeypatch.setattr(RankWorkers, "_outcomes", watched)
    apart = {"trainer__placement": "process", "trainer__layout": {"dp": 2}, "async__mode": "async"}
    job = make_job(tmp_path / "job", trainer__batches=4, record__journal="all", **apart)
    slow = "import time\n\ndef score(response, row):\n    time.sleep(0.1)\n    return sum(map(ord, response)) % 7 / 7\n"
    (tmp_path / "job" / "reward.py").write_text(slow)
    assert main(["train", str(job), "--dir", str(run), "--plain"]) == 0
    before, after = running
    assert before - after, "some came to their end meanwhile"
    with RunReader(run) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        assert not reader.counts().dropped
        kinds = [event.kind for event in reader.events.read()]
        assert (kinds.count("trainer_lost"), kinds.count("trainer_healed")) == (1, 1)
        assert not {"went_back", "reissued"} & {*kinds}
        rows = reader.metrics.read("batch")
        assert [(row.branch, row.record["batch"]) for row in rows] == [(0, batch) for batch in range(4)]
    journal = Journal(run / "journal")
    receipts = [each for writer in {one.writer for one in journal.segments()} for each in journal.written(writer)]
    assert before <= {each.key for each in receipts}
    assert {each.issue for each in receipts} == {0}


@pytest.mark.parametrize(
    ("dies", "rank"),
    [(("add_up", 2), 0), pytest.param(("take", 2), 1, marks=pytest.mark.soak)],
    ids=["before a step", "as it is to read for the others"],
)
def test_what_nobody_else_has_is_trained_again_since_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: tuple[str, int], rank: int
) -> None:
    """Some of the layers, in the third step; nothing was committed since the beginning."""
    kill_ranks(monkeypatch, {dies: rank})
    apart = {"trainer__placement": "process", "trainer__layout": {"pp": 2}, "checkpoint__every": 9}
    job = make_job(tmp_path / "job", trainer__batches=4, **apart)
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        (lost,) = [event for event in reader.events.read() if event.kind == "trainer_lost"]
        assert f"trainer/{rank}" in lost.data["message"]
        assert [row.branch for row in reader.metrics.read("batch")] == [1] * 4


def test_a_rank_that_dies_as_weights_leave_takes_nothing_of_the_record_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a part of each layer, and has not written it: the batch's step is made, and not recorded yet. It is
    trained again since the commit, and no engine has anything of that version."""
    kill_ranks(monkeypatch, {("write_part", 3): 1})
    apart = {"trainer__placement": "process", "trainer__layout": {"tp": 2}, "checkpoint__every": 2}
    job = make_job(tmp_path / "job", trainer__batches=4, checkpoint__background=False, **apart)
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        reader.counts().check()
        events = [(event.kind, event.data) for event in reader.events.read()]
        assert [kind for kind, _ in events].count("went_back") == 1
        assert [row.record["batch"] for row in reader.metrics.read("batch")] == [0, 1, 2, 3]
        assert [row.branch for row in reader.metrics.read("batch")] == [0, 0, 1, 1]
    assert [data["version"] for kind, data in events if kind == "swap" and data["version"].startswith("v3")] == ["v3~1"]


def test_one_that_dies_before_anything_is_trained_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As version 0 leaves, then as its device is measured: the run knows nothing of it."""
    kill_ranks(monkeypatch, {("snapshot", 0): 0, ("rate", 0): 0})
    job = make_job(tmp_path / "job", trainer__batches=2, trainer__placement="process")
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        reader.counts().check()
        assert not {event.kind for event in reader.events.read()} & {"trainer_lost", "went_back"}
        assert [(row.branch, row.record["batch"]) for row in reader.metrics.read("batch")] == [(0, 0), (0, 1)]


def test_ranks_that_die_again_and_again_have_all_go_back_then_end_the_run_which_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the second loss of a batch all go on from the last commit; when that comes again, the run ends. All do
    so, too, where the one that heals dies of it in the first batch behind a resume: a new one has no state to give."""
    apart = {"trainer__placement": "process", "trainer__layout": {"dp": 2}, "checkpoint__every": 9}
    job = make_job(tmp_path / "job", trainer__batches=4, runtime__restarts={"most": 2}, **apart)
    command = ["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]
    with monkeypatch.context() as patch:
        kill_ranks(patch, {("add_up", number): 1 for number in range(2, 9)})
        assert main(command) == 1
    said = capsys.readouterr().err
    assert "trainer/1" in said
    assert "2 were lost within 600 s, or in a row without a batch between (runtime.restarts)" in " ".join(said.split())
    with RunReader(tmp_path / "run") as reader:
        kinds = [event.kind for event in reader.events.read()]
        assert [kind for kind in kinds if kind in ("trainer_healed", "went_back")] == [
            *("trainer_healed", "went_back", "trainer_healed"),
        ]
    kill_ranks(monkeypatch, {("add_up", 0): 0, ("heal", 0): 1})
    assert main([*command, "--resume", "runtime.restarts.most=9"]) == 0
    with RunReader(tmp_path / "run") as reader:
        reader.counts().check()
        assert [row.record["batch"] for row in reader.metrics.read("batch")] == [0, 1, 2, 3]
        since = [event.kind for event in reader.events.read()][len(kinds) :]
        assert [kind for kind in since if kind in ("trainer_lost", "trainer_healed", "went_back")] == [
            *("trainer_lost", "trainer_lost", "went_back"),
        ]
