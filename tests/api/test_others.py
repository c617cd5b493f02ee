"""The offline trainers, evaluation and serving, called from Python."""

import asyncio
import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from api_jobs import ROWS, job
from api_rewards import letters
from controller_jobs import make_model

import headrace

PAIRS = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": "no"} for n in range(6)]


def offline(folder: Path, **sections: Any) -> dict[str, Any]:
    if not (folder / "model").is_dir():
        make_model(folder / "model")
    return {"model": {"path": folder / "model"}, "runtime": {"threads": 2}, **sections}


def test_demonstrations_given_as_rows_are_trained_on_and_the_model_can_be_had(tmp_path: Path) -> None:
    rows = [{"prompt": row["prompt"], "response": row["answer"]} for row in ROWS]
    config = offline(tmp_path, trainer={"samples_per_batch": 8})
    run = headrace.sft(config, data=iter(rows), dir=tmp_path / "sft", trainer__optimizer__lr=1e-3)
    assert (run.status, run.summary["steps"]) == ("finished", 3)
    assert run.model == tmp_path / "sft" / "model"
    assert [path.name[:6] for path in (run.path / "inputs").iterdir()] == ["train-"]
    again = headrace.sft(config, data=rows, dir=tmp_path / "sft", resume=True, trainer__optimizer__lr=1e-3)
    assert again.summary == run.summary
    with pytest.raises(headrace.ConfigError, match=r"data is not what the run in .* began with"):
        headrace.sft(config, data=rows[1:], dir=tmp_path / "sft", resume=True, trainer__optimizer__lr=1e-3)
    with pytest.raises(headrace.ConfigError, match=r"^data, line 1 has no value in column 'response'"):
        headrace.sft(config, data=[{"prompt": "a"}], dir=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_pairs_given_as_rows_make_a_reward_model_and_a_policy(tmp_path: Path) -> None:
    config = offline(tmp_path, trainer={"pairs_per_batch": 3})
    judge = headrace.rm(config, data=PAIRS, dir=tmp_path / "rm")
    policy = asyncio.run(headrace.adpo(config, data=PAIRS, dir=tmp_path / "dpo", beta=0.2))
    assert judge.summary["steps"] == policy.summary["steps"] == 2
    assert judge.model is not None
    run = headrace.train(
        job(tmp_path), data=ROWS, reward__model={"path": str(judge.model)}, dir=tmp_path / "run", trainer__batches=1
    )
    assert run.status == "finished"


def test_an_evaluation_needs_rows_and_a_reward_alone(tmp_path: Path) -> None:
    config, offset = job(tmp_path), 0.25

    def score(response: str, row: dict[str, Any]) -> float:
        return offset + len(row["prompt"]) / 100

    result = headrace.evaluate(config, eval_data=ROWS[:4], reward=score)
    assert (result["prompts"], result["failed"]) == (4, 0)
    assert result["reward_mean"] == pytest.approx(0.25 + 0.04)
    same = asyncio.run(headrace.aevaluate(config, eval_data=ROWS[:4], reward=letters, model=tmp_path / "model"))
    assert same["samples"][0]["prompt"] == ROWS[0]["prompt"]
    with pytest.raises(headrace.ConfigError, match="missing key data: it has no default"):
        headrace.evaluate(config, reward=letters)


def ask(address: str, token: str) -> dict[str, Any]:
    body = json.dumps({"model": "model", "prompt": "1+1=", "max_tokens": 3}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{address}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)  # type: ignore[no-any-return]


def test_a_server_answers_until_it_is_closed(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    with headrace.serve(tmp_path / "model", port=0, token="secret", max_concurrent_sequences=4) as server:
        assert ask(server.address, "secret")["choices"][0]["finish_reason"] == "length"
        assert repr(server) == f"<headrace server {server.address}>"
    assert repr(server) == f"<headrace server {server.address}, closed>"
    with pytest.raises(OSError, match="refused"):
        ask(server.address, "secret")
    server.close()
    with pytest.raises(headrace.ConfigError, match="unknown key max_sequences"):
        headrace.serve(tmp_path / "model", max_sequences=4)
    with pytest.raises(headrace.ConfigError, match="does not exist; give a folder"):
        asyncio.run(headrace.aserve(tmp_path / "nowhere", port=0))
