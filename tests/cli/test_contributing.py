"""CONTRIBUTING.md, and the pages on what to add, name what is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["CONTRIBUTING.md", *(f"docs/adding/{name}.md" for name in ("reward", "environment", "recipe", "engine"))]


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_it_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = [
        path
        for path in re.findall(
            r"`((?:src|tests|examples|benchmarks|docs)/[\w./]*|[\w-]+\.(?:toml|txt)|\.ci/run)`", text
        )
        if "NAME" not in path
    ]
    links = re.findall(r"\]\(([\w./]+)", text)
    assert len(named) >= 4
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [path for path in links if not (ROOT / page).parent.joinpath(path).exists()] == []
    for target in re.findall(r"make ([a-z][\w-]+)", text):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_the_environment_that_its_page_shows_works() -> None:
    from headrace.rollout.environment import StepResult

    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/adding/environment.md").read_text(), re.DOTALL)
    scope = {"StepResult": StepResult}
    exec(code, scope)
    game = scope["Guess"]()  # type: ignore[operator]
    assert game.reset({"secret": "42"}) is None
    assert game.step("is it 50?").observation == "lower; 6 left"
    assert game.step("no idea").observation == "no number; 5 left"
    assert game.step("42!") == StepResult("", reward=1.0, done=True)
