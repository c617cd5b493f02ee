"""The policy as workflows see it: from texts to tokens and back, and completions of the engines."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.engines.completions import Asked, Completion, Cut, GenerationAborted, complete, joined_parts
from headrace.engines.place import Place
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import FinishReason, SamplingParams, TokenChunk
from headrace.experience.sample import GroupKey
from headrace.experience.text.messages import Tool
from headrace.experience.text.stop_texts import StopTexts
from headrace.experience.text.tokens import Content, TextCodec
from headrace.runtime.off_loop import off_loop, tokens_in
from headrace.runtime.patience import Patience, StandStill
from headrace.runtime.protocol import Clock, Services
from headrace.weights.version import Version

__all__ = ["Completion", "GenerationAborted", "Policy", "PolicySettings", "noise_key"]


@dataclass(frozen=True)
class PolicySettings:
    """What all episodes of a run have in common."""

    engines: EnginePool
    text: TextCodec
    sampling: SamplingParams
    seed: int
    clock: Clock
    request_timeout_s: float
    """Limit on one completion, failures and interruptions included; less the time in which no engine may serve it."""
    max_context: int | None = None
    """Longest prompt + response in tokens that the engines take; no limit of its own unless given."""
    return_kept: bool = False
    """Whether completions come with the kept sets of their tokens, as training needs them."""
    return_experts: bool = False
    """Whether completions come with the experts that their tokens were routed to (`algorithm.router_replay`)."""
    most_kept: int = 0
    """Ids that such a set has at most; 0: any number."""
    observation_role: str = "user"
    """Of what an environment says, in a chat."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, with the token that completes one."""
    truncate_to: int | None = None
    """A prompt that has more tokens keeps the last so many."""
    services: Services | None = None
    """For work on many tokens; without, it is done in the event loop."""


def noise_key(seed: int, group: GroupKey, episode: int, index: int) -> int:
    """The 64-bit key of an episode's sampling noise.

    BLAKE2b, 8 bytes, little-endian, of (seed, epoch, position, attempt, episode, index) as little-endian int64.
    With a token's absolute position it fixes each draw, so noise depends on neither batch-mates nor interruptions.
    """
    packed = struct.pack("<6q", seed, *group, episode, index)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


