"""What the quickstart makes before it trains: problems, files, tokenizer, model and configs."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.cli.called_as import program
from headrace.cli.main import main
from headrace.cli.quickstart.data import EVAL_ROWS, GUESS_SHARE, TRAIN_ROWS
from headrace.cli.quickstart.materials import QuickstartFiles, make_inputs
from headrace.cli.quickstart.report import render_next_steps
from headrace.cli.quickstart.sizes import LARGE, SMALL
from headrace.cli.quickstart.task import Problem
from headrace.cli.quickstart.tokenizer import make_tokenizer
from headrace.config import SFTConfig, TrainConfig, load_config
from headrace.controller.planning.plan import make_plan
from headrace.models.loading import read_generation_stops
from headrace.rewards.builtin import numeric

TERMS = st.lists(st.integers(0, 9), min_size=2, max_size=20).map(tuple)
TOKENIZER = make_tokenizer(LARGE.max_prompt + LARGE.max_response)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> QuickstartFiles:
    return make_inputs(tmp_path_factory.mktemp("quickstart"), 0)


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_problem_worked_by_hand() -> None:
    problem = Problem((3, 5, 7))
    assert problem.prompt == "3+5+7="
    assert problem.answer == "5"
    assert problem.working == "58;75;5"  # 3 + 5 = 8, 8 + 7 = 15
    assert problem.guess == "~5"


@given(TERMS)
def test_the_reward_accepts_the_working_and_a_right_guess(terms: tuple[int, ...]) -> None:
    problem = Problem(terms)
    wrong = str((int(problem.answer) + 1) % 10)
    assert numeric(problem.working, problem.answer, 1e-6) == 1
    assert numeric(problem.guess, problem.answer, 1e-6) == 1
    assert numeric(problem.working, wrong, 1e-6) == 0


@given(TERMS)
def test_one_token_a_character_and_room_for_all(terms: tuple[int, ...]) -> None:
    problem = Problem(terms)
    for text, room in (
        (problem.prompt, LARGE.max_prompt),
        (problem.working, LARGE.max_response - 1),
        (problem.guess, LARGE.max_response),
    ):
        ids = TOKENIZER(text)["input_ids"]
        assert len(ids) == len(text) <= room
        assert TOKENIZER.unk_token_id not in ids
        assert TOKENIZER.decode([*ids, TOKENIZER.eos_token_id], skip_special_tokens=True) == text


def test_an_unknown_character_is_not_dropped() -> None:
    assert TOKENIZER("3x5")["input_ids"][1] == TOKENIZER.unk_token_id


def test_held_out_prompts_are_in_no_other_file(made: QuickstartFiles) -> None:
    held_out = {row["prompt"] for row in read(made.data / "eval.jsonl")}
    assert len(held_out) == EVAL_ROWS
    for name, rows in (("train", TRAIN_ROWS), ("sft", SMALL.worked_rows + SMALL.mostly_guessed_rows)):
        others = [row["prompt"] for row in read(made.data / f"{name}.jsonl")]
        assert len(others) == rows
        assert held_out.isdisjoint(others)


def test_answers_are_right(made: QuickstartFiles) -> None:
    for name in ("train", "eval"):
        for row in read(made.data / f"{name}.jsonl"):
            assert int(row["answer"]) == sum(map(int, row["prompt"].rstrip("=").split("+"))) % 10


def test_demonstrations_first_work_then_mostly_guess(made: QuickstartFiles) -> None:
    responses = [row["response"] for row in read(made.data / "sft.jsonl")]
    assert not any(response.startswith("~") for response in responses[: SMALL.worked_rows])
    guessed = [response.startswith("~") for response in responses[SMALL.worked_rows :]]
    assert sum(guessed) / len(guessed) == pytest.approx(GUESS_SHARE, abs=0.05)


def test_demonstrations_are_right(made: QuickstartFiles) -> None:
    for row in read(made.data / "sft.jsonl"):
        problem = Problem(tuple(map(int, row["prompt"].rstrip("=").split("+"))))
        assert row["response"] in (problem.working, problem.guess)


@pytest.mark.parametrize("name", ["train", "eval"])
def test_lengths_are_skewed(made: QuickstartFiles, name: str) -> None:
    """p99 of the worked response, in tokens, is at least twice the median."""
    lengths = sorted(3 * row["prompt"].count("+") + 2 for row in read(made.data / f"{name}.jsonl"))
    assert lengths[int(0.99 * len(lengths))] >= 2 * lengths[len(lengths) // 2]


def test_transformers_loads_the_model(made: QuickstartFiles) -> None:
    model = AutoModelForCausalLM.from_pretrained(made.model)
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    assert model.config.model_type == "qwen3"
    # Per layer: q, o 128 x 128; k, v 128 x 64; three MLP matrices 128 x 384; norms 2 x 128 + 2 x 32.
    layer = 2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384 + 2 * 128 + 2 * 32
    assert sum(p.numel() for p in model.parameters()) == len(tokenizer) * 128 + 3 * layer + 128
    assert read_generation_stops(str(made.model), tokenizer) == (tokenizer.eos_token_id,)
    assert not list(made.model.glob("*.bin"))


def test_the_larger_sister_has_ten_million_parameters_and_up_to_twenty_terms(tmp_path: Path) -> None:
    made = make_inputs(tmp_path, 0, LARGE)
    model = AutoModelForCausalLM.from_pretrained(made.model)
    # Per layer: q, o 384 x 384; k, v 384 x 128; three MLP matrices 384 x 1152; norms 2 x 384 + 2 x 64.
    layer = 2 * 384 * 384 + 2 * 384 * 128 + 3 * 384 * 1152 + 2 * 384 + 2 * 64
    assert sum(p.numel() for p in model.parameters()) == len(TOKENIZER) * 384 + 6 * layer + 384
    for name in ("train", "eval", "sft"):
        terms = [row["prompt"].count("+") + 1 for row in read(made.data / f"{name}.jsonl")]
        assert (min(terms), max(terms)) == (2, 20)
    plan = make_plan(load_config(TrainConfig, made.grpo_config, [f"model.path={made.model}"]))
    assert plan.max_context == 2 * 20 + 3 * 19 + 2


def test_equal_seeds_make_equal_files(made: QuickstartFiles, tmp_path: Path) -> None:
    state = torch.get_rng_state()
    same, other = make_inputs(tmp_path / "same", 0), make_inputs(tmp_path / "other", 1)
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator was touched"
    for name in ("data/train.jsonl", "data/eval.jsonl", "data/sft.jsonl", "model/model.safetensors"):
        original = (made.data.parent / name).read_bytes()
        assert (same.data.parent / name).read_bytes() == original
        assert (other.data.parent / name).read_bytes() != original


def test_the_sft_config_keeps_the_order_of_the_demonstrations(made: QuickstartFiles) -> None:
    config = load_config(SFTConfig, made.sft_config)
    assert config.data.train == str(made.data / "sft.jsonl")
    assert config.data.shuffle is False
    assert config.trainer.steps is None, "one pass"
    assert (SMALL.worked_rows % config.trainer.samples_per_batch, config.seed) == (0, 0)


def test_the_grpo_config_is_asynchronous_and_can_be_planned(made: QuickstartFiles) -> None:
    config = load_config(TrainConfig, made.grpo_config, [f"model.path={made.model}"])
    assert config.async_.staleness_bound >= 2
    assert config.async_.streaming
    assert (config.async_.swap, config.deadline_rule) == ("recompute", "wait")
    assert config.algorithm.objective == "decoupled"
    assert (config.rollout.prompts_per_batch, config.rollout.samples_per_prompt) == (16, 8)
    plan = make_plan(config)
    assert len(plan.held_out["eval"]) == EVAL_ROWS
    assert plan.max_context == SMALL.max_prompt + SMALL.max_response
    assert config.rollout.sampling.max_new_tokens == SMALL.max_response


def test_configs_made_in_a_relative_folder_work_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = make_inputs(Path("quick"), 0)
    config = tmp_path / made.grpo_config
    monkeypatch.chdir("/")
    loaded = load_config(TrainConfig, config)
    assert loaded.data.eval == str(tmp_path / "quick" / "data" / "eval.jsonl")
    assert load_config(SFTConfig, tmp_path / made.sft_config).model.path == str(tmp_path / "quick" / "model")


def test_next_steps_are_commands_to_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    folder = tmp_path / "a [bold] folder of a name so long that no terminal has a line for it" / ("x" * 60)
    text = render_next_steps(folder, folder / "run" / "model", folder / "plot.html").plain
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("headrace")]
    assert [command[1] for command in commands] == ["inspect", "rollouts", "eval", "eval", "check", "serve"]
    assert commands[3] == ["headrace", "eval", f"{folder}/grpo.yaml", "--model", f"{folder}/run/model"]


def test_commands_can_be_copied_where_the_shell_does_not_know_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert program() == ["headrace"] or shutil.which("headrace") is None
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("sys.argv", [".venv/bin/headrace", "quickstart"])
    assert program() == [".venv/bin/headrace"]
    monkeypatch.setattr("sys.argv", ["/x/pytest"])
    assert program() == [sys.executable, "-m", "headrace.cli.main"]


def test_a_full_disk_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("headrace.cli.quickstart.materials.make_model", full)
    assert main(["quickstart", "--dir", str(tmp_path / "q")]) == 2
    error = capsys.readouterr().err
    assert "cannot be written: I/O error: No space left on device" in error
    assert "free space, or choose another --dir" in error


def test_only_the_inputs_can_be_made(tmp_path: Path) -> None:
    assert main(["quickstart", "--dir", str(tmp_path / "q"), "--only-inputs"]) == 0
    assert sorted(p.name for p in (tmp_path / "q").iterdir() if not p.name.startswith(".")) == [
        "data",
        "grpo.yaml",
        "model",
        "sft.yaml",
    ]


@pytest.mark.parametrize("seed", ["-1", "4294967296"])
def test_a_seed_out_of_range_is_refused(seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--dir", str(tmp_path / "new"), f"--seed={seed}"]) == 2
    assert capsys.readouterr().err == f"headrace: --seed is {seed}; give a whole number from 0 to 4294967295\n"
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for path, said in ((tmp_path / "file", "is a file"), (tmp_path / "file" / "in", "cannot be written: Not a dir")):
        assert main(["quickstart", "--dir", str(path)]) == 2
        assert f"headrace: --dir {path} {said}" in capsys.readouterr().err


def test_only_what_a_quickstart_made_is_erased(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("")
    assert main(["quickstart", "--dir", str(tmp_path)]) == 2
    assert "begin again with --fresh" in capsys.readouterr().err
    assert main(["quickstart", "--dir", str(tmp_path), "--fresh"]) == 2
    assert "was not made by a quickstart" in capsys.readouterr().err
    assert (tmp_path / "data" / "mine").exists()


def test_configs_can_be_read_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = tmp_path / 'a: "b" #c ${d}'
    made = make_inputs(folder, 5)
    config = load_config(TrainConfig, made.grpo_config)
    assert config.model.path == str(folder / "sft" / "model")
    assert config.seed == 5
