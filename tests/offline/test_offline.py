"""Supervised fine-tuning: what it reads, what it learns, and what it leaves behind."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from controller_jobs import CHARACTERS, EOS, make_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.config import ConfigError, SFTConfig, config_sha256, dump_config
from headrace.config.sft import SFTDataConfig
from headrace.experience.prompts.dataset import PromptOrder
from headrace.models.loading import load_tokenizer
from headrace.models.packing import PackRow
from headrace.offline import loop as offline
from headrace.offline.demonstrations import read_demonstrations
from headrace.offline.output import OutputFolder
from headrace.offline.sft import run_sft
from headrace.offline.trained import of_demonstrations
from headrace.store import DiskFull, StoreError

ROWS: list[dict[str, object]] = [{"prompt": f"{a}+{b}=", "response": f"{a + b}"} for a in range(4) for b in range(4)]
LETTERS = [{"prompt": f"{letter}:", "response": letter.upper()} for letter in "abcdefgh"]


def no_report(step: int, loss: float, tokens_per_s: float) -> None:
    pass


def stopped_clock() -> float:
    return 0.0


def ids(text: str) -> list[int]:
    return [CHARACTERS.index(character) + 2 for character in text]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model")


def write(folder: Path, *lines: object) -> str:
    path = folder / "sft.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def make_config(folder: Path, model: Path, rows: list[Any] | None = None, **trainer: object) -> SFTConfig:
    return SFTConfig.model_validate(
        {
            "model": {"path": str(model), "device": "cpu"},
            "data": {"train": write(folder, *(ROWS if rows is None else rows))},
            "trainer": {"samples_per_batch": 4, "optimizer": {"lr": 1e-2}, **trainer},
            "runtime": {"threads": 1},
        }
    )


def test_loss_falls_and_the_export_has_learned(tmp_path: Path, model: Path) -> None:
    ticks = iter(range(100_000))
    reports: list[tuple[int, float, float]] = []
    result = run_sft(
        make_config(tmp_path, model, LETTERS, steps=60),
        tmp_path / "out",
        report=lambda *report: reports.append(report),
        now=lambda: float(next(ticks)),
    )
    assert result.last_loss < 0.2 * result.first_loss
    assert (result.steps, result.skipped_steps, result.model) == (60, 0, tmp_path / "out" / "model")
    assert [step for step, _, _ in reports] == list(range(3, 61, 3))
    assert reports[-1][1] == result.last_loss
    assert all(rate > 0 for _, _, rate in reports)
    assert result.wall_s == 60, "one look at the clock at the start, and one a step"

    trained = AutoModelForCausalLM.from_pretrained(result.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    prompt = tokenizer("c:", return_tensors="pt")
    said = trained.generate(**prompt, max_new_tokens=3, do_sample=False)[0, 2:].tolist()
    assert said == [*ids("C"), EOS]


def test_summary(tmp_path: Path, model: Path) -> None:
    result = run_sft(make_config(tmp_path, model), tmp_path / "out", report=no_report, now=stopped_clock)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary == {
        "status": "finished",
        "error": None,
        "model": str(tmp_path / "out" / "model"),
        "steps": 4,
        "skipped_steps": 0,
        "first_loss": result.first_loss,
        "last_loss": result.last_loss,
        "tokens": 16 * 6,
        "trained_tokens": 16 * 2,
        "padding_tokens": 0,
        "wall_s": 0.0,
        "tokens_per_s": None,
        "last": {"loss": result.last_loss},
        "eval": {"rows": None, "before": None, "after": None, "lowest_loss_step": None},
        "kind": "sft",
        "seed": 0,
        "config_sha256": config_sha256(make_config(tmp_path, model)),
    }


def test_demonstrations_are_prompt_response_end(tmp_path: Path, model: Path) -> None:
    config = SFTDataConfig(
        train=write(tmp_path, {"prompt": "2+1=", "response": "3"}, "", {"prompt": "a", "response": "bc"})
    )
    first, second = read_demonstrations(config, load_tokenizer(model), end_token_id=EOS, max_context=6)
    assert first.tokens.tolist() == [*ids("2+1=3"), EOS]
    assert first.mask.tolist() == [False] * 4 + [True] * 2
    assert second.tokens.tolist() == [*ids("abc"), EOS]
    assert second.mask.tolist() == [False, True, True, True]


def test_chat_messages_go_through_the_template(tmp_path: Path, model: Path) -> None:
    tokenizer = load_tokenizer(model)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}.{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
    )
    rows = [{"prompt": [{"role": "user", "content": "hi"}], "response": "yo"}, {"prompt": "hi", "response": "yo"}]
    config = SFTDataConfig(train=write(tmp_path, *rows))
    chat, text = read_demonstrations(config, tokenizer, end_token_id=EOS, max_context=None)
    assert chat.tokens.tolist() == [*ids("u:hi.a:yo"), EOS]
    assert chat.mask.sum() == 3
    assert text.tokens.tolist() == [*ids("hiyo"), EOS]


def test_the_split_into_micro_batches_changes_nothing(tmp_path: Path, model: Path) -> None:
    losses = [
        run_sft(
            make_config(tmp_path, model, steps=6, max_tokens_per_microbatch=tokens),
            tmp_path / str(tokens),
            report=no_report,
            now=stopped_clock,
        ).last_loss
        for tokens in (1, 12, 4096)
    ]
    assert losses[:2] == pytest.approx([losses[2]] * 2, rel=1e-4)


def rows_of(count: int) -> list[PackRow]:
    return [PackRow(tokens=np.array([i, i]), mask=np.array([False, True])) for i in range(count)]


def batches(count: int, *, samples: int, steps: int, shuffle: bool = False) -> list[list[int]]:
    order = PromptOrder(count, seed=3, shuffle=shuffle)
    drawn = offline._batches([[row] for row in rows_of(count)], order, size=samples, steps=steps)
    return [[int(row.tokens[0]) for (row,) in batch] for batch in drawn]


def test_file_order_is_kept_and_a_single_pass_ends_short() -> None:
    assert batches(5, samples=2, steps=3) == [[0, 1], [2, 3], [4]]


def test_further_passes_follow_on() -> None:
    assert batches(3, samples=2, steps=4) == [[0, 1], [2, 0], [1, 2], [0, 1]]


def test_fewer_steps_than_a_pass() -> None:
    assert batches(10, samples=2, steps=2) == [[0, 1], [2, 3]]


def test_shuffled_passes_see_every_row_once_and_differ() -> None:
    seen = [row for batch in batches(8, samples=4, steps=4, shuffle=True) for row in batch]
    assert sorted(seen[:8]) == sorted(seen[8:]) == list(range(8))
    assert seen[:8] != seen[8:]


@pytest.fixture
def refused(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs SFT on these lines and returns its error; fails if the model was loaded."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded before the input was checked")

    monkeypatch.setattr(of_demonstrations, "loaded", forbidden)

    def run(*lines: object) -> str:
        with pytest.raises(ConfigError) as error:
            run_sft(make_config(tmp_path, model, list(lines)), tmp_path / "out", report=no_report, now=stopped_clock)
        assert not (tmp_path / "out").exists()
        return str(error.value)

    return run


def test_not_json(refused) -> None:
    assert "sft.jsonl, line 2 is not JSON" in refused(ROWS[0], "{nonsense")


def test_no_prompt(refused) -> None:
    assert "sft.jsonl, line 1 has no prompt column 'prompt'" in refused({"response": "b"})


def test_no_response(refused) -> None:
    assert "sft.jsonl, line 2 has no value in column 'response'" in refused(ROWS[0], {"prompt": "a"})


@pytest.mark.parametrize("response", ["", 5, ["b"]])
def test_response_that_is_no_text(refused, response: object) -> None:
    error = refused(ROWS[0], "", {"prompt": "a", "response": response})
    assert f"sft.jsonl, line 3: the response in column 'response' is {response!r}" in error


def test_longer_than_the_context(refused) -> None:
    error = refused({"prompt": "a" * 90, "response": "b" * 6})
    assert "sft.jsonl, line 1 has 97 tokens with its response, and the model's context holds 96" in error


def test_chat_without_template(refused) -> None:
    error = refused({"prompt": [{"role": "user", "content": "a"}], "response": "b"})
    assert "sft.jsonl, line 1" in error
    assert "has no chat template" in error


def test_no_rows(refused) -> None:
    assert "holds no rows" in refused("")


def test_a_tokenizer_without_an_end(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "endless")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text())
        values.pop("eos_token_id", None)
        values.pop("eos_token", None)
        (folder / name).write_text(json.dumps(values))
    with pytest.raises(ConfigError, match="name no end-of-sequence token"):
        run_sft(make_config(tmp_path, folder), tmp_path / "out", report=no_report, now=stopped_clock)


def test_the_model_to_begin_from_is_not_overwritten(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "out" / "model")
    weights = (folder / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="would be overwritten; give another --dir"):
        run_sft(make_config(tmp_path, folder), tmp_path / "out", report=no_report, now=stopped_clock)
    assert (folder / "model.safetensors").read_bytes() == weights


def test_a_fresh_run_replaces_the_first_ones_model(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    (out / "model").mkdir(parents=True)
    (out / "model" / "stale.safetensors").write_bytes(b"")
    run_sft(make_config(tmp_path, model, steps=1), out, begin="fresh", report=no_report, now=stopped_clock)
    assert sorted(path.name for path in out.iterdir()) == ["model", "run.db", "run.lock", "summary.json"]
    assert not (out / "model" / "stale.safetensors").exists()


def test_an_output_folder_that_is_a_file(tmp_path: Path, model: Path) -> None:
    (tmp_path / "out").write_text("")
    for out in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(ConfigError, match=r"out(/deeper)?( is a file| cannot be written: Not a directory).*--dir"):
            run_sft(make_config(tmp_path, model), out, report=no_report, now=stopped_clock)


def test_an_output_folder_that_cannot_be_written_is_refused_before_the_model_is_loaded(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(of_demonstrations, "loaded", lambda *_, **__: pytest.fail("the model was loaded"))
    monkeypatch.setattr(Path, "mkdir", forbidden)  # root, who may run the tests, is refused nothing
    with pytest.raises(ConfigError, match=r"out cannot be written: Permission denied; correct its permissions"):
        run_sft(make_config(tmp_path, model), tmp_path / "out", report=no_report, now=stopped_clock)


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")])
def test_a_model_that_cannot_be_saved_leaves_the_one_before(tmp_path: Path, fault: OSError) -> None:
    output = OutputFolder(tmp_path)
    with output.claim("new"):
        output.replace_model(lambda folder: (folder / "w").write_text("first") and None)

    def fail(folder: Path) -> None:
        (folder / "w").write_text("half")
        raise fault

    with output.claim("fresh"), pytest.raises(StoreError) as raised:
        output.replace_model(fail)
    assert str(output.model) in str(raised.value)
    assert isinstance(raised.value, DiskFull) == (fault.errno == errno.ENOSPC)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "run.lock"]
    assert (output.model / "w").read_text() == "first"


class Killed(BaseException):
    """Ends the process, as far as the code at hand can tell."""


@pytest.mark.parametrize("step", range(3))
def test_a_kill_while_the_model_is_replaced_leaves_one(
    tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = OutputFolder(tmp_path)
    with output.claim("new"):
        output.replace_model(lambda folder: (folder / "w").write_text("first") and None)
    calls = iter(range(10))
    rename = Path.rename

    def killed_in_between(path: Path, target: Path) -> Path:
        if next(calls) == step:
            raise Killed
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", killed_in_between)
    try:
        with output.claim("fresh"):
            output.replace_model(lambda folder: (folder / "w").write_text("second") and None)
    except Killed:
        assert step < 2
    monkeypatch.undo()
    with OutputFolder(tmp_path).claim("fresh"):
        pass
    assert (output.model / "w").read_text() == ("second" if step == 2 else "first")


FULL_DISK = """
set -e
mount -t tmpfs -o size="$4" tmpfs "$1"
exec "$2" -m headrace.cli.main sft "$3" --dir "$1/out"
"""


def may_mount() -> bool:
    """Whether this machine lets us mount a disk of our own, as root of a private namespace."""
    probe = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="mounting a small disk needs user namespaces")
@pytest.mark.parametrize(
    ("size", "where"),
    [("32k", "run.db"), ("212k", "model"), ("220k", "model")],
    ids=["record", "weights", "tokenizer"],
)
def test_a_disk_that_fills_up(tmp_path: Path, model: Path, size: str, where: str) -> None:
    (tmp_path / "disk").mkdir()
    config = tmp_path / "sft.yaml"
    config.write_text(dump_config(make_config(tmp_path, model, steps=1)))
    shell = ["sh", "-c", FULL_DISK, "sh", str(tmp_path / "disk"), sys.executable, str(config), size]
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", *shell], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert f"no space left while writing {tmp_path}/disk/out/{where}: free space on its disk" in done.stderr
    assert "Traceback" not in done.stderr
