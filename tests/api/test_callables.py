"""Rewards, workflows, environments and filters given as objects, on real runs: how they get to where they are called,
and what of them is written down."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from api_jobs import ROWS, job
from api_rewards import letters

import headrace
from headrace.cli.main import main
from headrace.rollout.single_turn import SingleTurn


def train(folder: Path, **given: Any) -> headrace.Run:
    config = job(folder)
    return headrace.train(config, dir=folder / "run", **{"data": ROWS, "trainer__batches": 1, **given})


def shared(value: object) -> Any:
    """A reward with a closure, as notebooks have many."""

    def score(response: str, row: dict[str, Any]) -> float:
        return 0.125 if value else 0.0

    return score


def test_a_closure_reaches_every_process_by_the_pipe_and_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = "a-text-that-only-the-closure-holds"
    run = train(tmp_path, reward=shared([secret]), reward__workers=2)
    assert [batch.reward_mean for batch in run.metrics] == [0.125]
    assert run.config.reward.function == "<memory>:score"
    for path in run.path.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    assert [path.name[:6] for path in (run.path / "inputs").iterdir()] == ["train-"]
    assert main(["check", str(run.path / "config.yaml")]) == 2
    out = capsys.readouterr().err
    assert (
        "reward.function is '<memory>:score': score was given in Python, and no file defines it; give it again" in out
    )


def test_a_closure_cannot_resume_a_run(tmp_path: Path) -> None:
    run = train(tmp_path, reward=letters)
    with pytest.raises(headrace.ConfigError, match=r"reward is score, which no file and no source of its own defines"):
        train(tmp_path, reward=shared([1]), resume=True)
    assert train(tmp_path, reward=letters, resume=True).record == run.record


def test_a_closure_that_cannot_be_sent_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(headrace.ConfigError, match=r"score cannot be sent .*cannot pickle '_thread.lock'.*trusted"):
        train(tmp_path, reward=shared(threading.Lock()))
    assert not (tmp_path / "run").exists()


def test_a_trusted_reward_is_called_in_the_caller_s_process(tmp_path: Path) -> None:
    seen: list[int] = []
    lock = threading.Lock()

    async def score(response: str, row: dict[str, Any], prompt: str) -> float:
        with lock:
            seen.append(os.getpid())
        return float(prompt == row["prompt"])

    run = train(tmp_path, reward=score, reward__trusted=True)
    assert [batch.reward_mean for batch in run.metrics] == [1.0]
    assert set(seen) == {os.getpid()}


@pytest.mark.slow
def test_a_trusted_reward_that_hangs_or_raises_costs_its_sample(tmp_path: Path) -> None:
    calls: list[int] = []
    held = threading.Event()

    def score(response: str, row: dict[str, Any]) -> float:
        calls.append(1)
        if len(calls) == 1:
            held.wait(60)
        if len(calls) == 2:
            raise ValueError("second")
        return 0.5

    try:
        run = train(tmp_path, reward=score, reward__trusted=True, reward__timeout_s=3, rollout__min_samples=1)
    finally:
        held.set()
    assert run.status == "finished"
    assert run.summary["samples"]["failed"] == {"reward_timeout": 1, "reward_raised": 1}


def test_several_rewards_are_added(tmp_path: Path) -> None:
    run = train(tmp_path, reward=[lambda response, row: 0.25, shared([1]), "numeric"])
    assert run.metrics[0].reward_terms["reward"] == 0.25
    assert run.metrics[0].reward_terms["score"] == 0.125
    assert set(run.metrics[0].reward_terms) == {"reward", "score", "numeric"}


def test_objects_serve_where_they_are_and_what_their_source_defines_is_written(tmp_path: Path) -> None:
    class Counted(SingleTurn):
        def __init__(self, seen: list[str]) -> None:
            self.seen = seen

        async def run(self, prompt: headrace.Prompt, policy: headrace.Policy) -> headrace.Trajectory:
            self.seen.append(prompt.prompt_id)
            return await super().run(prompt, policy)

    seen: list[str] = []
    kept: list[headrace.Group] = []

    def keep(group: headrace.Group) -> bool:
        kept.append(group)
        return True

    run = train(tmp_path, reward=letters, workflow=Counted(seen), filters=[keep, lambda group: len(group.samples) > 0])
    assert run.config.rollout.workflow == "<memory>:Counted"
    assert len(seen) == 3 * len(kept)
    memory, written = run.config.rollout.filters or ()
    assert memory == "<memory>:keep"
    assert str(written).startswith(f"{run.path}/inputs/filter-")
    assert str(written).endswith(".py:filter")


class Echo:
    """Ends after its first step, with a reward for what was said."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def reset(self, row: dict[str, Any]) -> str:
        return str(row["prompt"])

    def step(self, action: str) -> headrace.StepResult:
        return headrace.StepResult("", reward=0.75, done=True)


