"""The child process that scores. It starts fast: neither torch nor the run's config package is imported.

Run as `python -P -m headrace.rollout.rewards.worker FD LIFELINE`, where FD is a socket to the run, and LIFELINE a
pipe that the run holds open. The first message sets it up: [function, answer_column, tolerance]; the answer is
["ready"] or ["error", text]. Then each [id, response, row, prompt] is answered by [id, reward, failure], in order,
before the next begins. Standard output and error belong to the user's code.
"""

from __future__ import annotations

import inspect
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from headrace.rollout.failures import FailureKind, describe, describe_exception
from headrace.rollout.plugins import accepts_keyword, load_function
from headrace.rollout.rewards.builtin import BUILTIN_REWARDS, builtin_reward
from headrace.rollout.rewards.frames import FrameBuffer, encode_frame
from headrace.rollout.rewards.lifeline import end_with
from headrace.rollout.rewards.outcome import NotARewardError, as_reward

if TYPE_CHECKING:
    import asyncio

_MAX_BYTES = 2**31
"""The run is trusted: rows can be long."""


def main() -> None:
    end_with(int(sys.argv[2]))
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    messages = _messages(channel)
    try:
        scorer = Scorer(*next(messages))
    except Exception as error:
        channel.sendall(encode_frame(["error", str(error)]))
        return
    channel.sendall(encode_frame(["ready"]))
    for call, response, row, prompt in messages:
        channel.sendall(encode_frame([call, *scorer.score(response, row, prompt)]))
    sys.stdout.flush()
    os._exit(0)  # threads that the user's code left behind do not hold the process


class Scorer:
    """One reward function, made ready to be called."""

    def __init__(self, function: str, answer_column: str, tolerance: float) -> None:
        """Raises ConfigError, ValueError or ImportError, with a message for the user."""
        self._runner: asyncio.Runner | None = None
        self._passes_prompt = False
        if function in BUILTIN_REWARDS:
            self._reward = _builtin(function, answer_column, tolerance)
        elif ":" in function:
            self._reward = load_function(function, "reward.function", ("response", "row"), ("prompt",))
            self._passes_prompt = accepts_keyword(self._reward, "prompt")
        else:
            raise ValueError(
                f"reward.function is {function!r}; write {', '.join(BUILTIN_REWARDS)}, path.py:function or "
                "module:function"
            )

    def score(self, response: str, row: dict[str, Any], prompt: Any) -> tuple[float | None, str | None]:
        """(reward, None) or (None, failure)."""
        keywords = {"prompt": prompt} if self._passes_prompt else {}
        try:
            value = self._reward(response, row, **keywords)
            if inspect.isawaitable(value):
                value = self._result_of(value)
            return as_reward(value), None
        except NotARewardError as error:
            return None, describe(FailureKind.REWARD_NAN, str(error))
        except BaseException as error:  # sys.exit() in a reward is a failed reward too
            return None, describe(FailureKind.REWARD_RAISED, describe_exception(error))

    def _result_of(self, awaitable: Awaitable[Any]) -> Any:
        import asyncio  # costs a third of the start, and most rewards are plain functions

        async def result() -> Any:
            return await awaitable

        if self._runner is None:  # one event loop for all calls: clients that the user keeps are bound to it
            self._runner = asyncio.Runner()
        return self._runner.run(result())


def _builtin(name: str, answer_column: str, tolerance: float) -> Callable[..., Any]:
    try:
        return builtin_reward(name, answer_column=answer_column, tolerance=tolerance)
    except ImportError as error:
        raise ImportError(
            f"reward.function is {name!r}, which needs an extra ({error}); pip install 'headrace[{name}]'"
        ) from error


def _messages(channel: socket.socket) -> Iterator[list[Any]]:
    buffer = FrameBuffer(_MAX_BYTES)
    while data := channel.recv(1 << 16):
        yield from buffer.feed(data)


if __name__ == "__main__":
    main()
