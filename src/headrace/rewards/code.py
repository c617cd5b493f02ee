"""The reward `code`: the share of tests that a program passes.

The program runs in a sandbox; what it should give stays in this process, which compares. So the program can say what
it likes: it is right only if it says what the test wants. And whatever it does to itself, limits included, is a wrong
answer: only what is not its doing fails the sample.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.experience.failures import FailureKind
from headrace.rewards.outcome import FailedReward
from headrace.sandbox.child_watch import Over, now
from headrace.sandbox.execute import Executor, Ran

_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_SPARE_BYTES = 1 << 16


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
    def __init__(
        self,
        executor: Executor,
        timeout_s: float,
        tolerance: float,
        score: Literal["all", "share"],
        *,
        patience: float,
        tries: int,
    ) -> None:
        """`timeout_s` is of the program's own time, for all tests together, and `patience` times as much may pass on a
        slow host; then the test at hand is tried again, in `tries` tries for all tests. Numbers that are returned may
        differ by `tolerance`."""
        self._executor = executor
        self._timeout_s = timeout_s
        self._tolerance = tolerance
        self._all = score == "all"
        self._patience_s = patience * timeout_s
        self._tries = tries

    def __call__(self, response: str, answer: object) -> float:
        """Raises FailedReward if the host was too slow, or has no sandbox, and ValueError if the tests are none."""
        tests = read_tests(answer)
        code = program_of(response)
        time = _Time(len(tests), self._timeout_s, now() + self._patience_s, self._tries)
        passed = 0
        for test in tests:
            if time.left_s > 0 and self._passes(code, test, time):
                passed += 1
            elif self._all:
                return 0.0
        return passed / len(tests)

    def _passes(self, code: str, test: CodeTest, time: _Time) -> bool:
        ran = self._run(code, test, time)
        if ran.ending.code != 0 or ran.ending.over is not None:
            return False
        if test.output is not None:
            return _lines(ran.output.decode(errors="replace")) == _lines(test.output)
        match ran.reports[-1]:
            case ["returned", value]:
                return equal(value, test.returns, self._tolerance)
        return False

    def _run(self, code: str, test: CodeTest, time: _Time) -> Ran:
        while True:
            ran = self._executor.run(
                code,
                stdin=test.stdin,
                call=test.call,
                arguments=test.arguments,
                most_bytes=test.most_bytes,
                allowed_s=time.left_s,
                until=time.until,
            )
            if ran.ending.over is not Over.WAIT:
                break
            time.tries -= 1
            if time.tries == 0:
                raise FailedReward(
                    FailureKind.REWARD_TIMEOUT,
                    f"the host was too slow: in {self._patience_s:g} s the program had {ran.spent_s:.1f} s of its "
                    f"{self._timeout_s:g} s, in the last of {self._tries} tries"
                    + (
                        f"; each of its {time.tests} tests starts a sandbox: raise reward.timeout_s"
                        if time.tests > 1
                        else ""
                    ),
                )
            time.until = now() + self._patience_s
        if not ran.reports:
            raise FailedReward(FailureKind.REWARD_DIED, f"the sandbox {ran.ending.words}: {ran.errors}")
        time.left_s -= ran.spent_s
        return ran


@dataclass(eq=False)
class _Time:
    """What is left for the tests of one response."""

    tests: int
    """How many there are."""
    left_s: float
    """Of the program's own time."""
    until: float
    """To which the host is waited for, by `now`."""
    tries: int


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
