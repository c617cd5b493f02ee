from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import ConfigError
from headrace.plugins.named import accepts_keyword, load_class, load_function


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def load(spec: str) -> object:
    return load_function(spec, "reward.function", ("response", "row"))


def test_a_function_of_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, "def reward(response, row): return 2.0")
    assert load_function(f"{file}:reward", "reward.function", ("response", "row"))("", {}) == 2.0


def test_a_function_of_a_module_on_the_path() -> None:
    assert load_function("operator:eq", "reward.function", ("response", "row"))("a", "a") is True


def test_a_module_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "def reward(response, row): return 3.0", "my_rewards_module.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    assert load_function("my_rewards_module:reward", "reward.function", ("response", "row"))("", {}) == 3.0


def test_a_file_finds_its_neighbours_but_hides_no_library(tmp_path: Path) -> None:
    write(tmp_path, "raise RuntimeError('the wrong one')", "fractions.py")
    write(tmp_path, "VALUE = 4", "neighbour_of_mine.py")
    file = write(tmp_path, "import fractions, neighbour_of_mine as n\ndef f(response, row): return n.VALUE")
    assert load_function(f"{file}:f", "k", ("response", "row"))("", {}) == 4


def test_two_names_of_one_file_share_their_module(tmp_path: Path) -> None:
    file = write(tmp_path, "STATE = []\ndef a(x): return STATE\ndef b(x): return STATE")
    first, second = (load_function(f"{file}:{name}", "k", ("x",)) for name in "ab")
    assert first(0) is second(0)


@pytest.mark.parametrize("spec", ["mine", "mine.py", ":f", "mine.py:"])
def test_a_spec_without_both_parts_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"reward.function is '.*'; write path.py:name or module:name"):
        load(spec)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*absent.py; paths are relative to"):
        load(f"{tmp_path}/absent.py:f")


def test_a_missing_module_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no_such_module does not import: ModuleNotFoundError"):
        load("no_such_module:f")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("x = 1\nraise KeyError('k')", r"KeyError: 'k' \(mine.py, line 2\)"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Panic(BaseException): pass\nraise Panic('a bound')", r"Panic: a bound \(mine.py, line 2\)"),
    ],
)
def test_a_file_that_does_not_import_says_why(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError, match=rf"mine.py does not import: {words}"):
        load(f"{file}:f")


def test_a_misspelt_name_is_corrected(tmp_path: Path) -> None:
    file = write(tmp_path, "def reward(response, row): ...")
    with pytest.raises(ConfigError, match=r"has no 'rewrad'; did you mean reward\?"):
        load(f"{file}:rewrad")


def test_what_is_no_function_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path, "f = 3")
    with pytest.raises(ConfigError, match="which is a int; name a function"):
        load(f"{file}:f")


def test_a_wrong_signature_is_shown_with_the_right_one(tmp_path: Path) -> None:
    file = write(tmp_path, "def f(response): ...")
    with pytest.raises(ConfigError, match=r"has the signature \(response\), but is called as \(response, row\)"):
        load(f"{file}:f")


def test_a_class_is_checked_before_it_is_made(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "class Good:\n    def run(self, a, b): ...\n"
        "class NoRun: ...\n"
        "class Short:\n    def run(self, a): ...\n"
        "class Needy:\n    def __init__(self, x): ...\n    def run(self, a, b): ...\n",
    )
    methods = {"run": ("prompt", "policy")}
    assert load_class(f"{file}:Good", "rollout.workflow", methods).__name__ == "Good"
    with pytest.raises(ConfigError, match=r"has no method run; write run\(self, prompt, policy\)"):
        load_class(f"{file}:NoRun", "rollout.workflow", methods)
    with pytest.raises(ConfigError, match=r"whose method run has the signature \(self, a\)"):
        load_class(f"{file}:Short", "rollout.workflow", methods)
    with pytest.raises(ConfigError, match=r"whose constructor has the signature \(x\)"):
        load_class(f"{file}:Needy", "rollout.workflow", methods)
    with pytest.raises(ConfigError, match="name a class"):
        load_class("operator:eq", "rollout.workflow", methods)


def test_which_functions_take_the_prompt() -> None:
    assert accepts_keyword(lambda response, row, prompt: 0, "prompt")
    assert accepts_keyword(lambda response, row, **more: 0, "prompt")
    assert not accepts_keyword(lambda response, row: 0, "prompt")
