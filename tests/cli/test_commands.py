"""The commands as a user runs them, on a small real job. Training and inspecting are tested with the controller."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job, make_model

from headrace.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("job"))


def test_doctor_looks_at_every_package_and_at_the_machine(capsys: Captured) -> None:
    code = main(["doctor"])
    out = capsys.readouterr().out
    found = {line.split()[1]: line.split()[0] for line in out.splitlines()[:-1]}
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    packages = [re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]]
    assert {"torch", "jinja2", "regex", "setproctitle"} < set(packages)
    assert all(found[name] == "ok" for name in ("headrace", "python", "sqlite", *packages))
    extras = project["optional-dependencies"]
    optional = {
        re.match(r"[\w-]+", each)[0] for name in extras.keys() - {"dev", "oracle", "jobs"} for each in extras[name]
    }
    assert {"datasets", "ray", "matplotlib"} < optional <= found.keys()
    assert {"processors", "memory", "disk", "sandbox", "sandbox:memory", "sandbox:time"} <= found.keys()
    bad = list(found.values()).count("BAD")
    assert (code, out.splitlines()[-1]) == ((1, f"{bad} finding(s) to mend") if bad else (0, "all is well"))


def test_doctor_says_which_extra_brings_what_is_not_there(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = importlib.metadata.version

    def without_ray(name: str) -> str:
        if name == "ray":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr("headrace.cli.doctor.version", without_ray)
    main(["doctor"])
    said = "ok   ray            not installed; needed for runtime.kind=ray: pip install 'headrace[cluster]'"
    assert said in capsys.readouterr().out.splitlines()


def test_doctor_does_not_vouch_for_packages_that_it_cannot_know(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("headrace.cli.doctor.requires", absent)
    assert main(["doctor"]) == 1
    assert "BAD  packages       not looked at: Headrace runs from its source" in capsys.readouterr().out


def test_doctor_finds_a_missing_package_rather_than_falling_over_it(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = importlib.metadata.version

    def without_psutil(name: str) -> str:
        if name == "psutil":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr("headrace.cli.doctor.version", without_psutil)
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "BAD  psutil         not installed: pip install 'psutil>=5.9'" in out
    assert "ok   processors" in out
    assert "finding(s) to mend" in out


def test_eval_in_words_and_as_json(job: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["eval", str(job), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["prompts"], result["failed"]) == (4, 0)
    assert 0 <= result["reward_mean"] <= 6 / 7
    assert 1 <= result["response_tokens_mean"] <= 8
    assert [sample["prompt"] for sample in result["samples"]] == ["0+0=", "0+1=", "0+2="]

    other = make_model(tmp_path / "other", "llama")
    assert main(["eval", str(job), "--model", str(other)]) == 0
    first, *samples = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        rf"{other}: mean reward 0\.\d{{3}} on 4 held-out prompts \(0 failed\), \d\.\d tokens a response", first
    )
    assert [line.split(" -> ")[0] for line in samples] == ["  '0+0='", "  '0+1='", "  '0+2='"]


def test_eval_says_why_samples_failed_and_fails_itself_if_all_did(tmp_path: Path, job: Path, capsys: Captured) -> None:
    (tmp_path / "raises.py").write_text(
        "def score(response, row):\n    if int(row['answer']) < 4:\n        raise KeyError('grade')\n    return 1.0\n"
    )
    (tmp_path / "two.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "4+4=", "answer": "8"}\n')
    reward = f"reward.function={tmp_path}/raises.py:score"
    assert main(["eval", str(job), reward]) == 1
    captured = capsys.readouterr()
    assert "mean reward none on 4 held-out prompts (4 failed)" in captured.out
    assert re.fullmatch(
        r"headrace: all of 4 samples failed \(reward_raised 4\); the last: reward_raised: KeyError: 'grade' .*\n",
        captured.err,
    )
    assert main(["eval", str(job), reward, "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["failed"], result["failed_by_kind"]) == (4, {"reward_raised": 4})
    assert main(["eval", str(job), reward, f"data.eval={tmp_path}/two.jsonl"]) == 0
    captured = capsys.readouterr()
    assert "mean reward 1.000 on 2 held-out prompts (1 failed)" in captured.out
    assert captured.err.startswith("headrace: 1 of 2 samples failed (reward_raised 1); the last: reward_raised: KeyEr")


def test_eval_without_held_out_prompts_is_refused(job: Path, capsys: Captured) -> None:
    assert main(["eval", str(job), "data.eval=null"]) == 2
    assert "names no held-out prompts; set data.eval" in capsys.readouterr().err


def test_check_prints_the_dataflow_the_roles_and_the_memory(job: Path, capsys: Captured) -> None:
    assert main(["check", str(job), "runtime.threads=3", "reward.workers=2"]) == 0
    out = capsys.readouterr().out
    assert "train.jsonl: 40 prompts; held out: 4" in out
    assert "batches   6 of 2 prompts x 3 samples, 1 optimiser step(s) each" in out
    assert "schedule  async: staleness at most 2, on deadline wait, swaps recompute" in out
    stages = [line.split()[0] for line in out.split("dataflow")[1].split("streaming:")[0].splitlines()[1:-1]]
    assert stages == ["rollout", "filter", "schedule", "advantages", "actor"]
    assert re.search(r"filter +each group +reward -> keep", out)
    assert "streaming: yes" in out
    assert re.search(r"rollout +compute lane 'engine': 3 CPU thread", out)
    assert re.search(r"actor +compute lane 'trainer': 3 CPU thread", out)
    assert re.search(r"rewards +2 child process\(es\): .*reward\.py:score", out)
    # 8 sequences of 96 tokens and a spare one, keys and values of 2 layers x 2 heads x 8 in float32: 216 KiB.
    assert re.search(r"engine: KV cache +0\.21 MiB", out)
    assert re.search(r"memory +[\d.]+ MiB and activations; .* free on this host", out)


def test_check_tells_of_over_sampling(job: Path, capsys: Captured) -> None:
    assert main(["check", str(job), "rollout.oversample=1.5"]) == 0
    out = capsys.readouterr().out
    assert "1 optimiser step(s) each; 1 prompt(s) more are started" in out
    assert "on deadline drop" in out


def test_check_notes_settings_without_effect(job: Path, capsys: Captured) -> None:
    assert main(["check", str(job), "rollout.max_turns=3"]) == 0
    assert capsys.readouterr().err.count("note: rollout.max_turns has no effect") == 1


def test_a_dry_run_prints_the_same_plan_and_starts_nothing(
    job: Path, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    for place in (
        "controller.building.first_version",
        "roles.workers.engine",
        "roles.workers.trainer",
        "models.loading",
    ):
        monkeypatch.setattr(f"headrace.{place}.load_causal_lm", forbidden)
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(job)]) == 0
    plan = capsys.readouterr().out
    for options in ([], ["--dir", "run"], ["--fresh"]):
        assert main(["train", str(job), "--dry-run", *options]) == 0
        assert without_free_memory(capsys.readouterr().out) == without_free_memory(plan)
    assert list(tmp_path.iterdir()) == []


def without_free_memory(plan: str) -> str:
    return re.sub(r"[\d.,]+ [MG]iB free", "", plan)


TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}={% endif %}"
TOKEN = "open-sesame"


@pytest.fixture(scope="module")
def served_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = make_model(tmp_path_factory.mktemp("serve") / "tiny")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


@pytest.fixture(scope="module")
def server(served_model: Path) -> Iterator[str]:
    """The address of a served model."""
    with serving(served_model, "--token-env", "SERVE_TOKEN", "--max-context", "32") as (_, address):
        yield address


@contextmanager
def serving(model: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`headrace serve` in a process of its own, on a free port: the process and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "serve", str(model), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SERVE_TOKEN": TOKEN},
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        found = re.fullmatch(rf"serving {re.escape(str(model))} at (http://[\d.]+:\d+)\n", line)
        assert found, line + process.stdout.read()
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def ask(address: str, path: str, body: dict[str, Any] | None = None, token: str | None = TOKEN) -> tuple[int, str]:
    request = urllib.request.Request(
        address + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def events(stream: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_serve_completes_text_whole_and_streamed(server: str) -> None:
    body = {"model": "tiny", "prompt": "1+2=", "max_tokens": 6, "temperature": 0}
    status, text = ask(server, "/v1/completions", body)
    assert status == 200, text
    whole = json.loads(text)
    assert whole["object"] == "text_completion"
    assert whole["usage"]["prompt_tokens"] == 4
    assert 1 <= whole["usage"]["completion_tokens"] <= 6
    status, stream = ask(server, "/v1/completions", {**body, "stream": True})
    assert status == 200
    parts = [event["choices"][0] for event in events(stream)]
    assert len(parts) > 1
    assert "".join(part["text"] for part in parts) == whole["choices"][0]["text"]
    assert parts[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]


def test_serve_chats_by_the_models_template(server: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "1+2"}], "max_tokens": 6, "temperature": 0}
    status, text = ask(server, "/v1/chat/completions", body)
    assert status == 200, text
    _, same = ask(server, "/v1/completions", {"model": "tiny", "prompt": "1+2=", "max_tokens": 6, "temperature": 0})
    assert json.loads(text)["choices"][0]["message"]["content"] == json.loads(same)["choices"][0]["text"]
    status, text = ask(server, "/v1/chat/completions", {**body, "messages": []})
    assert status == 400
    assert "messages" in json.loads(text)["error"]["message"]


def test_serve_takes_token_ids_and_gives_ids_log_probs_and_versions(server: str) -> None:
    body = {
        "prompt_ids": [5, 6, 7],
        "sampling": {"max_new_tokens": 5, "temperature": 1.0, "ignore_eos": True},
        "seed": 3,
    }
    status, text = ask(server, "/generate", body)
    assert status == 200, text
    answer = json.loads(text)
    assert len(answer["token_ids"]) == len(answer["logprobs"]) == 5
    assert all(logprob < 0 for logprob in answer["logprobs"])
    assert answer["versions"] == [[0, 0, 0, 5]], "one span: branch 0, version 0"
    assert answer["finish_reason"] == "length"
    assert json.loads(ask(server, "/generate", body)[1]) == answer, "a seed fixes what is sampled"
    longest = {"prompt_ids": [5] * 40, "sampling": {}}
    status, text = ask(server, "/generate", longest)
    assert status == 400
    assert "32" in json.loads(text)["error"]["message"], "--max-context is heeded"


def test_serve_answers_only_those_with_the_token(server: str) -> None:
    for token in (None, "wrong"):
        assert ask(server, "/v1/models", token=token)[0] == 401
    assert ask(server, "/health", token=None) == (200, '{"status":"ok"}')
    status, text = ask(server, "/v1/models")
    assert status == 200
    assert [(model["id"], model["max_model_len"]) for model in json.loads(text)["data"]] == [("tiny", 32)]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_ends_cleanly_when_told_to(served_model: Path, number: signal.Signals) -> None:
    with serving(served_model) as (process, address):
        assert ask(address, "/v1/models", token=None)[0] == 200
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(address + "/health", timeout=5)


@pytest.mark.slow
def test_serve_goes_beyond_loopback_only_with_a_token(served_model: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "headrace.cli.main",
        "serve",
        str(served_model),
        "--port",
        "0",
        "--host",
        "0.0.0.0",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("headrace: host is '0.0.0.0', which others can reach, and no token is set")
