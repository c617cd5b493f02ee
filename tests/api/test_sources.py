"""Which source is one of its own, and that what is written defines the same."""

import linecache
from pathlib import Path
from typing import Any

import pytest
from api_cells import cell, written

from headrace.api.given.sources import source_of

GOOD = {
    "plain": "def score(response, row): return len(response) / 4",
    "module": "import math\ndef score(response, row): return math.sqrt(len(response)) - 1",
    "module by another name": "import math as m\ndef score(response, row): return m.sqrt(len(response)) - 1",
    "imported": "from math import sqrt\ndef score(response, row): return sqrt(len(response)) - 1",
    "imported class": "from fractions import Fraction as F\ndef score(response, row): return float(F(len(row) + 4, 4))",
    "imported class in C": "from itertools import repeat\ndef score(response, row): return sum(repeat(0.5, 2))",
    "constant": "BEST = {'a': [1, 2.5]}\ndef score(response, row): return BEST['a'][0] * 1.0",
    "pattern": "import re\nD = re.compile('[A-D]', re.I)\ndef score(response, row): return len(D.findall(response))/4",
    "helper": "def half(n): return n / 4\ndef score(response, row): return half(len(response))",
    "recursive": "def score(response, row): return 0.0 if not response else 0.25 + score(response[1:], row)",
    "two that call each other": (
        "def a(n): return b(n - 1) + 1 if n else 0\ndef b(n): return a(n)\ndef score(response, row): return a(4) / 4"
    ),
    "default": "FOUR = 4\ndef score(response, row, by=FOUR): return len(response) / by",
    "lambda": "score = lambda response, row: len(response) / 4",
    "two lambdas on a line": "other, score = (lambda r, row: 0.0), (lambda response, row: len(response) / 4)",
    "nested function": "def score(response, row):\n    def inner(n): return n / 4\n    return inner(len(response))",
    "comprehension": "ONE = 1\ndef score(response, row): return sum(ONE for _ in response) / 4",
    "annotated": "from pathlib import Path\ndef score(response: str, row: dict[str, Path]) -> float: return 1.0",
    "decorated class": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    n: int\n    def half(self): return self.n / 4\n"
        "def score(response, row): return P(len(response)).half()"
    ),
    "indented": "if True:\n    def score(response, row):\n        return 1.0",
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_a_function_with_a_source_of_its_own_is_written_and_does_the_same(text: str, tmp_path: Path) -> None:
    score = cell(text)["score"]
    assert written(score, tmp_path)("abcd", {}) == score("abcd", {}) == 1.0


BAD = {
    "closure": "def make():\n    n = []\n    def score(response, row): return len(n)\n    return score\nscore = make()",
    "object": "from threading import Lock\nlock = Lock()\ndef score(response, row): return lock.locked()",
    "list of objects": "seen = [object()]\ndef score(response, row): return len(seen)",
    "helper with an object": "o = object()\ndef f(): return o\ndef score(response, row): return f()",
    "unknown name": "def score(response, row): return nowhere",
    "cached": "from functools import cache\n@cache\ndef score(response, row): return 1.0",
    "wrapped": (
        "from functools import wraps\ndef twice(f):\n    @wraps(f)\n    def g(*a): return 2 * f(*a)\n    return g\n"
        "@twice\ndef score(response, row): return 1.0"
    ),
    "with attributes": "def score(response, row): return score.calls\nscore.calls = 0",
    "method": "class A:\n    def score(self, response, row): return 1.0\nscore = A().score",
    "callable object": "class A:\n    def __call__(self, response, row): return 1.0\nscore = A()",
    "infinite": "TOP = float('inf')\ndef score(response, row): return TOP",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_needs_more_than_its_source_has_none(text: str) -> None:
    assert source_of(cell(text)["score"], "reward") is None


def test_a_cell_that_was_changed_since_is_not_the_source() -> None:
    names = cell("def score(response, row): return 1.0")
    file = names["score"].__code__.co_filename
    linecache.cache[file] = (1, None, ["def score(response, row): return 2.0\n"], file)
    assert source_of(names["score"], "reward") is None
    del linecache.cache[file]
    assert source_of(names["score"], "reward") is None


def test_a_class_is_written_with_its_bases_and_constants(tmp_path: Path) -> None:
    names = cell(
        """
        from collections import OrderedDict
        START = 3
        class Base(OrderedDict):
            def begin(self): return START
        class Env(Base):
            limit: int = 4
            twice = 2 * limit
            def __init__(self):
                super().__init__()
            @staticmethod
            def help(): return 1
            @property
            def whole(self): return self.begin() + self.help() + self.twice
        """
    )
    made = written(names["Env"], tmp_path, "environment")
    assert made.__name__ == "Env"
    assert made().whole == names["Env"]().whole == 12


def test_modules_that_are_not_installed_are_found_from_where_they_are(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "words_beside.py").write_text("def known(text): return float(text == 'abcd')\n")
    monkeypatch.syspath_prepend(str(tmp_path / "beside"))
    score = cell("from words_beside import known\ndef score(response, row): return known(response)")["score"]
    found = source_of(score, "reward")
    assert found is not None
    assert f"sys.path.append('{tmp_path}/beside')" in found[0]
