"""What the gateway's benchmarks share: an engine that computes nothing, and episodes that a client process plays.

The process is as a rollout worker's: it imports neither torch nor transformers, and collects garbage as rarely. Its
tokenizer is a byte-level BPE of 8,192 tokens, trained on the pages of docs/, from which all texts are taken. Each
answer is some words and the call of a tool; each turn after it the tool's result. The engine gives all tokens of an
answer at once, after a fixed time.
"""

from __future__ import annotations

import asyncio
import json
import queue
import random
import re
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from headrace.config.gateway import GatewayConfig
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import FinishReason, GenerateRequest, SamplingParams, TokenChunk
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.sample import GroupKey
from headrace.experience.text.fast_tokenizer import FastTokenizer, TokenizerSpec
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.agent_gateway import AgentGateway
from headrace.rollout.agent import AgentWorkflow, FunctionAgent
from headrace.rollout.agent_episode import AgentEpisode
from headrace.rollout.policy import Policy, PolicySettings
from headrace.rollout.trajectory import Trajectory
from headrace.runtime.inline import InlineRuntime
from headrace.weights.version import INITIAL

DOCS = Path(__file__).parents[1] / "docs"
END = "<|im_end|>"
TEMPLATE = (
    "{%- if tools %}{{- '<|im_start|>system\\nTools:' }}{%- for tool in tools %}{{- '\\n' + tool | tojson }}"
    "{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + m.content }}"
    "{%- for call in m.tool_calls or [] %}"
    '{{- \'\\n<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{%- if loop.first or loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}"
    "{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""As of Qwen 2.5."""
CALL = '\n<tool_call>\n{"name": "look", "arguments": {"key": "batch"}}\n</tool_call>'
DEADLINE_S = 1800.0
"""Of a whole run of a benchmark."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of one episode, in tokens, without what the template puts around them."""

    first: int
    """Of the user's message."""
    answer: int
    result: int
    """Of the tool's message after each answer but the last."""
    turns: int


def words() -> list[str]:
    """Of all pages, in order."""
    return re.findall(r"\S+", " ".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))))


def tokenizer() -> FastTokenizer:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    special = [AddedToken("<|im_start|>", special=True), AddedToken(END, special=True)]
    trainer: Any = trainers.BpeTrainer(
        vocab_size=8192,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator((path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))), trainer)
    spec = TokenizerSpec(
        backend=trained.to_str().encode(),
        special_tokens={"eos_token": END},
        eos_token_id=trained.token_to_id(END),
        bos_token_id=None,
        chat_template=TEMPLATE,
        all_special_tokens=("<|im_start|>", END),
        cleans_up=False,
        splits_special_tokens=False,
    )
    return FastTokenizer(spec)


