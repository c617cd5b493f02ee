"""Bad input gets one clear error that names the value and the mend, before a model is loaded."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from controller_jobs import make_job
from transformers import BloomConfig

from headrace.cli.main import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that is right; tests change one thing each in a config of their own."""
    folder = tmp_path_factory.mktemp("job")
    make_job(folder)
    return folder


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs `headrace check` (or another command) and returns the error; fails if a model was loaded."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded before the input was checked")

    # The modules that use it first: their import must still see the real one.
    for place in (
        "controller.building.first_version",
        "roles.workers.engine",
        "roles.workers.trainer",
        "models.loading",
    ):
        monkeypatch.setattr(f"headrace.{place}.load_causal_lm", forbidden)

    def run(*arguments: str) -> str:
        code = main(list(arguments) or ["check", str(folder / "grpo.yaml")])
        out = capsys.readouterr()
        assert code == 2, out.out + out.err
        assert out.err.startswith("headrace: ")
        assert "Traceback" not in out.err
        return out.err

    return run


def check(refused, folder: Path, *overrides: str) -> str:
    return refused("check", str(folder / "grpo.yaml"), *overrides)


def write(path: Path, *rows: object) -> str:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def test_misspelt_key(refused, folder: Path) -> None:
    assert "unknown key async.max_stalenes; did you mean async.max_staleness?" in check(
        refused, folder, "async.max_stalenes=2"
    )


def test_moved_key(refused, folder: Path) -> None:
    says = "unknown key lr; did you mean trainer.optimizer.lr or critic.optimizer.lr?"
    assert says in check(refused, folder, "lr=1e-6")


def test_unknown_key_lists_what_is_known(refused, folder: Path) -> None:
    assert "unknown key data.qqqq; known keys here are train, eval, prompt_column" in check(
        refused, folder, "data.qqqq=1"
    )


def test_value_out_of_range(refused, folder: Path) -> None:
    error = check(refused, folder, "rollout.sampling.top_p=1.5")
    assert "rollout.sampling.top_p is 1.5: input should be less than or equal to 1" in error


def test_negative_max_staleness(refused, folder: Path) -> None:
    error = check(refused, folder, "async.max_staleness=-1")
    assert "async.max_staleness is -1: input should be greater than or equal to 0" in error


def test_group_of_one_with_group_normalisation(refused, folder: Path) -> None:
    error = check(refused, folder, "rollout.samples_per_prompt=1")
    assert "rollout.samples_per_prompt is 1" in error
    assert "set samples_per_prompt to 2 or more" in error


def test_mode_and_staleness_that_disagree(refused, folder: Path) -> None:
    assert "mode is sync but max_staleness is 3" in check(refused, folder, "async.mode=sync", "async.max_staleness=3")


def test_several_faults_are_told_at_once(refused, folder: Path) -> None:
    error = check(refused, folder, "lr=1", "seed=-1")
    assert "2 faults" in error


def test_missing_config(refused, folder: Path) -> None:
    assert f"no config file at {folder}/none.yaml" in refused("check", str(folder / "none.yaml"))


def test_config_that_is_not_yaml(refused, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("model: [unclosed\n")
    assert "is not valid YAML" in refused("check", str(path))


def test_override_without_equals_sign(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["check", str(folder / "grpo.yaml"), "a=1", "--nope"])
    assert exit_.value.code == 2
    assert "unknown argument '--nope'" in capsys.readouterr().err


def test_missing_dataset(refused, folder: Path) -> None:
    assert "no dataset at nowhere.jsonl" in check(refused, folder, "data.train=nowhere.jsonl")


def test_empty_dataset(refused, folder: Path, tmp_path: Path) -> None:
    assert "holds no rows" in check(refused, folder, f"data.train={write(tmp_path / 'empty.jsonl')}")


def test_row_without_the_prompt_column(refused, folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "1+1="}, {"question": "2+2="})
    error = check(refused, folder, f"data.train={path}")
    assert "rows.jsonl, line 2 has no prompt column 'prompt' (it has 'question'); set data.prompt_column" in error


def test_row_that_is_not_json(refused, folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "1+1="}, "{prompt")
    assert "rows.jsonl, line 2 is not JSON" in check(refused, folder, f"data.train={path}")


