"""Lines that install something, wherever a user reads one: each can be pasted, and asks no index for a name of ours."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
LINE = re.compile(r"pip install ((?:[^`\n)(]|\n {4,})+)")


def read_by_users() -> list[Path]:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").glob("*.ipynb")]
    return [*pages, *(ROOT / "plugins").glob("*/README.md"), *(ROOT / "src").rglob("*.py")]


def installs() -> list[tuple[str, str]]:
    """(file, what follows `pip install`), a Python text that goes on in the next line included."""
    return [
        (str(path.relative_to(ROOT)), re.sub(r'"\s*\n\s*f?"', "", line))
        for path in read_by_users()
        for line in LINE.findall(path.read_text())
    ]


def test_no_index_is_asked_for_a_name_of_ours() -> None:
    assert len(installs()) > 20
    assert [each for each in installs() if re.search(r"(?<![\w/.])headrace(?!\[|\w)", each[1].split("#")[0])] == []


def test_extras_are_quoted_and_there() -> None:
    """zsh takes brackets that are not quoted for a pattern."""
    for file, line in installs():
        for before, extras in re.findall(r"(.?)(?:headrace|\.)\[([\w,{}]+)\]", line):
            assert before == "'", f"{file}: {line}"
            assert "{" in extras or set(extras.split(",")) <= EXTRAS, f"{file}: {line}"


def test_readme_names_every_extra_that_is_a_user_s() -> None:
    section = (ROOT / "README.md").read_text().split("## Install")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section.split("Extras are")[1].split(". Where")[0]))
    assert named == EXTRAS - {"dev", "oracle"}


def test_folders_that_are_installed_are_there() -> None:
    named = {path for _, line in installs() for path in re.findall(r"plugins/[\w-]+", line)}
    assert named == {"plugins/headrace-vllm", "plugins/headrace-sglang-cpu"}
    assert all((ROOT / path / "pyproject.toml").exists() for path in named)
    assert (ROOT / "constraints.txt").exists()
