"""What a job takes along is all that its functions import: they load in its folder, where nothing else is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_job

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller import shipped_functions
from headrace.controller.shipping import CONFIG, ship

_CALL = """
import sys
from headrace.plugins.named import load_named
print([load_named(spec, "reward.function")("x", {}) for spec in sys.argv[1:]])
"""
Shipped = Callable[..., tuple[dict[str, Any], Path]]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command's working folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def shipped(work: Path, tmp_path: Path) -> Shipped:
    def made(files: Mapping[str, str], **sections: Any) -> tuple[dict[str, Any], Path]:
        """The config in the job's folder, and that folder, once the working folder has gone."""
        write(work, files)
        into = tmp_path / "job"
        into.mkdir()
        base = {"model": {"path": "Qwen/Qwen3-0.6B"}, "data": {"train": "rows"}, "reward": {"function": "exact"}}
        config = yaml.safe_load(ship(load_config(TrainConfig, base | sections, []), into).read_text())
        work.rename(tmp_path / "gone")
        return config, into

    return made


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def called(folder: Path, *functions: str) -> str:
    """What they give, in a process whose working folder that is."""
    line = [sys.executable, "-c", _CALL, *functions]
    process = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def a_score(imports: str, value: str) -> str:
    return f"{imports}\n\n\ndef score(response, row):\n    return {value}\n"


def terms(*functions: str) -> dict[str, Any]:
    """The section `reward`."""
    return {"terms": [{"function": each} for each in functions]}


def test_a_module_of_the_working_folder_goes_along_with_what_it_imports(shipped: Shipped) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/other.py": a_score("from . import near\nimport beside", "near.VALUE + beside.VALUE"),
        "pkg/near.py": "VALUE = 1",
        "pkg/far.py": "",
        "beside.py": "VALUE = 2",
        "unrelated.py": "",
    }
    config, job = shipped(files, reward={"function": "pkg.other:score"})
    assert config["reward"]["function"] == "pkg.other:score"
    assert names(job) == ["beside.py", CONFIG, "pkg/__init__.py", "pkg/near.py", "pkg/other.py"]
    assert called(job, "pkg.other:score") == "[3]"


def test_a_package_beside_a_function_s_file_goes_along(shipped: Shipped) -> None:
    files = {
        "reward.py": a_score("from lib.helper import f", "f()"),
        "lib/helper.py": "from lib.deep import VALUE\n\n\ndef f():\n    return VALUE",
        "lib/deep/__init__.py": "from .most import VALUE",
        "lib/deep/most.py": "VALUE = 5",
        "lib/unused.py": "",
        "late.py": "",
    }
    config, job = shipped(files, reward={"function": "reward.py:score"})
    given = config["reward"]["function"]
    assert given == "functions/0/reward.py:score"
    here = ["late.py", "lib/deep/__init__.py", "lib/deep/most.py", "lib/helper.py", "reward.py"]
    assert names(job) == [CONFIG, *(f"functions/0/{name}" for name in here)]
    assert called(job, given) == "[5]"


def test_a_file_behind_a_link_goes_along_with_the_folder_that_it_is_in(work: Path, shipped: Shipped) -> None:
    write(work, {"real/own.py": a_score("from lib import VALUE", "VALUE"), "real/lib/__init__.py": "VALUE = 6"})
    (work / "reward.py").symlink_to("real/own.py")
    config, job = shipped({}, reward={"function": "reward.py:score"})
    assert called(job, config["reward"]["function"]) == "[6]"


def test_modules_of_one_name_in_two_folders_do_not_meet(shipped: Shipped) -> None:
    files = {
        f"{name}/{file}": text
        for name in "ab"
        for file, text in {
            "reward.py": a_score("from lib.value import VALUE", "VALUE"),
            "lib/value.py": f"VALUE = {name!r}",
        }.items()
    }
    config, job = shipped(files, reward=terms("a/reward.py:score", "b/reward.py:score"))
    given = [term["function"] for term in config["reward"]["terms"]]
    assert given == ["functions/0/reward.py:score", "functions/1/reward.py:score"]
    assert [called(job, each) for each in given] == ["['a']", "['b']"]


def test_a_module_and_a_file_of_the_working_folder_share_a_package(shipped: Shipped) -> None:
    files = {
        "pkg/__init__.py": "",
        "pkg/other.py": a_score("", "1"),
        "pkg/more.py": "VALUE = 2",
        "reward.py": a_score("from pkg.more import VALUE", "VALUE"),
    }
    config, job = shipped(files, reward=terms("pkg.other:score", "reward.py:score"))
    given = [term["function"] for term in config["reward"]["terms"]]
    assert called(job, *given) == "[1, 2]"
    assert called(job, *reversed(given)) == "[2, 1]"


def test_a_name_of_the_working_folder_and_of_a_function_s_folder_is_refused(shipped: Shipped) -> None:
    files = {
        "pkg.py": a_score("import common", "common.VALUE"),
        "common.py": "VALUE = 1",
        "own/reward.py": a_score("import common", "common.VALUE"),
        "own/common.py": "VALUE = 2",
    }
    with pytest.raises(ConfigError, match=r"work/common\.py and .*own/common\.py, both as common: .*; rename one"):
        shipped(files, reward=terms("pkg:score", "own/reward.py:score"))


