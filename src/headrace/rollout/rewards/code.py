"""The reward `code`: the share of tests that a program passes.

The program runs in a sandbox; what it should give stays in this process, which compares. So the program can say what
it likes: it is right only if it says what the test wants.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.rollout.failures import FailureKind
from headrace.rollout.rewards.outcome import FailedReward
from headrace.rollout.sandbox.execute import Executor, Ran
from headrace.rollout.sandbox.watch import now

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_SPARE_BYTES = 1 << 16
_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class CodeTest:
    """Either a whole program, from standard input to standard output, or one call of a function."""

    stdin: str
    output: str | None
    """Standard output, white space at the ends of lines and at the end left out; None of a call."""
    call: str | None
    arguments: tuple[Any, ...]
    returns: Any

    @property
    def most_bytes(self) -> int:
        """A program that writes more is wrong in any case."""
        wanted = self.output if self.output is not None else json.dumps(self.returns)
        return 2 * len(wanted.encode(errors="surrogatepass")) + _SPARE_BYTES


def read_tests(answer: object) -> tuple[CodeTest, ...]:
    """From a list of `{input, output}` or `{call, arguments, returns}`, or its JSON text. Raises ValueError."""
    listed = json.loads(answer) if isinstance(answer, str) else answer
    if not isinstance(listed, list) or not listed:
        raise ValueError(
            "the tests are no list, or an empty one; give [{input, output}] or [{call, arguments, returns}]"
        )
    return tuple(_read_test(test) for test in listed)


def _read_test(test: object) -> CodeTest:
    match test:
        case {"output": str(output), **others} if others.keys() <= {"input"}:
            stdin = others.get("input", "")
            if isinstance(stdin, str):
                return CodeTest(stdin, output, None, (), None)
        case {"call": str(call), "returns": returns, **others} if others.keys() <= {"arguments"}:
            arguments = others.get("arguments", [])
            if isinstance(arguments, list):
                return CodeTest("", None, call, tuple(arguments), returns)
    raise ValueError(f"{str(test)[:80]} is no test; give {{input, output}} (texts) or {{call, arguments, returns}}")


class CodeReward:
    def __init__(self, executor: Executor, timeout_s: float, tolerance: float, score: Literal["all", "share"]) -> None:
        """`timeout_s` is for all tests together; numbers that are returned may differ by `tolerance`."""
        self._executor = executor
        self._timeout_s = timeout_s
        self._tolerance = tolerance
        self._all = score == "all"

    def __call__(self, response: str, answer: object) -> float:
        """Raises FailedReward if the program met a limit, and ValueError if the tests are none."""
        tests = read_tests(answer)
        code = program_of(response)
        until = now() + self._timeout_s
        passed = 0
        for test in tests:
            if self._passes(code, test, until):
                passed += 1
            elif self._all:
                return 0.0
        return passed / len(tests)

    def _passes(self, code: str, test: CodeTest, until: float) -> bool:
        ran = self._executor.run(
            code, stdin=test.stdin, call=test.call, arguments=test.arguments, most_bytes=test.most_bytes, until=until
        )
        self._refuse_failures(ran, test)
        if ran.ending.code != 0:
            return False
        if test.output is not None:
            return _lines(ran.output.decode(errors="replace")) == _lines(test.output)
        match ran.reports[-1]:
            case ["returned", value]:
                return equal(value, test.returns, self._tolerance)
        return False

    def _refuse_failures(self, ran: Ran, test: CodeTest) -> None:
        if ran.ending.overflowed:
            raise FailedReward(FailureKind.REWARD_LIMIT, f"the program wrote more than {test.most_bytes} bytes")
        if ran.ending.code is None:
            raise FailedReward(FailureKind.REWARD_TIMEOUT, f"took longer than {self._timeout_s:g} s")
        if not ran.reports:
            raise FailedReward(FailureKind.REWARD_DIED, f"the sandbox {ran.ending.words}: {ran.errors}")
        match ran.reports[-1]:
            case ["limit", str(words)]:
                raise FailedReward(FailureKind.REWARD_LIMIT, f"the sandbox stopped the program: {words}")
        if ran.ending.code < 0 or ran.ending.code >= _SIGNALLED:
            raise FailedReward(FailureKind.REWARD_DIED, f"the program {ran.ending.words}")


def program_of(response: str) -> str:
    """The last fenced block of Python, or all of the response."""
    blocks: list[str] = _FENCED.findall(response)
    return blocks[-1] if blocks else response


def equal(given: Any, wanted: Any, tolerance: float) -> bool:
    """Whether two JSON values are the same; numbers within an absolute or relative `tolerance`."""
    if isinstance(given, bool) or isinstance(wanted, bool):
        return given is wanted
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        return given == wanted or _are_close(given, wanted, tolerance)
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(equal(given[key], wanted[key], tolerance) for key in wanted)
    if isinstance(given, list) and isinstance(wanted, list):
        return len(given) == len(wanted) and _all_equal(given, wanted, tolerance)
    return type(given) is type(wanted) and given == wanted


def _are_close(given: float, wanted: float, tolerance: float) -> bool:
    """Whole numbers are only close to numbers with a fraction."""
    if isinstance(given, int) and isinstance(wanted, int):
        return False
    try:
        return math.isclose(given, wanted, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # a whole number beyond what a float holds
        return False


def _all_equal(given: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> bool:
    return all(equal(one, other, tolerance) for one, other in zip(given, wanted, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
