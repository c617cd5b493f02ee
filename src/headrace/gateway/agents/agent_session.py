"""One episode that an agent plays by requests."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.config.gateway import GatewayConfig
from headrace.engines.completions import Completion, GenerationAborted
from headrace.engines.protocol import EngineError, FinishReason, RequestError
from headrace.experience.text.messages import Message
from headrace.experience.text.token_texts import ShownToken
from headrace.gateway.agents.agent_requests import AgentRequest, ChatRequest, TextRequest
from headrace.gateway.agents.answered import Answered, Choice
from headrace.gateway.agents.client_sampling import CHOSEN, client_sampling
from headrace.gateway.agents.episode_place import EpisodePlace
from headrace.gateway.agents.exchanges import Exchanges
from headrace.gateway.agents.growing import Live
from headrace.gateway.agents.growing_prose import growing_answer
from headrace.gateway.agents.known_texts import KnownTexts
from headrace.gateway.agents.known_turns import Digest, KnownTurns, digest_after, digests
from headrace.gateway.agents.model_renderer import ModelRenderer
from headrace.gateway.agents.reading import Reading
from headrace.gateway.agents.responses_api import ResponseRequest
from headrace.gateway.agents.token_tree import Node, TokenTree
from headrace.gateway.agents.turns import Shown, Turns
from headrace.gateway.errors import ApiError
from headrace.rollout.policy import Policy
from headrace.rollout.trajectory import Trajectory
from headrace.runtime.off_loop import off_loop, tokens_in
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.together import together

_LONGEST_REFUSAL = 300
"""Characters of what a request was refused with that the failure of its episode tells."""
_CALL_TOLD = "\n\nAnswer with a call of {}."


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the tree a request asks."""

    prompt: Node
    tokens: NDArray[np.int32]
    """What the policy is asked to go on from."""
    messages: list[Message]
    """The conversation up to here, thoughts included."""
    digest: Digest = b""
    """Of these messages, in a chat."""
    thoughts: frozenset[int] = frozenset()
    """Places of those messages whose thoughts the policy sees."""


@dataclass(frozen=True, slots=True)
class _Way:
    """By which a conversation comes to the policy's next turn."""

    after: Node | None
    """The answer that it goes on from; None at a new beginning."""
    added: NDArray[np.int32]
    """Ids of what comes after that."""
    messages: list[Message]
    digest: Digest
    thoughts: frozenset[int]
    """See `Place`."""
    dropped: set[Digest]
    """Of the conversations that end with a thought that was dropped."""


