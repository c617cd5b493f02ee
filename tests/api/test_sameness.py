"""What is written of a callable is the callable that was given, or nothing is."""

import textwrap
from pathlib import Path

import pytest
from api_cells import cell, written

from headrace.api.given.sources import source_of

OTHER = {
    "lambdas of a loop": "fs = []\nfor w in (1.0, 2.0): fs.append(lambda response, row, w=w: w)\nscore = fs[0]",
    "functions of a loop": """
        fs = []
        for w in (1.0, 2.0):
            def g(response, row, w=w): return w
            fs.append(g)
        score = fs[0]
    """,
    "keyword-only defaults of a loop": """
        fs = []
        for w in (1.0, 2.0): fs.append(lambda response, row, *, w=w: w)
        score = fs[0]
    """,
    "a name that was changed": "W = 3.0\ndef score(response, row, k=W): return k\nW = 30.0",
    "a name that was changed, by keyword": "W = 3.0\ndef score(response, row, *, k=W): return k\nW = 30.0",
    "a name that became equal": "W = 1\ndef score(response, row, k=W): return k\nW = True",
    "defaults that were changed": "def score(response, row, k=1.0): return k\nscore.__defaults__ = (2.0,)",
    "keywords that were changed": "def score(response, row, *, k=1.0): return k\nscore.__kwdefaults__['k'] = 2.0",
    "a default that was filled": "def score(response, row, seen=[]): return len(seen)\nscore.__defaults__[0].append(1)",
    "a default that was called for": "import os\ndef score(response, row, k=os.getpid()): return k",
    "a default that is read": "def score(response, row, k=float('3')): return k",
    "a default by its own name": "score = 2.0\ndef score(response, row, k=score): return k",
    "a lambda by the name that it gets": "reward = 3.0\nscore = lambda response, row: reward",
    "a class attribute that was changed": """
        class T:
            K = 1.0
            def value(self): return self.K
        T.K = 9.0
        def score(response, row): return T().value()
    """,
    "a class attribute that was added": """
        class T:
            def value(self): return getattr(self, 'K', 1.0)
        T.K = 9.0
        score = T
    """,
    "a class attribute that was removed": """
        class T:
            K = 1.0
            def value(self): return getattr(self, 'K', 2.0)
        del T.K
        score = T
    """,
    "a class attribute of a name that was changed": """
        W = 1.0
        class T:
            K = W
            def value(self): return self.K
        W = 2.0
        score = T
    """,
    "a method that was replaced": """
        class T:
            def value(self): return 1.0
            def other(self): return 3.0
        T.value = lambda self: 2.0
        score = T
    """,
    "methods that were swapped": """
        class T:
            def one(self): return 1.0
            def two(self): return 2.0
        T.one, T.two = T.two, T.one
        score = T
    """,
    "a method that became static": """
        class T:
            def value(this=1.0): return this
        T.value = staticmethod(T.value)
        score = T
    """,
    "a method's default": """
        W = 1.0
        class T:
            def value(self, k=W): return k
        W = 2.0
        score = T
    """,
    "a base that was replaced": """
        class A:
            def value(self): return 1.0
        class B:
            def value(self): return 2.0
        class T(A):
            def own(self): return self.value()
        T.__bases__ = (B,)
        score = T
    """,
    "a class attribute that is computed": """
        import os
        class T:
            K = os.getpid()
            def value(self): return self.K
        score = T
    """,
    "a class of conditions": """
        class T:
            if True:
                K = 1.0
            def value(self): return self.K
        score = T
    """,
    "what a decorator was given": """
        kept = []
        def keep(f):
            kept.append(f)
            return lambda response, row: 2.0
        @keep
        def score(response, row): return 1.0
        score = kept[0]
    """,
    "a name that is not of its code": "def score(response, row): return 1.0\nscore.__name__ = 'other'",
    "code that was replaced": """
        other = lambda response, row: 2.0
        def score(response, row): return 1.0
        score.__code__ = other.__code__
    """,
    "names of two places": """
        exec("W = 1.0\\ndef inner(): return W", other := {"__name__": "__main__"})
        inner = other["inner"]
        def score(response, row): return inner()
    """,
}


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER.keys())
def test_what_its_source_would_not_give_afresh_has_none(text: str) -> None:
    assert source_of(cell(text)["score"], "reward") is None


GIVEN = {
    "the first of two lambdas": ("score, b = (lambda response, row, k=1.0: k), (lambda response, row, k=2.0: k)", 1.0),
    "the second of two lambdas": ("a, score = (lambda response, row, k=1.0: k), (lambda response, row, k=2.0: k)", 2.0),
    "the second by a constant": ("a, score = (lambda response, row: 1.0), (lambda response, row: 2.0)", 2.0),
    "the second by a keyword": ("a, score = (lambda r, row, *, k=1.0: k), (lambda r, row, *, k=-2.5: k)", -2.5),
    "the second by its kind of arguments": ("a, score = (lambda *x: len(x)), (lambda *x, **y: len(y))", 0),
    "a lambda in a lambda": ("mk = lambda weight=1.0: (lambda response, row: 7.0)\nscore = mk()", 7.0),
    "a lambda in a lambda's call": (
        "def timed(f): return f()\nscore = timed(lambda: dict(reward=lambda response, row: 5.0)['reward'])",
        5.0,
    ),
    "a lambda in a lambda of the same arguments": (
        "score = (lambda response, row: (lambda response, row: 5.0))(1, 2)",
        5.0,
    ),
    "a default of names and numbers": ("W = 2\ndef score(response, row, k=(W, -1.5), *, j=3 * W): return k[0] * j", 12),
    "a default that is a function": ("def score(response, row, by=len): return by(response)", 4),
    "a default that is a function of its own": ("def f(x): return 3\ndef score(response, row, by=f): return by(1)", 3),
    "a default that is a pattern": ("import re\ndef score(r, row, p=re.compile('[ab]')): return len(p.findall(r))", 2),
    "infinity in a module": ("import math\ndef score(r, row, k=math.pi): return k", 3.141592653589793),
}


@pytest.mark.parametrize(("text", "value"), GIVEN.values(), ids=GIVEN.keys())
def test_what_is_written_is_the_one_that_was_given(text: str, value: float, tmp_path: Path) -> None:
    score = cell(text)["score"]
    assert score("abcd", {}) == value
    assert written(score, tmp_path)("abcd", {}) == value


def test_a_class_of_all_that_can_be_told_is_written(tmp_path: Path) -> None:
    names = cell(
        textwrap.dedent(
            """
            import re
            from abc import ABC, abstractmethod
            from dataclasses import dataclass
            W = 2.0
            class Base(ABC):
                "Words."
                @abstractmethod
                def value(self): ...
            class T(Base):
                __slots__ = ("n",)
                K = W * 2
                P = re.compile("a", re.I | re.M)
                def __init__(self, n=W): self.n = n
                def __init_subclass__(cls): pass
                def value(self, by=K): return self.n * by
                @property
                def two(self): return self.n
                @two.setter
                def two(self, n): self.n = n
                @classmethod
                def of(cls, n): return cls(n)
                @staticmethod
                def one(): return 1
            @dataclass(frozen=True, order=True)
            class D:
                t: int
                k: float = 0.5
                def all(self):
                    made = T.of(3)
                    made.two = self.t
                    return made.value() + made.one() + self.k
            """
        )
    )
    made = written(names["D"], tmp_path, "environment")
    assert made(4).all() == names["D"](4).all() == 17.5
    assert made(1) < made(2)