def test_an_environment_is_a_class_or_a_function_that_makes_one(tmp_path: Path) -> None:
    run = train(tmp_path, environment=Echo)
    assert [batch.reward_mean for batch in run.metrics] == [0.75]
    assert str(run.config.rollout.environment).startswith(f"{run.path}/inputs/environment-")
    assert Echo.made >= 6
    made = []

    def make() -> Echo:
        made.append(1)
        return Echo()

    other = headrace.train(job(tmp_path), data=ROWS, environment=make, dir=tmp_path / "other", trainer__batches=1)
    assert [batch.reward_mean for batch in other.metrics] == [0.75]
    assert made
    with pytest.raises(
        headrace.ConfigError, match="environment is of type Echo; give a class, or a function that makes one"
    ):
        headrace.train(job(tmp_path), data=ROWS, environment=Echo(), dir=tmp_path / "third")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a reward of other arguments": (
        {"reward": lambda text: 1.0},
        r"reward.function is '.*:reward', which has the signature \(text\), but is called as \(response, row\)",
    ),
    "a reward that is none": ({"reward": 3}, "reward is of type int; give a function, or text as in the config"),
    "rows without the prompt": (
        {"data": [{"question": "1"}]},
        r"^data, line 1 has no prompt column 'prompt' \(it has 'question'\)",
    ),
    "no rows": ({"data": []}, "holds no rows"),
    "an unknown key": ({"trainer__learning_rate": 1.0}, "unknown key trainer.learning_rate; did you mean trainer.opt"),
    "an unknown argument": ({"learning_rate": 1.0}, "unknown key learning_rate; did you mean trainer.optimizer.lr"),
    "a value out of range": ({"trainer__batches": 0}, "trainer.batches is 0"),
    "a value of no kind": ({"trainer__batches": object()}, "override trainer.batches="),
    "no callback": ({"callbacks": [len]}, "has none of on_batch, on_evaluation, on_checkpoint, on_rollout"),
    "a callback's class": (
        {"callbacks": [type("C", (), {"on_batch": lambda s, b: None})]},
        r"give an object of it, C\(\)",
    ),
    "a workflow that is not async": (
        {"workflow": type("W", (), {"run": lambda self, prompt, policy: None})},
        "whose method run is not async; write async def run",
    ),
    "an empty folder": ({"dir": ""}, "dir is empty"),
    "a run that is not there": ({"resume": True}, "holds no run to go on with; check dir, or leave out resume=True"),
}


@pytest.mark.parametrize(("given", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_what_is_given_wrong_is_one_clear_error(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((headrace.ConfigError, headrace.StoreError), match=words) as caught:
        headrace.train(job(tmp_path), **{"data": ROWS, "reward": letters, "dir": tmp_path / "run", **given})
    assert not (tmp_path / "run").exists()
    files = [Path(entry.path).parts[-2:] for entry in caught.traceback]
    assert files == [("api", "test_callables.py"), ("api", "training.py"), ("api", "background.py")]
    assert caught.value.__cause__ is None


def test_without_a_config_s_file_the_folder_is_the_first_that_is_free(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "train").mkdir(parents=True)
    began = time.monotonic()
    run = headrace.train(job(tmp_path), data=ROWS, reward=letters, trainer__batches=1)
    assert run.path == tmp_path / "runs" / "train-2"
    assert time.monotonic() - began < 60