class AgentSession:
    """Implements `Session`: the tree of an episode, and what may be asked of it."""

    def __init__(
        self,
        policy: Policy,
        config: GatewayConfig,
        base_url: str,
        api_key: str,
        place: EpisodePlace | None = None,
        renderer: ModelRenderer | None = None,
    ) -> None:
        """`place`: for an agent that is a program. `renderer`: of the model, if one is to render."""
        self._place = place
        settings = policy.settings
        self.base_url, self.api_key, self.model = base_url, api_key, config.model_name
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exchanges: Exchanges[Answered] = Exchanges()
        self.bodies = asyncio.Semaphore(config.max_concurrent_requests)
        """For bodies of requests, while they are read and until it is known what is asked by them."""
        self.is_open = True
        self._policy = policy
        self._most = config.max_concurrent_requests
        self._chosen = CHOSEN if config.sampling == "client" else ()
        """Sampling parameters that are the client's."""
        stops = settings.sampling.stop_token_ids
        self._turns = Turns(settings.text, stops, config.thinking, config.tool_parser, renderer)
        self._tree = TokenTree()
        self._known = KnownTurns()
        self._texts = KnownTexts()
        self._counts: Counter[str] = Counter()
        self._dropped: set[Digest] = set()
        """Of the conversations that end with a thought that was dropped."""
        self._refusal = ""
        """The last words that a request was refused with."""
        self._first_answers: dict[int, tuple[Node, bool]] = {}
        """To each request, by its number, and whether it had instructions. The request itself is not kept: each holds
        the whole conversation up to it."""
        self._requests = 0
        self._asked = 0
        """Answers."""
        self._drawn: Counter[int] = Counter()
        """Answers that were asked for, by the noise of their prompts: several nodes of the tree may have equal ids."""

    def folder(self) -> Path:
        """See `Session.folder`."""
        return self._its_place().folder()

    async def socket(self) -> str:
        """See `Session.socket`."""
        return await self._its_place().socket()

    def _its_place(self) -> EpisodePlace:
        if self._place is None:
            raise RuntimeError("this session has no place on the machine")
        return self._place

    def standing(self) -> AbstractContextManager[None]:
        """See `Session.standing`."""
        return self._policy.standing()

    def close(self) -> None:
        """See `Session.close`."""
        self.is_open = False
        self.exchanges.cancel()

    async def ended(self) -> None:
        """Once nothing of it runs any more."""
        self.close()
        await asyncio.gather(*self.exchanges.cancel(), return_exceptions=True)
        if self.broken.done() and not self.broken.cancelled():
            self.broken.exception()

    def trajectories(self) -> Sequence[Trajectory]:
        """See `Session.trajectories`."""
        histories = self._tree.trajectories()
        if not histories:
            told = "the agent asked the policy for nothing, or took no answer; it has to use its base_url"
            if count := self._counts["refused"]:
                told += f"; {count} request{'s were' if count > 1 else ' was'} refused, the last with: {self._refusal}"
            raise ValueError(told)
        counts = {**self._counts, "retries": self.exchanges.retries, "histories": len(histories)}
        counts["dropped_thoughts"] = len(self._dropped)
        counts["undelivered"] = sum(not node.delivered for node in self._tree.answers)
        counts["greedy"] = sum(node.delivered and node.is_greedy for node in self._tree.answers)
        histories[-1].metadata["requests"] = self._requests
        histories[-1].metadata.update({name: count for name, count in counts.items() if count > (name == "histories")})
        return histories

    def refused(self, error: ApiError) -> None:
        """A request got no answer, but this."""
        self._counts["refused"] += 1
        self._refusal = f"{error.status} {str(error)[:_LONGEST_REFUSAL]}"

    def check_room(self) -> None:
        """Raises ApiError where too many requests run."""
        if self.exchanges.running >= self._most:
            raise ApiError(
                f"{self._most} requests of this episode run already (gateway.max_concurrent_requests); wait for one",
                status=429,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
            )

    async def answer(self, request: AgentRequest, created: int, live: Live | None = None) -> Answered:
        """Raises ApiError, and what breaks the session. `created`: seconds since the epoch. `live`: for those who read
        along."""
        if isinstance(request, TextRequest):
            return await self.text(request, created, live)
        assert isinstance(request, ChatRequest)
        return await self.chat(request, created, live)

    async def chat(self, request: ChatRequest, created: int, live: Live | None = None) -> Answered:
        """See `answer`."""
        place = await self._chat_place(request)
        reads_calls = bool(request.tools) and request.tool_choice != "none"
        shown = Shown(request.tools, request.variables)
        reading = self._turns.reading(request.stop, place.tokens, shown, reads_calls=reads_calls)
        answered = await self._answered(request, place, created, reading, live)
        for node, choice in zip(answered.nodes, answered.choices, strict=True):
            has_thought = bool(choice.message.get("reasoning_content"))
            node.thoughts = place.thoughts | ({len(place.messages)} if has_thought else set())
            self._known.remember(digest_after(place.digest, choice.message), node, choice.message)
        return answered

    async def text(self, request: TextRequest, created: int, live: Live | None = None) -> Answered:
        """See `answer`."""
        reading = self._turns.plain_reading(request.stop)
        answered = await self._answered(request, await self._text_place(request), created, reading, live)
        if isinstance(request.prompt, str):
            for node, choice in zip(answered.nodes, answered.choices, strict=True):
                returned, stop = choice.message["content"], choice.stopped_by or ""
                self._texts.remember(node, request.prompt, returned, stop, choice.beyond)
        return answered

    async def _answered(
        self, request: AgentRequest, place: Place, created: int, reading: Reading, live: Live | None
    ) -> Answered:
        settings = self._policy.settings
        sampling = client_sampling(request.sampling, settings) if self._chosen else None
        number, self._requests = self._requests, self._requests + 1
        self._counts.update(f"ignored_{name}" for name in request.sampling if name not in self._chosen)
        first, self._asked = self._asked, self._asked + request.n
        answered = Answered(number, created, self.model, len(place.tokens))
        if live is not None:
            live.begin(answered, [growing_answer(reading, logprobs=request.logprobs) for _ in range(request.n)])
        limit = settings.sampling.max_new_tokens
        limit = limit if request.max_tokens is None else min(limit, request.max_tokens)
        history = _noise_of(place.tokens)
        noise = history + self._drawn[history]
        self._drawn[history] += request.n
        ask = partial(self._policy.generate, place.tokens, max_new_tokens=limit, stop=request.stop, sampling=sampling)

        async def choice(index: int) -> Choice:
            if live is None:
                return await self._read(reading, await ask(index=noise + index), first + index, request.logprobs)
            completion = await ask(index=noise + index, came=partial(live.came, index), soon=True)
            made = await self._read(reading, completion, first + index, request.logprobs)
            live.end(index, made.so_far)
            return made

        try:
            answered.choices.extend(await together(choice(index) for index in range(request.n)))
        except RequestError as error:
            raise ApiError(str(error)) from error
        except (EngineError, GenerationAborted, WaitTimeout) as error:
            if not self.broken.done():
                self.broken.set_exception(error)
            raise
        for made in answered.choices:
            node = self._tree.answer(place.prompt, made.completion)
            node.messages, node.response = [*place.messages, made.message], made.message["content"]
            answered.nodes.append(node)
        has_instructions = isinstance(request, ResponseRequest) and request.instructions is not None
        self._first_answers[number] = (answered.nodes[0], has_instructions)
        return answered

    async def _read(self, reading: Reading, completion: Completion, number: int, logprobs: bool) -> Choice:
        """`number`: of the answer."""
        services, tokens, finish = self._policy.settings.services, completion.tokens, completion.finish_reason
        said = await off_loop(services, len(tokens), reading.said, tokens, finish)
        self._counts["unread_answers"] += said.is_unread
        message = reading.message(said, number)
        shown: tuple[ShownToken, ...] = ()
        if logprobs:
            shown = await off_loop(services, len(tokens), reading.shown, tokens, completion.logprobs)
        is_whole = finish is not FinishReason.LENGTH  # or it might have gone on, with another call
        ended_by = "tool_calls" if is_whole and "tool_calls" in message else finish.value
        return Choice(completion, message, ended_by, shown, said.stopped_by, said.beyond)

    def conversation_of(self, response: str) -> list[Message]:
        """That of an answer to `/v1/responses`, by its id, without its instructions. Raises ApiError."""
        node, has_instructions = self._response(response)
        return (node.messages or [])[1 if has_instructions else 0 :]

    def _response(self, response: str) -> tuple[Node, bool]:
        """An answer to `/v1/responses`, by its id, and whether it had instructions. Raises ApiError."""
        number = response.removeprefix("resp_")
        found = self._first_answers.get(int(number)) if number.isdecimal() and len(number) < 10 else None
        if found is None:
            raise ApiError(
                f"this episode has no response {response!r}; give the conversation as input, or the id of one that it "
                "has",
                param="previous_response_id",
                status=404,
            )
        return found

    async def count(self, request: ChatRequest) -> int:
        """Tokens that the policy would be asked to go on from; it is asked for nothing. Raises ApiError."""
        way = await self._way(request)
        return len(way.added) + (0 if way.after is None else len(way.after.path_tokens))

    async def _chat_place(self, request: ChatRequest) -> Place:
        """Below the last answer that the conversation goes on from, or at a new beginning."""
        way = await self._way(request)
        self._dropped |= way.dropped
        prompt = self._prompt(way.after, way.added)
        return Place(prompt, prompt.path_tokens, way.messages, way.digest, way.thoughts)

    async def _way(self, request: ChatRequest) -> _Way:
        """Where a conversation goes on, and by which tokens. Changes nothing, but that it knows of answers that were
        delivered."""
        shown = Shown(request.tools, request.variables)
        services = self._policy.settings.services
        asked, known = request.messages, digests(request.messages, shown.tools, shown.variables)
        size = tokens_in(sum(map(_characters, asked)))
        previous = request.previous if isinstance(request, ResponseRequest) else None
        named = None if previous is None else self._response(previous)[0]
        dropped: set[Digest] = set()
        for place in range(len(asked) - 1, -1, -1):
            if asked[place]["role"] != "assistant":
                continue
            node = self._known.find(known[place + 1], asked[: place + 1], named)
            if node is None or node.messages is None:
                continue
            messages = [*node.messages, *asked[place + 1 :]]
            thoughts = await off_loop(services, size, self._turns.thoughts_in, messages, shown)
            if {each for each in thoughts if each < len(node.messages)} != node.thoughts:
                dropped |= {known[each + 1] for each in node.thoughts - thoughts}
                continue
            node.delivered = True  # or nobody could go on from it
            told, before = _told(messages, request.tool_choice), node.path_tokens[: -len(node.tokens)]
            added = await off_loop(services, size, self._turns.after, told, place, before, node.tokens, shown)
            if added is not None:
                return _Way(node, added, messages, known[-1], thoughts, dropped)
        told = _told(asked, request.tool_choice)
        whole = await off_loop(services, size, self._turns.whole, told, shown)
        thoughts = await off_loop(services, size, self._turns.thoughts_in, asked, shown)
        return _Way(None, whole, asked, known[-1], thoughts, dropped)

    async def _text_place(self, request: TextRequest) -> Place:
        """A prompt goes on from the longest history that it begins with: by its text, or by its ids."""
        said = request.prompt
        if isinstance(said, str):
            return await self._place_of_text(said)
        ids, best, length = np.asarray(said, np.int32), None, 0
        for node in self._tree.answers:
            if node.can_go_on:
                seen = node.path_tokens
                if length < len(seen) < len(ids) and np.array_equal(ids[: len(seen)], seen):
                    best, length = node, len(seen)
        if best is not None:
            best.delivered = True  # or nobody could go on from it
        prompt = self._prompt(best, ids[length:])
        text = self._policy.decode(ids)
        return Place(prompt, ids, [{"role": "user", "content": text}])

    async def _place_of_text(self, said: str) -> Place:
        services, found = self._policy.settings.services, self._texts.find(said)
        if found is None:
            whole = await off_loop(services, tokens_in(len(said)), self._turns.text, said)
            prompt = self._prompt(None, whole)
        else:
            after, rest = found
            after.delivered = True  # or nobody could go on from it
            added = await off_loop(services, tokens_in(len(rest)), self._turns.text_after, rest)
            prompt = self._prompt(after, added)
        return Place(prompt, prompt.path_tokens, [{"role": "user", "content": said}])

    def _prompt(self, after: Node | None, added: NDArray[np.int32]) -> Node:
        """That of the tree. Raises ApiError where no token has room behind it: then it is not kept."""
        most, before = self._policy.settings.max_context, [] if after is None else after.path
        tokens = len(added) + sum(len(node.tokens) for node in before)
        if most is not None and tokens >= most:
            if after is not None:
                after.is_cut_off = True
            raise ApiError(
                f"the prompt has {tokens} tokens, and the context of {most} must also hold an answer; shorten it",
                code="context_length_exceeded",
            )
        return self._tree.prompt(after, added)


def _characters(message: Message) -> int:
    """About how many it has."""
    return sum(len(each) if isinstance(each, str) else len(str(each)) for each in message.values())


def _told(messages: list[Message], tool_choice: str) -> list[Message]:
    """`messages`, whose last one says what has to be called; nothing enforces it."""
    if tool_choice in ("auto", "none"):
        return messages
    what = "a tool" if tool_choice == "required" else f"the tool {tool_choice[1:]}"
    last = messages[-1]
    return [*messages[:-1], {**last, "content": last["content"] + _CALL_TOLD.format(what)}]


def _noise_of(tokens: Sequence[int] | NDArray[np.int32]) -> int:
    """Of a prompt, below 2^60: one that is as long as another of its episode draws noise of its own. 2^20 answers have
    room behind it."""
    data = np.asarray(tokens, "<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=5).digest(), "little") << 20
