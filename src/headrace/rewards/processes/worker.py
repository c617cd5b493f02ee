"""The child process that scores. It starts fast: neither torch nor the run's config package is imported.

Run by a guardian as `python -P -m headrace.rewards.processes.worker FD`, where FD is a socket to the run. The first
message sets it up: [setup], an object as `RewardPool` makes it; the answer is ["ready"] or ["error", text]. Then each
[id, place, arguments] is answered by [id, reward, failure], in order, before the next begins; `place` says which of the
scorers of the setup is asked. Standard output and error belong to the user's code.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headrace.plugins.named import NOTHING_GIVEN, Given
from headrace.rewards.processes.json_frames import FrameBuffer, encode_frame
from headrace.rewards.processes.pickled import unpacked
from headrace.rewards.processes.prepared import FunctionScorer, GroupScorer, Scorer, scorer_of
from headrace.sandbox import linux
from headrace.sandbox.remove import remove

_MAX_BYTES = 2**31
"""The run is trusted: rows can be long."""


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    messages = _messages(channel)
    (setup,) = next(messages)
    try:
        scorers = _load(setup, [channel.fileno()])
    except Exception as error:
        from headrace.rewards.processes.forked import hint_of

        hint = hint_of(str(error)) if setup["forks"] else ""
        channel.sendall(encode_frame(["error", f"{hint}{error}"]))
        return
    channel.sendall(encode_frame(["ready"]))
    for call, place, arguments in messages:
        channel.sendall(encode_frame([call, *scorers[place].score(arguments)]))
    sys.stdout.flush()
    os._exit(0)  # threads that the user's code left behind do not hold the process


def _load(setup: dict[str, Any], closes: list[int]) -> list[Scorer]:
    """The scorers of `setup`, in order. Raises ConfigError, ValueError or ImportError, with a message for the user."""
    if not setup["forks"]:
        return _load_all(setup)
    with _temporary_files(setup["folder"]):
        scorers = _load_all(setup)
    return _forked(setup, scorers, closes)


def _load_all(setup: dict[str, Any]) -> list[Scorer]:
    given = unpacked(setup["given"]) if setup["given"] is not None else NOTHING_GIVEN
    scorers = [_load_term(setup, term, given) for term in setup["terms"]]
    if setup["group"] is not None:
        scorers.append(GroupScorer(setup["group"], given))
    return scorers


@contextmanager
def _temporary_files(folder: str) -> Iterator[None]:
    """A place for them in `folder` while functions load, as torch wants one when it is imported: in the sandbox there
    is no other. It is empty again afterwards, since what calls can write to they must not share."""
    place = os.path.join(folder, "loading")
    os.mkdir(place, 0o700)
    before, os.environ["TMPDIR"] = os.environ.get("TMPDIR"), place
    try:
        yield
    finally:
        os.environ.pop("TMPDIR", None)
        if before is not None:
            os.environ["TMPDIR"] = before
        if "tempfile" in sys.modules:
            sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # a call's is its working folder
        remove(place)


def _load_term(setup: dict[str, Any], term: dict[str, Any], given: Given) -> Scorer:
    if term["function"] != "code":
        return scorer_of(term, columns=setup.get("columns"), given=given)
    from headrace.rewards.code import CodeReward
    from headrace.sandbox.execute import Executor
    from headrace.sandbox.limits import Limits
    from headrace.sandbox.walls import Walls

    if linux.IS_LINUX:
        linux.adopt_orphans()
        linux.hide_memory()
    executor = Executor(Walls(**setup["walls"]), Limits(**setup["limits"]), setup["folder"])
    judge = CodeReward(executor, setup["timeout_s"], term["tolerance"], term["code_score"], **setup["host"])
    return FunctionScorer(term, judge)


def _forked(setup: dict[str, Any], scorers: list[Scorer], closes: list[int]) -> list[Scorer]:
    from headrace.rewards.processes.forked import ForkedScorer, prepare
    from headrace.sandbox.limits import Limits, address_space

    os.environ.pop("PYTHONPATH", None)  # it was for loading
    prepare()
    limits = Limits(**setup["limits"])
    used = address_space()
    if used > limits.memory_bytes:
        raise ValueError(
            f"reward.sandbox.memory_mib is {limits.memory_bytes >> 20}, but once the reward is loaded "
            f"{used >> 20} MiB are mapped already; raise it"
        )
    timeout_s, folder, network = setup["timeout_s"], setup["folder"], setup["network"]
    return [ForkedScorer(one, limits, timeout_s, folder, closes, network) for one in scorers]


def _messages(channel: socket.socket) -> Iterator[list[Any]]:
    buffer = FrameBuffer(_MAX_BYTES)
    while data := channel.recv(1 << 16):
        yield from buffer.feed(data)


if __name__ == "__main__":
    main()
