"""One reward function, made ready to be called in a process that scores."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.experience.failures import FailureKind, describe
from headrace.experience.text.conversation import conversation
from headrace.plugins.named import NOTHING_GIVEN, Given, accepts_keyword, load_function
from headrace.plugins.raised import describe_exception
from headrace.rewards.builtin import BUILTIN_REWARDS, EXTRAS, answer_of, builtin_reward
from headrace.rewards.outcome import FailedReward, NotARewardError, Scored, Verdict, as_reward, as_scored
from headrace.rewards.styles import Asked, Call, trl_call, verl_call

if TYPE_CHECKING:
    import asyncio

    from headrace.rewards.code import CodeReward

T = TypeVar("T")

_GIVEN: dict[str, Call] = {
    "prompt": lambda asked: asked.prompt,
    "messages": Asked.conversation,
    "histories": Asked.histories,
}
"""What a function of the user's is given by name, if it has such parameters."""
_GIVEN_LISTS = {"prompts" if name == "prompt" else name: of_one for name, of_one in _GIVEN.items()}
"""The same of many samples."""


class Scorer(Protocol):
    def score(self, arguments: list[Any]) -> Verdict:
        """`arguments` as they stand in a call: those of `Asked`; of a batch a list of these for each sample; of a group
        responses, row, prompt, rewards, messages of each. No messages: the prompt and the response are all."""


class FunctionScorer:
    """A reward of one sample: a built-in one, or the user's, in one of the styles of `reward.style`."""

    def __init__(
        self,
        term: dict[str, Any],
        code: CodeReward | None = None,
        columns: Sequence[str] | None = None,
        given: Given = NOTHING_GIVEN,
    ) -> None:
        """`term` has the keys of a reward function in the config; `code` is given if it is the function `code`;
        `columns` of the rows, if they are known; `given`: what was given as objects.

        Raises ConfigError, ValueError or ImportError, with a message for the user.
        """
        self._lenient = term.get("style") == "verl"
        self._one: Callable[[Any], Any] | None = None
        if term.get("style") == "trl":
            self._call, self._one = trl_call(term["function"], columns, given)
        elif term.get("style") == "verl":
            self._call = verl_call(term["function"], term["answer_column"], term["answer"], given)
        else:
            self._call = self._own_call(term, code, given)
        self._await = Awaiter()

    def score(self, arguments: list[Any]) -> Verdict:
        """See `Scorer.score`."""
        asked = Asked(*arguments)

        def judge() -> float | Scored:
            value = self._await(self._call(asked))
            if self._one is None:
                return as_scored(value, lenient=self._lenient)
            one = self._one(value)
            return {} if one is None else as_reward(one)

        return verdict(judge)

    def _own_call(self, term: dict[str, Any], code: CodeReward | None, objects: Given) -> Call:
        """Of `f(response, row)`, perhaps with some of `_GIVEN`."""
        function, keywords = self._load(term, code, objects)

        def call(asked: Asked) -> Any:
            return function(asked.response, asked.row, **{name: _GIVEN[name](asked) for name in keywords})

        return call

    def _load(
        self, term: dict[str, Any], code: CodeReward | None, given: Given
    ) -> tuple[Callable[..., Any], list[str]]:
        """The function, and which of `_GIVEN` it takes."""
        function, column, answer = term["function"], term["answer_column"], term["answer"]
        if code is not None:
            judge = code
            return lambda response, row: judge(response, answer_of(row, column) if answer is None else answer), []
        if function in BUILTIN_REWARDS:
            try:
                return builtin_reward(function, answer_column=column, tolerance=term["tolerance"], answer=answer), []
            except ImportError as error:
                raise ImportError(
                    f"reward.function is {function!r}, which needs an extra ({error}); pip install "
                    f"'headrace[{EXTRAS[function]}]'"
                ) from error
        if ":" not in function:
            raise ValueError(
                f"reward.function is {function!r}; write {', '.join(BUILTIN_REWARDS)}, code, remote, judge, "
                "path.py:function or module:function"
            )
        arguments = ("response", "row")
        loaded = load_function(function, "reward.function", arguments, tuple(_GIVEN), awaited=True, given=given)
        return loaded, [name for name in _GIVEN if accepts_keyword(loaded, name)]


