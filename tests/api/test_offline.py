"""What the offline trainers are given in Python beside rows to train on, and what can be read of them."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_model

import headrace

DEMONSTRATIONS = [{"prompt": f"{n}+1=", "response": str(n + 1)} for n in range(8)]
PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "no"} for n in range(6)]


class Heard:
    def __init__(self) -> None:
        self.steps: list[headrace.OfflineStep] = []
        self.evaluations: list[headrace.HeldOutRows] = []
        self.checkpoints: list[headrace.Checkpoint] = []
        self.threads: set[int] = set()

    def on_batch(self, step: headrace.OfflineStep) -> None:
        self.steps.append(step)
        self.threads.add(threading.get_ident())

    def on_evaluation(self, found: headrace.HeldOutRows) -> None:
        self.evaluations.append(found)

    def on_checkpoint(self, checkpoint: headrace.Checkpoint) -> None:
        assert (checkpoint.model / "config.json").is_file()
        self.checkpoints.append(checkpoint)


class Broken:
    def on_batch(self, step: headrace.OfflineStep) -> None:
        raise KeyError(step.step)


def offline(folder: Path, **sections: Any) -> dict[str, Any]:
    if not (folder / "model").is_dir():
        make_model(folder / "model")
    return {"model": {"path": folder / "model"}, "runtime": {"threads": 2}, **sections}


def test_callbacks_hear_steps_held_out_rows_and_checkpoints(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    config = offline(tmp_path, trainer={"samples_per_batch": 2}, checkpoint={"every": 3}, evaluation={"every": 2})
    with caplog.at_level(logging.WARNING):
        run = headrace.sft(
            config,
            data=DEMONSTRATIONS,
            eval_data=(row for row in DEMONSTRATIONS[:3]),
            callbacks=[heard, Broken()],
            dir=tmp_path / "sft",
        )
    assert (run.status, [step.step for step in heard.steps]) == ("finished", [1, 2, 3, 4])
    assert [(found.step, found.rows) for found in heard.evaluations] == [(0, 3), (2, 3), (4, 3)]
    assert [(one.version, one.path) for one in heard.checkpoints] == [(3, run.path / "checkpoint"), (4, run.path)]
    assert heard.checkpoints[-1].model == run.model
    assert threading.get_ident() not in heard.threads
    assert sorted(path.name[:5] for path in (run.path / "inputs").iterdir()) == ["eval-", "train"]
    told = [record.getMessage() for record in caplog.records if "callback" in record.getMessage()]
    assert told[0].startswith("callback Broken.on_batch raised KeyError: 1")
    assert told[1:] == ["callback Broken.on_batch raised 4 times in all"]
    assert list(run.metrics) == heard.steps
    assert list(run.evaluations) == heard.evaluations


def test_metrics_are_a_sequence_of_steps_and_a_frame(tmp_path: Path) -> None:
    run = headrace.dpo(
        offline(tmp_path, trainer={"pairs_per_batch": 2}), data=PAIRS, eval_data=PAIRS[:2], dir=tmp_path / "dpo"
    )
    assert (len(run.metrics), repr(run.metrics)) == (3, "<metrics of 3 steps>")
    assert run.metrics[-1] == run.metrics[1:][-1] == run.record.steps[2]
    assert [found.step for found in run.evaluations] == [0, 3]
    pytest.importorskip("pandas")
    frame = run.metrics.frame()
    assert list(frame.index) == [1, 2, 3]
    assert list(frame["measured.loss"]) == [step.measured.loss for step in run.metrics]


ROLLOUTS_ONLY = type("OnlyRollouts", (), {"on_rollout": lambda self, rollout: None})

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a callback of rollouts": ({"callbacks": [ROLLOUTS_ONLY()]}, "has none of on_batch, on_evaluation, on_checkpoint;"),
    "no list": ({"callbacks": 5}, "callbacks is a int; give a list"),
    "several held-out sets": ({"eval_data": {"a": PAIRS}}, "eval_data is a dict of a, not rows; give one of them"),
    "held-out rows without a column": ({"eval_data": [{"prompt": "a"}]}, "^eval_data, line 1 has no"),
}


@pytest.mark.parametrize(("given", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_given_wrong_is_one_clear_error(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(headrace.ConfigError, match=words):
        headrace.rm(offline(tmp_path), **{"data": PAIRS, "dir": tmp_path / "rm", **given})
    assert not (tmp_path / "rm").exists()
