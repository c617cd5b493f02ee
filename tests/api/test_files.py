"""A callable that a file defines: as it is written down, and once that file was changed."""

import importlib
import importlib.util
import re
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
from api_cells import cell, written

from headrace.api.given.defining_file import by_file
from headrace.api.given.sources import source_of

OBJECTS = """
import functools, threading
from dataclasses import dataclass, field
LOCK = threading.Lock()
W = 1.0
def score(response, row):
    with LOCK: return W
def helper():
    return W
def indirect(response, row):
    with LOCK: return helper()
def default(response, row, k=1.0):
    with LOCK: return k
def twice(f):
    @functools.wraps(f)
    def g(*a): return 2 * f(*a)
    return g
@twice
def wrapped(response, row): return 1.0
@dataclass
class Env:
    K = 1.0
    seen: list = field(default_factory=list)
    def value(self):
        with LOCK: return self.K
def make():
    def score(response, row): return 1.0
    return score
made = make()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Writes and imports a module of the user's."""
    import sys

    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def make(text: str, name: str = "mine_here") -> Any:
        file = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def loaded(found: tuple[str, str] | None, folder: Path) -> Any:
    assert found is not None
    file = folder / "by_file.py"
    file.write_text(found[0])
    spec = importlib.util.spec_from_file_location("by_file", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, found[1])


def test_what_a_file_defines_is_copied_with_what_it_uses_of_it(mine: Any, tmp_path: Path) -> None:
    mine("def one(): return 1.0\n", "beside_here")
    module = mine(
        "from beside_here import one\nW = 2.0\ndef helper(): return W\n"
        "def score(response, row, *, k=W):\n    return helper() + k + one()\n"
    )
    copy = written(module.score, tmp_path)
    (tmp_path / "mine_here.py").write_text("raise SystemExit")
    assert copy("", {}) == 5.0
    assert source_of(module.score, "reward") is None  # the file is another one


@pytest.mark.parametrize("name", ["score", "indirect", "default", "wrapped", "Env"])
def test_one_that_needs_its_file_is_refused_when_that_was_changed(name: str, mine: Any, tmp_path: Path) -> None:
    module = mine(OBJECTS)
    thing = getattr(module, name)
    assert source_of(thing, "reward") is None
    assert loaded(by_file(thing), tmp_path) is thing
    found = by_file(thing)
    (tmp_path / "mine_here.py").write_text(OBJECTS + "\n")
    with pytest.raises(ImportError, match=r"mine_here.py, which defines \w+, was changed since the run was given it"):
        loaded(found, tmp_path)


CHANGES = {
    "a constant": ("score", "module.W = 2.0"),
    "a constant that a helper uses": ("indirect", "module.W = 2.0"),
    "a default": ("default", "module.default.__defaults__ = (2.0,)"),
    "code": ("score", "module.score.__code__ = (lambda response, row: 3.0).__code__"),
    "an attribute": ("Env", "module.Env.K = 2.0"),
    "another attribute": ("Env", "module.Env.L = 2.0"),
    "a method": ("Env", "module.Env.value = module.make()"),
    "the file": ("score", "file.write_text(file.read_text().replace('return W', 'return W + 1'))"),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.values(), ids=CHANGES.keys())
def test_one_that_is_not_as_its_file_defines_it_stays_in_memory(
    name: str, change: str, mine: Any, tmp_path: Path
) -> None:
    module = mine(OBJECTS)
    exec(change, {"module": module, "file": tmp_path / "mine_here.py"})
    thing = getattr(module, name)
    assert source_of(thing, "reward") is None
    assert by_file(thing) is None


def test_of_a_package_and_of_what_is_installed(mine: Any, tmp_path: Path) -> None:
    mine("", "package_here.__init__")
    mine("def one(): return 1.0\n", "package_here.other")
    inner = mine("def score(response, row):\n    from .other import one\n    return one()\n", "package_here.inner")
    assert source_of(inner.score, "reward") is None
    assert loaded(by_file(inner.score), tmp_path)("", {}) == 1.0
    assert source_of(re.compile, "reward") is None
    assert loaded(by_file(re.compile), tmp_path) is re.compile


def test_what_no_file_defines_at_its_top_level(mine: Any) -> None:
    def local() -> None: ...

    cached: Any = lru_cache(by_file)
    things = (partial(re.compile), cell("def f(): return 1.0")["f"], local, cached, mine(OBJECTS).made, len)
    assert [by_file(thing) for thing in things] == [None] * len(things)