class BatchScorer:
    """The user's `f(responses, rows)`, perhaps with `prompts`, `messages`, `histories`: lists, with an item for each
    sample."""

    def __init__(self, function: str, given: Given = NOTHING_GIVEN) -> None:
        """Raises ConfigError."""
        arguments, optional = ("responses", "rows"), tuple(_GIVEN_LISTS)
        self._reward = load_function(function, "reward.function", arguments, optional, awaited=True, given=given)
        self._keywords = [name for name in optional if accepts_keyword(self._reward, name)]
        self._await = Awaiter()

    def score(self, arguments: list[Any]) -> Verdict:
        """See `Scorer.score`. Of all samples a reward, as of one, or one failure."""
        asked = [Asked(*each) for each in arguments]
        keywords = {name: list(map(_GIVEN_LISTS[name], asked)) for name in self._keywords}
        responses, rows = [each.response for each in asked], [each.row for each in asked]
        return verdict(lambda: _listed(self._await(self._reward(responses, rows, **keywords)), len(asked), as_scored))


class GroupScorer:
    """The user's `f(responses, row)`, perhaps with `prompt`, `rewards` and `messages`: a reward for each sample of a
    group."""

    def __init__(self, function: str, given: Given = NOTHING_GIVEN) -> None:
        """Raises ConfigError."""
        optional = ("prompt", "rewards", "messages")
        arguments = ("responses", "row")
        self._reward = load_function(function, "reward.group", arguments, optional, awaited=True, given=given)
        self._keywords = [name for name in optional if accepts_keyword(self._reward, name)]
        self._await = Awaiter()

    def score(self, arguments: list[Any]) -> Verdict:
        """See `Scorer.score`."""
        responses, row, prompt, rewards, messages = arguments
        conversations = [conversation(prompt, *each) for each in zip(responses, messages, strict=True)]
        given = {"prompt": prompt, "rewards": rewards, "messages": conversations}
        keywords = {name: given[name] for name in self._keywords}
        count = len(responses)
        return verdict(lambda: _listed(self._await(self._reward(responses, row, **keywords)), count, as_reward))


def scorer_of(
    term: dict[str, Any], columns: Sequence[str] | None = None, given: Given = NOTHING_GIVEN
) -> FunctionScorer | BatchScorer:
    """Of a term other than `code`; see `FunctionScorer`."""
    if term.get("style") == "batched":
        return BatchScorer(term["function"], given)
    return FunctionScorer(term, columns=columns, given=given)


def _listed(value: Any, count: int, of_one: Callable[[Any], T]) -> list[T]:
    """The rewards of `count` samples, each by `of_one`. Raises NotARewardError."""
    if isinstance(value, str | dict) or not hasattr(value, "__iter__"):
        raise NotARewardError(f"returned a {type(value).__name__}, and has to return a list of {count} rewards")
    rewards = [of_one(reward) for reward in value]
    if len(rewards) != count:
        raise NotARewardError(f"returned {len(rewards)} rewards for {count} samples")
    return rewards


_PLAIN = (float, int, bool, dict, list)
"""What rewards return as a rule: to ask whether it can be awaited takes a fork longer than all else."""


class Awaiter:
    """Waits for what async functions return, in one event loop: clients that the user keeps are bound to it."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __call__(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        return self._result_of(value) if inspect.isawaitable(value) else value

    def _result_of(self, awaitable: Awaitable[Any]) -> Any:
        import asyncio  # costs a third of the start, and most rewards are plain functions

        async def result() -> Any:
            return await awaitable

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(result())


def verdict(judge: Callable[[], float | Scored | Sequence[float | Scored]]) -> Verdict:
    """What `judge` gives, or why it gives nothing."""
    try:
        return judge(), None
    except NotARewardError as error:
        return None, describe(FailureKind.REWARD_NAN, str(error))
    except FailedReward as error:
        return None, describe(error.kind, str(error))
    except BaseException as error:  # sys.exit() in a reward is a failed reward too
        return None, describe(FailureKind.REWARD_RAISED, describe_exception(error))
