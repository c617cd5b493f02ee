"""CONTRIBUTING.md names what is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_path_that_it_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:src|tests|examples|benchmarks|docs)/[\w./]*|pyproject\.toml|\.ci/run)`", text)
    named += re.findall(r"\]\((docs/[\w.]+)", text)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).exists()] == []
    for target in re.findall(r"make ([\w-]+)", text):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()
