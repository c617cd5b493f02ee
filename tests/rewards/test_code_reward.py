"""Programs of a model, run against tests in the sandbox: right ones, wrong ones, and those that cheat or attack."""

from __future__ import annotations

from typing import Any

import pytest
from sandbox_helpers import score

from headrace.rewards.code import CodeTest, equal, program_of, read_tests
from headrace.rewards.outcome import RewardOutcome

DOUBLE = [{"input": "3\n", "output": "6\n"}, {"input": "-1", "output": "-2"}]
ADD = [{"call": "add", "arguments": [1, 2], "returns": 3}, {"call": "add", "arguments": [0.1, 0.2], "returns": 0.3}]


def test_a_program_is_judged_by_what_it_prints(tool: str) -> None:
    right = "Here:\n```python\nprint(int(input()) * 2)\n```\nDone."
    half = "print(6)"
    raises = "raise ValueError"
    broken = "print("
    exits = "import sys; print(int(input()) * 2); sys.exit(1)"
    assert score(right, half, raises, broken, exits, tests=DOUBLE, tool=tool) == [
        RewardOutcome(1.0), *[RewardOutcome(0.0)] * 4
    ]  # fmt: skip


def test_a_share_of_the_tests_can_count() -> None:
    assert score("print(6)", tests=DOUBLE, code_score="share") == [RewardOutcome(0.5)]


def test_a_function_is_judged_by_what_it_returns(tool: str) -> None:
    right = "def add(a, b):\n    print('noise')\n    return a + b"
    wrong = "def add(a, b): return 3"
    absent = "def plus(a, b): return a + b"
    unspeakable = "def add(a, b): return {1, 2}"
    assert score(right, wrong, absent, unspeakable, tests=ADD, tool=tool) == [
        RewardOutcome(1.0), *[RewardOutcome(0.0)] * 3
    ]  # fmt: skip


CHEATS = {
    "leaves": "import os; os._exit(0)",
    "is equal to all": """
class Equal:
    def __eq__(self, other): return True
def add(a, b): return Equal()
""",
    "patches the libraries": """
import builtins, json
builtins.all = lambda x: True
json.dumps = lambda x: '["returned", true]'
def add(a, b): return 0
""",
    "patches the grader": """
import sys
try:
    from headrace.rewards import code
    code.equal = lambda *a: True
except ImportError: pass
def add(a, b): return 9
""",
    "writes to every descriptor": r"""
import os
for fd in range(3, 64):
    try: os.write(fd, b'[1.0, null]\n["passed"]\n["returned", "yes"]\n')
    except OSError: pass
os._exit(0)
""",
    "looks for the answer": """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        if 'spec' in frame.f_locals: return frame.f_locals['spec'].get('returns', 0)
        frame = frame.f_back
""",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_verdict_cannot_be_forged(tool: str, cheat: str) -> None:
    outcome, honest = score(CHEATS[cheat], "def add(a, b): return a + b", tests=ADD, tool=tool)
    assert outcome == RewardOutcome(0.0)
    assert honest == RewardOutcome(1.0)


def test_programs_leave_nothing_to_each_other(tool: str) -> None:
    looks = "import os; open('left', 'a').write('x'); print(len(os.listdir('.')), len(os.environ))"
    assert score(looks, looks, tests=[{"output": "1 0"}], tool=tool) == [RewardOutcome(1.0)] * 2


def test_a_program_sees_neither_files_nor_network_nor_other_processes(tool: str, tmp_path: Any) -> None:
    if tool == "none":
        pytest.skip("needs walls")
    (tmp_path / "answers.jsonl").write_text("6")
    reads = f"print(open({str(tmp_path / 'answers.jsonl')!r}).read())"
    connects = "import socket; socket.create_connection(('10.0.0.1', 80), 1)"
    counts = "import os; print(6 if sum(name.isdigit() for name in os.listdir('/proc')) < 6 else 0)"
    outcomes = score(reads, connects, counts, tests=[{"output": "6"}], tool=tool)
    assert outcomes == [RewardOutcome(0.0), RewardOutcome(0.0), RewardOutcome(1.0)]


def test_tests_that_are_none_are_an_error_and_not_a_zero() -> None:
    for tests in ("[]", [{"in": "1"}], [{"call": "f"}], "nonsense", [{"output": 3}]):
        (outcome,) = score("print(1)", tests=tests)
        assert (outcome.failure or "").startswith("reward_raised"), tests


def test_tests_are_read_from_json_too() -> None:
    assert read_tests('[{"output": "6"}]') == (CodeTest("", "6", None, (), None),)


def test_the_last_fenced_block_is_the_program() -> None:
    assert program_of("a\n```python\nx = 1\n```\nb\n```py\ny = 2\n```") == "y = 2\n"
    assert program_of("y = 2") == "y = 2"


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        (1, 1.0, True), (True, 1, False), (0, False, False), (0.1 + 0.2, 0.3, True), (10**20, 10**20 + 1, False),
        ([1, [2]], [1, [2]], True), ([1], [1, 2], False), ({"a": 1.0}, {"a": 1}, True), ({"a": 1}, {"b": 1}, False),
        ("1", 1, False), (10**400, 0.5, False), (None, None, True), (None, 0, False),
        (float("nan"), float("nan"), False),
    ],
)  # fmt: skip
def test_when_two_values_are_the_same(given: Any, wanted: Any, same: bool) -> None:
    assert equal(given, wanted, 1e-9) is same
