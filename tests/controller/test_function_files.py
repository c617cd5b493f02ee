"""What a function is imported from, read from import statements."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.controller.planning.function_files import files_of, modules_of

_FILES = {
    "score.py": "import json, parser\nimport helper_a.deep as deep\nfrom types import ModuleType\nimport yaml",
    "types.py": "",  # Python's own is found first
    "yaml.py": "",  # and so is an installed one: this folder is looked in last
    "unused.py": "",
    "helper_a/__init__.py": "",
    "helper_a/deep.py": "from . import near\nfrom ..outside import x\ndef late():\n    import helper_b",
    "helper_a/near.py": "import helper_c",
    "helper_a/far.py": "",
    "helper_c.py": "",
    "helper_b.py": "from helper_a.none import value, far\nthis is no Python",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in _FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_file_is_imported_with_those_beside_it_that_it_names(folder: Path) -> None:
    found = [str(file.relative_to(folder)) for file in files_of(folder / "score.py")]
    assert found[0] == "score.py"
    assert sorted(found[1:]) == [
        "helper_a/__init__.py",
        "helper_a/deep.py",
        "helper_a/near.py",
        "helper_b.py",
        "helper_c.py",
    ]


def test_a_module_is_imported_with_those_of_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert modules_of("helper_a.deep")[0] == "helper_a.deep"
    assert sorted(modules_of("helper_a.deep")) == ["helper_a.deep", "helper_a.near", "helper_b", "helper_c"]


def test_one_that_is_installed_is_looked_for_alone_and_python_s_own_not_at_all() -> None:
    assert modules_of("yaml.nodes") == ["yaml.nodes"]
    assert modules_of("json.decoder") == modules_of("http") == modules_of("no_such_module") == []
