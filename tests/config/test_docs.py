"""The docs name only what is there: keys, commands, files."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from headrace.cli.commands import make_parser
from headrace.config.kinds import KINDS
from headrace.config.reading.explain import known_keys

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
KNOWN = {key for kind in KINDS.values() for key in known_keys(kind)}
SECTIONS = {key for key in KNOWN if "." not in key}
NO_KEYS = {"data.last_values", "data.columns", "data.shaped"}
"""Attributes of what an advantage of the user's own is given."""


def text(page: Path) -> str:
    """Without the fields of summary.json, which have dots too."""
    return re.sub(r"## `summary.json`.*", "", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_key_that_a_page_names_exists(page: Path) -> None:
    """Of those written as code, with their section: `rollout.filters`, `async.mode=sync`, `reward.trusted: true`."""
    if page.name == "configuration.md":
        pytest.skip("made from the models")
    named = set()
    for code in re.findall(r"`([^`\n]+)`", text(page)):
        for key in re.findall(r"(?<![\w./])[a-z]+(?:\.[a-z_0-9]+)+(?![\w(/])", code):
            if key.split(".")[0] in SECTIONS and not key.endswith((".py", ".yaml", ".jsonl", ".json", ".safetensors")):
                named.add(key)
    assert named - KNOWN - NO_KEYS == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    (commands,) = (action.choices for action in make_parser()._actions if action.dest == "command")
    named = re.findall(r"(?:^|`|# )headrace ((?:[a-z]+ \| )*[a-z]+)\b", text(page), flags=re.MULTILINE)
    assert {name for names in named for name in names.split(" | ")} <= set(commands or ())
    if page.name == "design.md":
        assert {name for names in named for name in names.split(" | ")} == set(commands or ())


def test_every_file_that_the_design_names_exists() -> None:
    code = ROOT / "src" / "headrace"
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)`", (ROOT / "docs" / "design.md").read_text())
    of_a_run = {"journal/", "inputs/", "logs/", "checkpoints/step_N/"}
    assert len(named) > 20
    assert [name for name in named if name not in of_a_run and not (code / name).exists()] == []


LINKING = [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "docs/adding").glob("*.md"), *ROOT.glob("plugins/*/README.md")]


def headings(page: Path) -> set[str]:
    """As GitHub names them in a link: small, without signs, spaces as hyphens."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in re.findall(r"^#+ (.*)$", prose, re.MULTILINE)]
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in texts}


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in LINKING:
        for link in re.findall(r"\]\(([^):\s]+)\)", page.read_text()):
            name, _, heading = link.partition("#")
            there = page.parent / name if name else page
            assert there.exists(), f"{page.name}: {link}"
            assert not heading or heading in headings(there), f"{page.name}: {link}"


def test_the_picture_of_the_rooms_is_that_of_the_contract() -> None:
    spec = importlib.util.spec_from_file_location("make_house", ROOT / "docs" / "make_house.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # dataclasses look their module up
    spec.loader.exec_module(made)
    figures = ROOT / "docs" / "figures"
    assert (figures / "house.svg").read_text() == made.house(), "run: python docs/make_house.py"
    assert (figures / "way.svg").read_text() == made.way(), "run: python docs/make_house.py"