class Policy:
    """The policy for one episode. No token that it gives is of a version older than `min_version`."""

    def __init__(
        self,
        settings: PolicySettings,
        *,
        group: GroupKey,
        episode: int,
        min_version: Version,
        tools: Sequence[Tool] | None = None,
        issue: int = 0,
        place: Place | None = None,
        still: Sequence[StandStill] = (),
    ) -> None:
        """`tools`: JSON schemas of what the policy may call; they are shown to it wherever messages are encoded.
        `issue`: how often the group's attempt was given out before; requests of two issues are told apart. `place`:
        the engine that was chosen for it. `still`: whose clocks stand still while no engine may serve it."""
        self._settings = settings
        self._tools = tools
        self._group = group
        self._episode = episode
        self._name = f"{group}/{episode}"
        self._asks_as = f"{group}.{issue}/{episode}" if issue else self._name
        self._minimum = min_version
        self._place = place
        self._still = tuple(still)
        self._completions = 0
        self._is_left = False

    def leave(self) -> None:
        """Nobody waits for the episode any more, and it goes on: it gets no further token."""
        self._is_left = True

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Within, the episode's clock stands still: what it waits for is no time of its own."""
        with ExitStack() as stack:
            for still in self._still:
                stack.enter_context(still.standing())
            yield

    @property
    def is_trained(self) -> bool:
        """Whether what it samples is trained on; else it is of an evaluation."""
        return self._settings.return_kept

    @property
    def settings(self) -> PolicySettings:
        """What it has in common with all episodes of the run."""
        return self._settings

    @property
    def name(self) -> str:
        """Of the episode: as group and number, the same in every run of the seed."""
        return self._name

    def encode(self, content: Content) -> NDArray[np.int32]:
        """Ids of a prompt; see `TextCodec.encode`. The tools of the prompt's row are shown in a chat, and a prompt that
        is too long loses its beginning, if `data.too_long` says so."""
        text, longest = self._settings.text, self._settings.truncate_to
        ids = text.encode(content, None if isinstance(content, str) else self._tools)
        return ids if longest is None else text.truncated_left(ids, longest)

    async def encoded(self, content: Content) -> NDArray[np.int32]:
        """As `encode`; of a long prompt off the event loop."""
        length = len(content) if isinstance(content, str) else sum(len(str(each)) for each in content)
        return await off_loop(self._settings.services, tokens_in(length), self.encode, content)

    @property
    def observation_role(self) -> str:
        """Of what an environment says, in a chat."""
        return self._settings.observation_role

    def encode_observation(self, text: str, *, chat: bool, last_token: int | None = None) -> NDArray[np.int32]:
        """Ids of what comes after a turn of the policy, as a message of `observation_role` in a chat; see
        `TextCodec.encode_observation`."""
        return self._settings.text.encode_observation(
            text, chat=chat, last_token=last_token, role=self.observation_role, tools=self._tools
        )

    async def encoded_observation(self, text: str, *, chat: bool, last_token: int | None = None) -> NDArray[np.int32]:
        """As `encode_observation`; of a long one off the event loop."""
        encode = partial(self.encode_observation, text, chat=chat, last_token=last_token)
        return await off_loop(self._settings.services, tokens_in(len(text)), encode)

    def decode(self, tokens: ArrayLike, *, keep_special_tokens: bool = False) -> str:
        """See `TextCodec.decode`."""
        return self._settings.text.decode(tokens, keep_special_tokens=keep_special_tokens)

    async def decoded(self, tokens: NDArray[np.int32], *, keep_special_tokens: bool = False) -> str:
        """As `decode`; of many tokens off the event loop."""
        decode = partial(self.decode, tokens, keep_special_tokens=keep_special_tokens)
        return await off_loop(self._settings.services, len(tokens), decode)

    async def generate(
        self,
        prompt: Sequence[int] | NDArray[np.int32],
        *,
        max_new_tokens: int | None = None,
        index: int = 0,
        stop: Sequence[str] = (),
        sampling: SamplingParams | None = None,
        came: Callable[[TokenChunk], None] | None = None,
        cut: Cut | None = None,
        soon: bool = False,
        begun: int = 0,
    ) -> Completion:
        """Sample after `prompt` (token ids, at least one), until a stop token, a stop text or a limit.

        `max_new_tokens` lowers or raises the run's limit, `stop` is more texts beside the run's. `sampling` is in the
        place of the run's, where this call has its own; of what is trained the completion then tells the temperature.
        Calls with another `index` draw other noise: give one to each of several continuations of the same tokens. If no
        room is left in the context, the completion is empty and ends by LENGTH. `came` is told tokens as they come: see
        `complete`. `cut`: by which it is ended from outside. `soon`: somebody reads along (`GenerateRequest.soon`).
        `begun`: how many of the prompt's last tokens an earlier call sampled, of the turn that this one goes on with. A
        stop text may begin in them; where they hold one, the completion is empty, and ends by STOP.

        Raises EngineError when no engine could serve it (NotServed where none came back in time), RequestError when
        none ever could, WaitTimeout, and GenerationAborted.
        """
        if self._is_left:
            await asyncio.get_running_loop().create_future()  # an error would only be swallowed as well
        settings = self._settings
        params = settings.sampling if sampling is None else sampling
        tokens = np.asarray(prompt, dtype=np.int32)
        limit = params.max_new_tokens if max_new_tokens is None else max_new_tokens
        if settings.max_context is not None:
            limit = min(limit, settings.max_context - len(tokens))
        if limit <= 0:
            return joined_parts([], FinishReason.LENGTH)
        texts = (*settings.stop, *stop)
        stops = None
        if texts:
            stops = StopTexts(partial(settings.text.decode, keep_special_tokens=True), texts)
            if await off_loop(settings.services, begun, stops.begin, tokens[len(tokens) - begun :]):
                return joined_parts([], FinishReason.STOP)
        patience = Patience(settings.clock, settings.request_timeout_s)
        asked = Asked(
            name=f"{self._asks_as}.{self._completions}",
            prompt=tokens,
            sampling=replace(params, max_new_tokens=limit),
            noise_key=noise_key(settings.seed, self._group, self._episode, index),
            minimum=self._minimum,
            place=self._place,
            return_kept=settings.return_kept,
            return_experts=settings.return_experts,
            soon=soon or bool(texts),
            still=(*self._still, patience.still),
            cut=cut,
        )
        self._completions += 1
        completion = await patience.wait_for(
            complete(settings.engines, asked, stops, settings.services, came),
            f"a completion of group {self._group}, episode {self._episode}",
        )
        has_own = sampling is not None and self.is_trained
        return replace(completion, temperature=params.temperature) if has_own else completion