@pytest.mark.parametrize(("limit", "most"), [("_MOST_BYTES", 100), ("_MOST_FILES", 2)])
def test_more_than_a_job_takes_is_refused(
    shipped: Shipped, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(shipped_functions, limit, most)
    files = {
        "reward.py": a_score("import lib.a, lib.b", "0"),
        "lib/a.py": f"A = {'a' * 60!r}",
        "lib/b.py": f"B = {'b' * 60!r}",
    }
    with pytest.raises(ConfigError, match=r"up to .*lib/[ab]\.py; keep functions, and what they import, in a folder"):
        shipped(files, reward={"function": "reward.py:score"})


def test_files_of_an_agent_s_command_are_named_in_full(work: Path, shipped: Shipped) -> None:
    command = ["python", "agent.py", "--rows", "rows.txt", "fast", "-m", "pkg", "agent.py:main"]
    config, job = shipped(
        {"agent.py": "", "rows.txt": "", "python": "", "pkg/__init__.py": "", "more/a": ""},
        rollout={"agent": {"command": command, "read": ["more", "/tmp"]}},
    )
    full = ["python", f"{work}/agent.py", "--rows", f"{work}/rows.txt", *command[4:]]
    assert config["rollout"]["agent"] == {"command": full, "read": [f"{work}/more", "/tmp"]}
    assert names(job) == [CONFIG]


def test_a_program_that_is_named_by_its_path_is_named_in_full(work: Path, shipped: Shipped) -> None:
    config, _ = shipped({"agents/run.sh": ""}, rollout={"agent": {"command": ["agents/run.sh"]}})
    assert config["rollout"]["agent"]["command"] == [f"{work}/agents/run.sh"]


def test_an_interpreter_that_is_named_by_its_path_is_named_in_full(work: Path, shipped: Shipped) -> None:
    """Whether it is there or not; and a link to it as it is, since what it leads to has another environment."""
    (work / "there").symlink_to(sys.executable)
    here = [".venv-vllm/bin/python", "../sglang/bin/python", "python3", "there", "~/env/bin/python", "/env/bin/python"]
    config, _ = shipped({}, engine=[{"kind": "vllm", "python": each} for each in here])
    first, *others = [config["engine"], *config["engine"]["beside"]]
    assert [each["python"] for each in (first, *others)] == [
        f"{work}/.venv-vllm/bin/python",
        f"{work.parent}/sglang/bin/python",
        "python3",
        f"{work}/there",
        f"{Path.home()}/env/bin/python",
        "/env/bin/python",
    ]


def test_files_of_a_server_s_options_are_named_in_full(work: Path, shipped: Shipped) -> None:
    args = {"chat_template": "chat.jinja", "tokenizer": "models/own", "load_format": "auto", "revision": "some/branch"}
    engine = [{"kind": "vllm", "args": args}, {"kind": "vllm", "args": {"speculative_config": {"model": "models/own"}}}]
    config, _ = shipped({"chat.jinja": "", "models/own/config.json": "", "auto/x": ""}, engine=engine)
    full = {"chat_template": f"{work}/chat.jinja", "tokenizer": f"{work}/models/own"}
    assert config["engine"]["args"] == args | full
    assert config["engine"]["beside"][0]["args"] == {"speculative_config": {"model": f"{work}/models/own"}}


def test_held_out_sets_are_named_in_full(work: Path, shipped: Shipped) -> None:
    sets = {"near": {"data": "near.jsonl"}, "far": {"data": {"path": "far.jsonl"}}, "hub": {"data": "openai/gsm8k"}}
    config, _ = shipped({"near.jsonl": "", "far.jsonl": ""}, evaluation={"sets": sets})
    found = [each["data"] for each in config["evaluation"]["sets"].values()]
    assert found == [f"{work}/near.jsonl", {"path": f"{work}/far.jsonl"}, "openai/gsm8k"]


def test_trackers_keep_their_places(work: Path, shipped: Shipped) -> None:
    track = [
        {"type": "tensorboard", "folder": "tb"},
        {"type": "csv", "folder": "/data/csv"},
        {"type": "mlflow", "uri": "sqlite:///mlflow.db"},
    ]
    config, _ = shipped({}, track=track)
    assert [section.get("folder", section.get("uri")) for section in config["track"]] == [
        f"{work}/tb",
        "/data/csv",
        f"sqlite:///{work}/mlflow.db",
    ]


@pytest.mark.parametrize(
    ("uri", "folder"), [("file:./runs", "file:{}/runs"), ("./runs", "{}/runs"), ("mine", "{}/mine")]
)
def test_a_tracker_s_folder_is_named_in_full(work: Path, shipped: Shipped, uri: str, folder: str) -> None:
    config, _ = shipped({"mine/meta.yaml": ""}, track=[{"type": "mlflow", "uri": uri}])
    assert config["track"][0]["uri"] == folder.format(work)


@pytest.mark.parametrize(
    "uri", ["sqlite:////data/mlflow.db", "http://127.0.0.1:5000", "file:///data/runs", "databricks", "databricks://own"]
)
def test_a_tracker_s_whole_address_stays(shipped: Shipped, uri: str) -> None:
    config, _ = shipped({}, track=[{"type": "mlflow", "uri": uri}])
    assert config["track"][0]["uri"] == uri


@pytest.mark.slow
def test_a_job_s_config_passes_the_check_in_its_folder(tmp_path: Path, shipped: Shipped) -> None:
    given = yaml.safe_load(make_job(tmp_path / "given").read_text())
    files = {
        "pkg/other.py": a_score("from pkg.value import VALUE", "VALUE"),
        "pkg/value.py": "VALUE = 1",
        "own/reward.py": a_score("from lib.helper import VALUE", "VALUE"),
        "own/lib/helper.py": "VALUE = 1",
    }
    given["reward"] = terms("pkg.other:score", "own/reward.py:score")
    _, job = shipped(files, **given)
    line = [sys.executable, "-m", "headrace", "check", CONFIG]
    process = subprocess.run(line, cwd=job, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