class Alarm:
    """Wakes whoever waits `delay_s`, by a thread of its own: the event loop's timers come up to 1 ms late."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._asked: queue.SimpleQueue[tuple[float, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._wake, daemon=True).start()

    def after_delay(self) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.put((time.perf_counter() + self._delay_s, future))
        return future

    def _wake(self) -> None:
        while True:
            due, future = self._asked.get()
            time.sleep(max(0.0, due - time.perf_counter()))
            with suppress(RuntimeError):  # the run is over
                future.get_loop().call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class StubEngine:
    """Answers each request after `delay_s`; all that the gateway's way to it asks of an `Engine`."""

    version = INITIAL
    rests = False
    gives_kept_sets = False
    failure = None
    quiet = None

    def __init__(self, answers: list[np.ndarray[Any, np.dtype[np.int32]]], delay_s: float) -> None:
        self._answers = answers
        self._delay_s = delay_s
        self._alarm = Alarm(delay_s)
        self.prompt_tokens: list[int] = []
        self.late_s: list[float] = []
        """How much later than `delay_s` it woke, for what else the event loop did."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        due = time.perf_counter() + self._delay_s
        tokens = self._answers[len(self.prompt_tokens) % len(self._answers)]
        self.prompt_tokens.append(len(request.prompt))
        if self._delay_s:
            await self._alarm.after_delay()
        self.late_s.append(time.perf_counter() - due)
        count = len(tokens)
        yield TokenChunk(
            tokens.copy(),
            np.full(count, -0.5, np.float32),
            np.zeros(count, np.int32),
            np.zeros(count, np.int32),
            FinishReason.STOP,
        )

    def abort(self, request_ids: Iterable[str]) -> None:
        pass


def stub_engine(text: FastTokenizer, lengths: Lengths, delay_s: float) -> StubEngine:
    said, end = words(), text.eos_token_id
    assert end is not None
    call = text(CALL, add_special_tokens=False)["input_ids"]
    answers = []
    for number in range(64):
        start = number * 97 % (len(said) - 2 * lengths.answer)
        ids = text(" ".join(said[start : start + lengths.answer]), add_special_tokens=False)["input_ids"]
        answers.append(np.array([*ids[: max(0, lengths.answer - len(call) - 1)], *call, end], np.int32))
    return StubEngine(answers, delay_s)


class Client:
    """The process that plays episodes: it is told keys, and tells which episodes are over, and what it measured."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.ended: dict[str, asyncio.Future[None]] = {}
        """By key."""

    def play(self, base_url: str, key: str) -> asyncio.Future[None]:
        """Done once the episode is over."""
        assert self._process.stdin is not None
        self.ended[key] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps({"base_url": base_url, "key": key}).encode() + b"\n")
        return self.ended[key]

    async def heard(self) -> dict[str, Any]:
        """What it says next, beside episodes that are over. Raises RuntimeError if it is no more."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told: dict[str, Any] = json.loads(line)
            if "ended" not in told:
                return told
            future = self.ended.pop(told["ended"])
            if not future.done():
                future.set_result(None)
        raise RuntimeError(f"the client ended with status {await self._process.wait()}; its errors are above")


@asynccontextmanager
async def client_process(lengths: Lengths, **settings: Any) -> AsyncGenerator[Client, None]:
    """`benchmarks.gateway_client`, with whole lines of up to 64 MiB."""
    told = json.dumps({"lengths": asdict(lengths), **settings})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.gateway_client", told,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26,
    )  # fmt: skip
    try:
        yield Client(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Episodes:
    """Opens episodes as a rollout worker does: by the workflow of an agent, which here is the client."""

    def __init__(self, gateway: AgentGateway, settings: PolicySettings) -> None:
        self._workflow = AgentWorkflow(FunctionAgent(self._play)).through(gateway)
        self._settings = settings
        self._opened = 0
        self.client: Client | None = None

    async def play(self) -> list[Trajectory]:
        """One, to its end."""
        number, self._opened = self._opened, self._opened + 1
        prompt = Prompt(str(number), "", {})
        policy = Policy(self._settings, group=GroupKey(0, number, 0), episode=0, min_version=INITIAL)
        return list(await self._workflow.run(prompt, policy))

    async def _play(self, episode: AgentEpisode) -> None:
        assert self.client is not None
        await self.client.play(episode.base_url, episode.api_key)


@asynccontextmanager
async def gateway_of(engine: StubEngine, text: FastTokenizer) -> AsyncGenerator[Episodes, None]:
    """What opens episodes, by a gateway that listens."""
    runtime = InlineRuntime()
    gateway = AgentGateway(GatewayConfig(), runtime)
    await gateway.start()
    assert text.eos_token_id is not None
    settings = PolicySettings(
        engines=EnginePool.of([engine], runtime.clock),  # type: ignore[list-item]
        text=TextCodec(text),
        sampling=SamplingParams(max_new_tokens=1024, stop_token_ids=(text.eos_token_id,)),
        seed=0,
        clock=runtime.clock,
        request_timeout_s=600.0,
        max_context=32768,
        services=runtime,
    )
    try:
        yield Episodes(gateway, settings)
    finally:
        await gateway.close()
        await runtime.close()


def taken(text: FastTokenizer, said: list[str], rng: random.Random, tokens: int) -> str:
    """Text of the pages, from anywhere in them, of about so many tokens."""
    start = rng.randrange(len(said) - tokens)
    ids = text(" ".join(said[start : start + tokens]), add_special_tokens=False)["input_ids"]
    return str(text.decode(ids[:tokens]))
