"""Malformed configs and datasets, through the commands that read them: one message that names the value, no traceback,
and nothing begun. (Malformed models are another table.)"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_job

from headrace.cli.main import main

TRAIN, OFFLINE = ("check", "train", "eval"), ("sft", "rm", "dpo")
GOOD = {
    "train": {"prompt": "1+1=", "answer": "2"},
    "sft": {"prompt": "1+1=", "response": "2"},
    "rm": {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
    "dpo": {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
}
PYTHON = """
def score(response, row): return 1.0
def needs_more(response, row, *, must): return 1.0
number = 5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that is right, and what tests put in the place of its parts."""
    folder = tmp_path_factory.mktemp("job")
    make_job(folder, trainer__batches=1)
    (folder / "mine.py").write_text(PYTHON)
    (folder / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (folder / "syntax.py").write_text("def score(:\n")
    return folder


@pytest.fixture
def refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Runs a command; returns its one message. Fails if a model was loaded or a folder was made."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded before the input was checked")

    loads = ("controller.building.first_version", "roles.workers.engine", "roles.workers.trainer", "models.loading")
    for place in loads:
        monkeypatch.setattr(f"headrace.{place}.load_causal_lm", forbidden)
    for trained in ("of_demonstrations", "of_pairs"):
        monkeypatch.setattr(f"headrace.offline.trained.{trained}.loaded", forbidden)

    def run(command: str, config: Path, *overrides: str) -> str:
        out = tmp_path / "out"
        where = [] if command in ("check", "eval") else ["--dir", str(out)]
        code = main([command, str(config), *overrides, *where])
        printed = capsys.readouterr()
        assert code == 2, printed.out + printed.err
        assert printed.out == ""
        assert printed.err.count("headrace: ") - printed.err.count("headrace: note: ") == 1, printed.err
        assert "Traceback" not in printed.err
        assert "pydantic" not in printed.err
        assert not out.exists(), "nothing was begun"
        return printed.err

    return run


def config_of(command: str, folder: Path, tmp_path: Path) -> Path:
    """A config of the command that is right but for its data, `data.jsonl` in `tmp_path`."""
    sections: dict[str, Any] = {
        "model": {"path": str(folder / "model")},
        "data": {"train": str(tmp_path / "data.jsonl")},
    }
    if command == "eval":
        sections["data"]["eval"] = sections["data"]["train"]
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


# (what, command, overrides of a job that is right, words of the message)
OVERRIDES = [
    ("true for a number", "check", ["rollout.prompts_per_batch=true"], "is true: a number is wanted"),
    ("a fraction", "train", ["trainer.batches=1.5"], "trainer.batches is 1.5: a whole number is wanted"),
    ("a number beyond 64 bits", "check", ["rollout.sampling.top_k=1" + "0" * 20], "a smaller number is wanted"),
    ("more samples than can be", "check", ["rollout.samples_per_prompt=1000000000"], "less than or equal to 65536"),
    ("null for a section", "check", ["model=null"], "model is null: a mapping of keys is wanted"),
    ("text for a section", "eval", ["rollout.sampling=cold"],
     "rollout.sampling is 'cold': a mapping of keys is wanted"),
    ("a list for a section", "check", ["data=[]"], "gives a list for a mapping, or the other way round, at data"),
    ("text for a list", "check", ["rollout.filters=zero_spread"], "is 'zero_spread': a list is wanted"),
    ("a place in no list", "train", ["rollout.filters[0]=x"], "the file has no list at rollout.filters"),
    ("an unknown filter", "check", ["rollout.filters=[x]"], "rollout.filters has 'x'; write zero_spread or"),
    ("a filter of no kind", "check", ["rollout.filters=[3]"], "a filter is a name, or a mapping with type"),
    ("not a number", "check", ["trainer.optimizer.lr=nan"], "a finite number is wanted"),
    ("a number in words", "check", ["trainer.optimizer.lr=small"],
     "trainer.optimizer.lr is 'small': a number is wanted"),
    ("a number for text", "check", ["data.prompt_column=5"], "data.prompt_column is 5: text is wanted"),
    ("a value yet to be given", "check", ["model.path=???"], "model.path is ???"),
    ("an unknown interpolation", "check", ["seed=${nope}"], "Interpolation key 'nope' not found"),
    ("an override that is no YAML", "check", ["seed=["], "override 'seed=[' is not valid YAML"),
    ("an override without a key", "check", ["=3"], "names no key"),
    ("an unknown recipe", "check", ["algorithm.recipe=gropo"], "algorithm.recipe is 'gropo': input should be 'grpo'"),
    ("an unknown loss", "check", ["algorithm.loss=nope"], "'nope' is not known; use clipped_surrogate"),
    ("a loss in no module", "check", ["algorithm.loss=no_such:f"], "no_such does not import"),
    ("a stage of nothing", "check", ["algorithm.stages=[{}]"], "missing key algorithm.stages.0.function"),
    ("an unknown device", "check", ["model.device=tpu"], "device 'tpu' is unknown"),
    ("another dtype", "check", ["model.dtype=fp16"], "model.dtype is 'fp16': input should be 'float32'"),
    ("too many threads", "train", ["runtime.threads=100000"], "runtime.threads is 100000"),
    ("an empty function", "check", ["reward.function=''"], "reward.function is ''"),
    ("no function", "check", ["reward.function={folder}/mine.py:number"], "is a int; name a function"),
    ("a function that wants more", "check", ["reward.function={folder}/mine.py:needs_more"],
     "required argument: 'must'"),
    ("a reward that exits", "check", ["reward.function={folder}/exits.py:score"], "does not import: SystemExit: 3"),
    ("a reward that does not parse", "eval", ["reward.function={folder}/syntax.py:score"], "SyntaxError"),
    ("an answer for no reward", "check", ["reward.function=numeric", "reward.answer=many"], "has no number"),
    ("a pattern that is none", "check", ["reward.function=regex", "reward.answer='('"], "reward.answer is no answer"),
    ("a term without a function", "check", ["reward={terms: [{weight: 1}]}"], "missing key reward.terms.0.function"),
    ("an address that is none", "check", ["reward.function=remote", "reward.remote.url=ftp://x"],
     "reward.remote.url is"),
    ("no such dataset", "eval", ["data.eval=/none.jsonl"], "no dataset at /none.jsonl"),
    ("a folder for a dataset", "check", ["data.train={folder}"], "set split to one of them"),
    ("no held-out prompts", "eval", ["data.eval=null"], "names no held-out prompts"),
    ("a workflow without environment", "check", ["rollout.workflow=multi_turn"], "needs rollout.environment"),
    ("an unknown key", "train", ["trainer.max_steps=3"], "did you mean trainer.batches?"),
    ("a path that no system has", "check", [f"data.train={'a' * 300}"], "File name too long; give another path"),
    ("a model of such a name", "eval", [f"model.path={'a' * 300}"], "File name too long; give another path"),
    ("tries for ever", "check", ["reward.function=remote", "reward.remote.url=http://x", "reward.remote.retries=9999"],
     "reward.remote.retries is 9999: input should be less than or equal to 20"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "overrides", "words"), [case[1:] for case in OVERRIDES], ids=[case[0] for case in OVERRIDES]
)
def test_a_malformed_config_gets_one_message(
    refused: Any, folder: Path, command: str, overrides: list[str], words: str
) -> None:
    given = [override.replace("{folder}", str(folder)) for override in overrides]
    assert words in refused(command, folder / "grpo.yaml", *given)


FILES = {
    "an empty file": ("", "missing key model"),
    "a number": ("3\n", "holds no mapping"),
    "a list": ("- a\n", "holds no mapping"),
    "a key twice": ("seed: 1\nseed: 2\n", "found duplicate key seed"),
    "a tab": ("model:\n\tpath: x\n", "is not valid YAML"),
    "an object of Python": ("seed: !!python/object/apply:os.system [ls]\n", "is not valid YAML"),
    "two documents": ("seed: 1\n---\nseed: 2\n", "expected a single document"),
    "a key that is no text": ("1: 2\nmodel: {path: m}\ndata: {train: t}\n", "a key is 1"),
    "endless nesting": ("a: " + "[" * 3000 + "]" * 3000, "nested too deeply"),
    "an alias of itself": ("a: &a [*a]\n", "is not valid YAML"),
    "bytes that are no text": (b"seed: \xff\xfe\n", "is not UTF-8 text"),
    "another command's": ("model: {path: m}\ndata: {train: t}\nreward: {function: exact}\n",
     "a config of headrace train"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_config_gets_one_message(refused: Any, tmp_path: Path, name: str) -> None:
    content, words = FILES[name]
    path = tmp_path / "config.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert words in refused("sft", path)


# (what, commands, lines, overrides, words of the message). A line is text, or a row; "GOOD" is a row that is right.
DATASETS: list[tuple[str, tuple[str, ...], list[Any], list[str], str]] = [
    ("no rows", (*TRAIN, *OFFLINE), ["", "  "], [], "holds no rows"),
    ("no JSON", (*TRAIN, *OFFLINE), ["GOOD", "prompt,answer"], [], "line 2 is not JSON"),
    ("a JSON list", ("check", "dpo"), ['[{"prompt": "a"}]'], [], "line 1 is a JSON list; write an object"),
    ("a row over several lines", ("check",), ["{", '"prompt": "a"}'], [], "line 1 is not JSON"),
    ("two rows in a line", ("sft",), ['{"prompt": "a"}{"prompt": "b"}'], [], "line 1 is not JSON"),
    ("a number that is none", ("check",), ['{"prompt": "a", "answer": NaN}'], [], "NaN is no JSON value"),
    ("half a surrogate pair", ("check", "rm"), ['{"prompt": "\\ud800"}'], [], "line 1 is not JSON"),
    ("a column twice", ("check", "sft"), ['{"prompt": "a", "prompt": "b"}'], [], "it has 'prompt' twice"),
    ("endless nesting", ("check",), ['{"prompt": ' + "[" * 100_000], [], "line 1 is not JSON"),
    ("no prompt", (*TRAIN, *OFFLINE), [{"question": "a"}], [],
     "line 1 has no prompt column 'prompt' (it has 'question')"),
    ("an empty prompt", ("check", "sft", "rm"), [{"prompt": ""}], [], "line 1 has an empty prompt"),
    ("a prompt that is a number", ("check", "dpo"), [{"prompt": 5}], [], "is a JSON number; give text"),
    ("a message without content", ("check",), [{"prompt": [{"role": "user"}]}], [],
     "message 1 (of user) has no content; give {'role': text, 'content': text}"),
    ("a chat without a template", ("check", "eval", "sft"), ["CHAT"], [], "has no chat template"),
    ("no answer", ("check", "train"), [{"prompt": "a"}], [], "line 1 has no value in column 'answer'"),
    ("an answer without a number", ("check", "eval"), ["GOOD", {"prompt": "a", "answer": "b"}],
     ["reward.function=numeric"], "line 2, column 'answer': its reward numeric could not compare"),
    ("an answer that is no pattern", ("check",), [{"prompt": "a", "answer": "("}], ["reward.function=regex"],
     "its reward regex could not compare with that: missing )"),
    ("an answer that is no letter", ("check",), [{"prompt": "a", "answer": "42"}], ["reward.function=choice"],
     "the answer '42' is no letter"),
    ("tests that are none", ("check",), [{"prompt": "a", "answer": [{"in": "1"}]}], ["reward.function=code"],
     "is no test; give {input, output}"),
    ("a row of no term", ("check",), [{"prompt": "a", "answer": "1", "task": "x"}],
     ["reward={terms: [{function: exact, rows: [y]}], choose_by: task}"], "has task 'x', and no reward is for that"),
    ("an id twice", ("check",), [{"prompt": "a", "answer": "1", "id": 1}] * 2, ["data.id_column=id"],
     "line 2 has the id '1' of line 1"),
    ("an id that is none", ("check",), [{"prompt": "a", "answer": "1", "id": None}], ["data.id_column=id"],
     "the id in column 'id' is None"),
    ("a prompt that fills the context", ("check",), [{"prompt": "1" * 200, "answer": "1"}], [],
     "has 200 tokens, and the context"),
    ("no response", ("sft",), [{"prompt": "a", "completion": "b"}], [], "line 1 has no value in column 'response'"),
    ("an empty response", ("sft",), [{"prompt": "a", "response": ""}], [], "the response in column 'response' is ''"),
    ("a response that is a number", ("sft",), [{"prompt": "a", "response": 5}], [],
     "the response in column 'response' is 5"),
    ("a response beyond the context", ("sft",), [{"prompt": "a", "response": "b" * 200}], [],
     "has 202 tokens with its response"),
    ("a pair of one", ("rm", "dpo"), [{"prompt": "a", "chosen": "b"}], [], "no value in column 'rejected'"),
    ("pairs without a difference", ("rm", "dpo"), [{"prompt": "a", "chosen": "b", "rejected": "b"}], [],
     "the rejected response of every pair is the chosen one"),
    ("one column for both", ("rm", "dpo"), ["GOOD"], ["data.rejected_column=chosen"],
     "chosen_column and rejected_column are both 'chosen'"),
    ("the prompt for a response", ("sft",), ["GOOD"], ["data.response_column=prompt"],
     "prompt_column and response_column are both 'prompt'"),
    ("a file in UTF-16", ("check", "sft"), ["UTF-16"], [], "line 1 is not JSON"),
    ("a compressed file", ("check", "dpo"), ["GZIP"], [], "another kind by its content, gzip (.gz); give it that"),
]  # fmt: skip
CASES = [
    pytest.param(command, lines, overrides, words, id=f"{command}: {what}")
    for what, commands, lines, overrides, words in DATASETS
    for command in commands
]


@pytest.mark.parametrize(("command", "lines", "overrides", "words"), CASES)
def test_a_malformed_dataset_gets_one_message(
    refused: Any, folder: Path, tmp_path: Path, command: str, lines: list[Any], overrides: list[str], words: str
) -> None:
    (tmp_path / "data.jsonl").write_bytes(content(command, lines))
    assert words in refused(command, config_of(command, folder, tmp_path), *overrides)


@pytest.mark.parametrize("command", ["check", "train", "eval", "sft", "dpo"])
@pytest.mark.parametrize(("template", "words"), [
    ("{{ raise_exception('only tools speak here') }}", "TemplateError: only tools speak here"),
    ("{% for m in messages %}", "TemplateSyntaxError: "),
    ("{{ messages[0]['content'] + 1 }}", "TypeError: "),
])  # fmt: skip
def test_a_chat_template_that_refuses_is_told_in_one_message(
    refused: Any, folder: Path, tmp_path: Path, command: str, template: str, words: str
) -> None:
    shutil.copytree(folder / "model", tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(template)
    (tmp_path / "data.jsonl").write_bytes(content(command, ["CHAT"]))
    said = refused(command, config_of(command, folder, tmp_path), f"model.path={tmp_path}/model")
    assert f"the tokenizer's chat template refuses the messages: {words}" in said


def content(command: str, lines: list[Any]) -> bytes:
    good = GOOD["train" if command in TRAIN else command]
    rows = {"GOOD": good, "CHAT": {**good, "prompt": [{"role": "user", "content": "1+1"}]}}
    if lines == ["UTF-16"]:
        return json.dumps(good).encode("utf-16")
    if lines == ["GZIP"]:
        return b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
    named = [rows.get(line, line) if isinstance(line, str) else line for line in lines]
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in named).encode()
