"""The whole way, as a new user goes it."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.config import TrainConfig, config_sha256, load_config
from headrace.experience.records.codec import decode_group
from headrace.store import RunStore


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(where quickstart ran, what it printed)"""
    cwd = tmp_path_factory.mktemp("cwd")
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "quickstart", "--dir", "made", "--seed", "3"],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    return cwd, done.stdout


@pytest.mark.slow
def test_the_quickstart_leaves_its_files_and_learns(made: tuple[Path, str]) -> None:
    folder = made[0] / "made"
    assert {"data", "model", "sft.yaml", "grpo.yaml", "run"} <= {path.name for path in folder.iterdir()}
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert summary["seed"] == 3
    assert summary["eval"]["before"] <= 0.40
    assert summary["eval"]["after"] >= 0.95
    assert summary["staleness"]["max"] <= 2
    assert summary["tokens"]["nonpad_share"] >= 0.98


@pytest.mark.slow
def test_the_lengths_of_what_the_quickstart_trained_on_are_skewed(made: tuple[Path, str]) -> None:
    folder = made[0] / "made"
    digest = config_sha256(load_config(TrainConfig, folder / "grpo.yaml"))
    store = RunStore.open(folder / "run", config_sha256=digest)
    offsets = [row.offset for row in store.ledger.attempts("trained") if row.batch is not None and row.batch >= 70]
    groups = [decode_group(store.journal.read(offset)) for offset in offsets if offset is not None]
    store.close()
    lengths = [sample.response_tokens for group in groups for sample in group.samples]
    assert len(lengths) >= 1000
    assert np.percentile(lengths, 99) >= 2 * np.median(lengths)


@pytest.mark.slow
def test_the_quickstart_ends_with_a_picture_that_it_names(made: tuple[Path, str]) -> None:
    page = (made[0] / "made" / "plot.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert all(f">{panel}</text>" in page for panel in ("reward", "evaluation", "staleness", "tokens/s"))
    assert "\nmade/plot.html\n" in made[1].split("Where to look next")[1]


@pytest.mark.slow
def test_the_quickstart_prints_commands_that_repeat_its_steps(made: tuple[Path, str]) -> None:
    cwd, out = made
    program = ["headrace"] if shutil.which("headrace") else [sys.executable, "-m", "headrace.cli.main"]
    steps = [shlex.split(line.removeprefix("$ ")) for line in out.splitlines() if line.startswith("$ ")]
    assert steps == [
        [*program, "quickstart", "--dir", "made", "--seed", "3", "--only-inputs", "--fresh"],
        [*program, "sft", "made/sft.yaml", "--dir", "made/sft"],
        [*program, "train", "made/grpo.yaml", "--dir", "made/run", "--fresh"],
        [*program, "plot", "made/run", "-o", "made/plot.html"],
    ]
    for words in ("The learning curve", "Held out: 256 prompts", "before and after", "Where to look next"):
        assert words in out
    again = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *steps[2][len(program) :], "--dry-run"],
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert again.returncode == 0, again.stderr
    advice = [shlex.split(line) for line in out.split("Where to look next")[1].splitlines() if "headrace" in line]
    evaluate = next(words for words in advice if "eval" in words and "--model" in words)
    result = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *evaluate[len(program) :], "--json"],
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    after = json.loads((cwd / "made" / "run" / "summary.json").read_text())["eval"]["after"]
    assert json.loads(result.stdout)["reward_mean"] == pytest.approx(after, abs=0.01)