def test_row_without_the_answer_that_a_builtin_reward_reads(refused, folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "1+1="})
    error = check(refused, folder, f"data.train={path}", "reward.function=numeric")
    assert "line 1 has no value in column 'answer'" in error


def test_prompt_longer_than_the_context(refused, folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "1" * 200})
    error = check(refused, folder, f"data.train={path}")
    assert "prompt '1' has 200 tokens, and the context holds 96, prompt and response together; shorten it" in error
    assert "raise" not in error, "these are all the places that the model has"
    assert "raise engine.max_context" in check(refused, folder, f"data.train={path}", "engine.max_context=50")


def test_stop_tokens_outside_the_vocabulary(refused, folder: Path) -> None:
    error = check(refused, folder, "rollout.sampling.stop_token_ids=[5,99999]")
    assert "rollout.sampling.stop_token_ids has 99999, which is no token: ids are from 0 to " in error


def test_too_few_values(refused, folder: Path) -> None:
    error = check(refused, folder, "trainer.optimizer.betas=[0.9]")
    assert "trainer.optimizer.betas is [0.9]: too few values; it needs at least 2" in error


def stages(*stages: tuple[str, list[str], list[str]]) -> str:
    return "algorithm.stages=" + json.dumps(
        [{"name": name, "function": "f.py:f", "reads": reads, "writes": writes} for name, reads, writes in stages]
    )


def test_a_column_that_nothing_writes(refused, folder: Path) -> None:
    said = check(refused, folder, stages(("mine", ["surprise"], ["x"])))
    assert "column surprise is read by stage mine, and nothing writes it" in said


def test_a_column_with_two_writers(refused, folder: Path) -> None:
    said = check(refused, folder, stages(("mine", ["tokens"], ["reward"])))
    assert "column reward is written by stage rollout and by stage mine" in said


def test_stages_in_a_circle(refused, folder: Path) -> None:
    said = check(refused, folder, stages(("a", ["y"], ["x"]), ("b", ["x"], ["y"])))
    assert "stage a reads y, written by b; stage b reads x, written by a" in said


def test_columns_for_a_loss_that_takes_none(refused, folder: Path) -> None:
    assert "loss_reads is given but loss is clipped_surrogate" in check(refused, folder, 'algorithm.loss_reads=["x"]')


def test_run_folder_that_is_a_file(refused, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused("train", str(folder / "grpo.yaml"), "--dir", str(tmp_path / "file"))
    assert "cannot be a run's folder: there is a file; choose another --dir" in error


def test_context_longer_than_the_models(refused, folder: Path) -> None:
    error = check(refused, folder, "engine.max_context=500")
    assert "engine.max_context is 500, but the model has 96 positions; set engine.max_context to 96" in error


def test_missing_model_folder(refused, folder: Path) -> None:
    assert "/no/such/model" in check(refused, folder, "model.path=/no/such/model")


def test_model_without_tokenizer(refused, folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "generation_config.json"):
        (tmp_path / name).write_bytes((folder / "model" / name).read_bytes())
    error = check(refused, folder, f"model.path={tmp_path}")
    assert "tokenizer" in error
    assert str(tmp_path) in error


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("missing.py:score", "missing.py"),
        ("{folder}/reward.py:nothing", "nothing"),
        ("{folder}/wrong.py:score", "signature"),
        ("{folder}/broken.py:score", "broken.py"),
        ("guess", "guess"),
    ],
)
def test_reward_that_cannot_be_used(refused, folder: Path, spec: str, said: str) -> None:
    (folder / "wrong.py").write_text("def score(only):\n    return 0.0\n")
    (folder / "broken.py").write_text("import no_such_module\n")
    error = check(refused, folder, f"reward.function={spec.format(folder=folder)}")
    assert "reward.function" in error
    assert said in error


def test_too_little_memory_for_the_cache_asked_for(refused, folder: Path) -> None:
    error = check(refused, folder, "engine.kv_cache_gib=0.00000001")
    mend = re.search(r"raise engine\.kv_cache_gib to ([\d.e-]+)", error)
    assert mend is not None
    assert main(["check", str(folder / "grpo.yaml"), f"engine.kv_cache_gib={mend[1]}"]) == 0, "the mend mends"


