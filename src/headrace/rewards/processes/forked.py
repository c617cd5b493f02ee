"""Scores each call in a process of its own, which is gone afterwards with all that it did."""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any, Literal

from headrace.experience.failures import FailureKind, describe
from headrace.rewards.outcome import Verdict
from headrace.rewards.processes.prepared import Scorer
from headrace.sandbox import linux
from headrace.sandbox.child_watch import Ending, Over, Stream, now, watch
from headrace.sandbox.descendants import kill_descendants
from headrace.sandbox.huge_pages import collapse
from headrace.sandbox.limits import Limits, filter_calls
from headrace.sandbox.meters import MemoryMeter
from headrace.sandbox.places import HIDDEN
from headrace.sandbox.remove import remove

_MOST_VERDICT = 1 << 16
_MOST_OUTPUT = 1 << 16
"""What one call may print; the rest is thrown away."""
_NO_VERDICT = 70
_SIGNS_OF_WALLS = (
    "Network is unreachable",
    "name resolution",
    "Read-only file system",
    "No space left on device",
    "Operation not permitted",
    "MemoryError",
    *(f"No such file or directory: '{place}/" for place in HIDDEN),
)
_HINT = "[in the sandbox; see reward.sandbox and reward.trusted] "


def hint_of(words: str) -> str:
    """What to put before the words of an error that the sandbox may have caused; else nothing."""
    if "No module named" in words:
        for folder in sys.path:
            if folder.startswith(tuple(f"{place}/" for place in HIDDEN)) and not os.path.exists(folder):
                return f"[in the sandbox, which hides {folder}: name it in reward.sandbox.read] "
    return _HINT if any(sign in words for sign in _SIGNS_OF_WALLS) else ""


def prepare() -> None:
    """Make this process ready to be forked: all that calls share is loaded."""
    if linux.IS_LINUX:
        linux.adopt_orphans()
        linux.hide_memory()
        linux.keep_rights_when_becoming()
    filter_calls(is_program=False)
    gc.collect()
    gc.freeze()  # a collection in a fork would write to every object
    if linux.IS_LINUX:
        collapse()


class ForkedScorer:
    """A scorer whose calls share nothing: each runs in a fork of this process, under limits.

    This process adopts orphans, and does nothing else at the time. What a call costs beyond the function is mostly the
    fork, by the pages that parent and child write to afterwards: so what can be done once is done before, by
    `prepare`, and modules that do something at each fork (threading, random, and with them subprocess and tempfile) are
    not imported.
    """

    def __init__(
        self,
        scorer: Scorer,
        limits: Limits,
        timeout_s: float,
        folder: str,
        closes: list[int],
        network: Literal["host", "this"],
    ) -> None:
        """`folder` is an empty one, for working folders; the descriptors `closes` are not for the fork. `network` is
        that of this process, or the host's."""
        self._scorer = scorer
        self._limits = limits
        self._timeout_s = timeout_s
        self._folder = folder
        self._closes = closes
        self._network = network
        self._calls = 0
        """So many so far: each has a folder of its own name."""

    def score(self, arguments: list[Any]) -> Verdict:
        """See `Scorer.score`."""
        self._calls += 1
        work = os.path.join(self._folder, str(self._calls))
        os.mkdir(work, 0o700)
        self._limits.hand_over(work)
        telling, told = os.pipe()
        printing, printed = os.pipe()
        try:
            until = now() + self._timeout_s
            child = os.fork()
            if child == 0:
                self._be_the_fork(arguments, work, told, printed)
            os.close(told)
            os.close(printed)
            verdict = Stream(telling, _MOST_VERDICT, ends_at_most=True)
            output = Stream(printing, _MOST_OUTPUT, ends_at_most=False)
            memory = MemoryMeter(self._limits.memory_bytes, self._network) if linux.IS_LINUX else None
            ending = watch(child, (verdict, output), until, memory=memory)
            self._log(output.data[:_MOST_OUTPUT])
            return self._verdict(ending, bytes(verdict.data))
        finally:
            kill_descendants()
            os.close(telling)
            os.close(printing)
            for name in os.listdir(self._folder):
                remove(os.path.join(self._folder, name))

    def _be_the_fork(self, arguments: list[Any], work: str, told: int, printed: int) -> None:
        try:
            for descriptor in self._closes:
                os.close(descriptor)
            os.setsid()
            os.chdir(work)
            os.dup2(printed, 1)
            os.dup2(printed, 2)
            self._limits.apply(reads_all=True, is_filtered=True)
            if linux.IS_LINUX:
                linux.die_with_parent()
                linux.show_memory()
            value, failure = self._scorer.score(arguments)
            if isinstance(failure, str):
                failure = failure.encode(errors="replace").decode()
            # As JSON writes a finite number too, which is quicker to say.
            words = f"[{value!r}, null]" if type(value) is float else json.dumps([value, failure])
            data = memoryview(words.encode())
            while data:
                data = data[os.write(told, data) :]
            sys.stdout.flush()
        except BaseException as error:
            os.write(2, f"no verdict: {error}\n".encode(errors="replace"))
            os._exit(_NO_VERDICT)
        os._exit(0)

    def _verdict(self, ending: Ending, data: bytes) -> Verdict:
        match ending.over:
            case Over.OUTPUT:
                words = "the process broke the protocol: it wrote a huge verdict"
                return None, describe(FailureKind.REWARD_DIED, words)
            case Over.MEMORY:
                most = f"{self._limits.memory_bytes >> 20} MiB (reward.sandbox.memory_mib)"
                return None, describe(FailureKind.REWARD_LIMIT, f"its processes had more than {most} together")
            case Over.WAIT:
                return None, describe(FailureKind.REWARD_TIMEOUT, f"took longer than {self._timeout_s:g} s")
        try:
            told = json.loads(data)
        except (ValueError, RecursionError):
            garbage = " and broke the protocol" if data else ""
            return None, describe(FailureKind.REWARD_DIED, f"the process {ending.words}{garbage}")
        match told:  # by a process that may have been taken over: nothing is believed but its own reward or failure
            case [float() | list() | dict(), None]:
                return told[0], None
            case [None, str(failure)]:
                kind, _, detail = failure.partition(": ")
                if kind in set(FailureKind):
                    return None, describe(FailureKind(kind), hint_of(detail) + detail)
        return None, describe(FailureKind.REWARD_DIED, "the process broke the protocol: that is no verdict")

    @staticmethod
    def _log(output: bytes | bytearray) -> None:
        while output:
            output = output[os.write(1, output) :]