def test_run_folder_of_another_config(refused, folder: Path, tmp_path: Path) -> None:
    from headrace.store import RunStore

    RunStore.create(tmp_path / "run", config_yaml="", config_sha256="other", now=0.0).close()
    config = str(folder / "grpo.yaml")
    assert "--resume" in refused("train", config, "--dir", str(tmp_path / "run"))
    assert "was made with another config" in refused("train", config, "--dir", str(tmp_path / "run"), "--resume")


def test_run_folder_in_use(refused, folder: Path, tmp_path: Path) -> None:
    from headrace.config import TrainConfig, config_sha256, load_config
    from headrace.store import RunStore

    digest = config_sha256(load_config(TrainConfig, folder / "grpo.yaml"))
    store = RunStore.create(tmp_path / "run", config_yaml="", config_sha256=digest, now=0.0)
    try:
        assert "in use" in refused("train", str(folder / "grpo.yaml"), "--dir", str(tmp_path / "run"), "--resume")
    finally:
        store.close()


def test_resume_of_nothing(refused, folder: Path, tmp_path: Path) -> None:
    assert "holds no run" in refused("train", str(folder / "grpo.yaml"), "--dir", str(tmp_path / "none"), "--resume")


def test_damaged_run_db(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from headrace.config import TrainConfig, config_sha256, load_config
    from headrace.store import RunStore

    digest = config_sha256(load_config(TrainConfig, folder / "grpo.yaml"))
    RunStore.create(tmp_path / "run", config_yaml="", config_sha256=digest, now=0.0).close()
    (tmp_path / "run" / "run.db").write_bytes(b"not a database, not at all" * 100)
    assert main(["train", str(folder / "grpo.yaml"), "--dir", str(tmp_path / "run"), "--resume"]) == 1
    error = capsys.readouterr().err
    assert "run.db" in error
    assert "Traceback" not in error


def test_check_of_a_bad_file_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({"model": {"path": "m"}, "data": {"train": "t"}, "lr": 1}))
    script = (
        "import sys\nfrom headrace.cli.main import main\n"
        f"code = main(['check', {str(path)!r}])\n"
        "assert code == 2\nassert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--max-concurrent-sequences", "0"],
            "max_concurrent_sequences is 0: input should be greater than or equal to 1",
        ),
        (["--max-context", "1"], "max_context is 1: input should be greater than or equal to 2"),
        (["--max-context", "500"], "--max-context is 500, but the model has 96 positions; set --max-context to 96"),
        (["--host", "0.0.0.0"], "host is '0.0.0.0', which others can reach, and no token is set; set a token"),
        (["--token-env", "HEADRACE_NO_SUCH"], "--token-env names HEADRACE_NO_SUCH, which is not set"),
    ],
)
def test_serve_options(refused, folder: Path, options: list[str], said: str) -> None:
    assert said in refused("serve", str(folder / "model"), *options)


def test_serve_with_too_little_memory(refused, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.controller.planning.free_memory.free_bytes", lambda device: 2000)
    error = refused("serve", str(folder / "model"))
    assert "one sequence of 96 tokens takes 49152 bytes of KV cache" in error
    assert "set --max-context to 1 or less" in error


def test_serve_a_model_without_weights(refused, folder: Path, tmp_path: Path) -> None:
    copy_model(folder / "model", tmp_path, without="model.safetensors")
    assert "has no weights (*.safetensors); copy them into it" in refused("serve", str(tmp_path))


def test_serve_a_model_that_does_not_say_its_context(refused, folder: Path, tmp_path: Path) -> None:
    copy_model(folder / "model", tmp_path, without="config.json")
    BloomConfig(hidden_size=32, n_layer=1, n_head=2).save_pretrained(tmp_path)
    error = refused("serve", str(tmp_path))
    assert "config.json has no max_position_embeddings: set --max-context" in error


def copy_model(source: Path, target: Path, *, without: str) -> None:
    for path in source.iterdir():
        if path.name != without:
            (target / path.name).write_bytes(path.read_bytes())
