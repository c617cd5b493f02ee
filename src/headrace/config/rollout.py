"""How episodes are drawn, and how far generation may run ahead of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from headrace.config.agent import AgentConfig, OutsideAgent
from headrace.config.base import Section
from headrace.config.filters import FilterConfig
from headrace.config.values.temperature import SamplingTemperature

TOP_K_OF_TOP_P = 512
"""The limit on what `top_p` keeps unless another is given."""
StopText = Annotated[str, Field(min_length=1, max_length=256)]
OnDeadline = Literal["wait", "mask", "drop", "late"]


class SamplingConfig(Section):
    max_new_tokens: int = Field(default=256, ge=1)
    """Longest response in tokens (of one turn). At least one prompt must leave room for it in the context."""
    temperature: SamplingTemperature = 1.0
    """The lower it is, the more the rounding of logits counts in log-probs."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 is no limit. With `top_p` below 1 it is 512 unless given: what is kept of the vocabulary travels with each
    token."""
    stop: Annotated[tuple[StopText, ...], Field(max_length=16)] = ()
    """Texts that end a response (in evaluation too), as `["</answer>"]`: its last token is the one that completes a
    stop text, with whatever that token says beyond. Special tokens count as their text."""
    stop_token_ids: tuple[int, ...] = ()
    """Beside the model's own end-of-sequence tokens."""

    @model_validator(mode="before")
    @classmethod
    def _few_are_kept(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("top_k") is not None:
            return given
        try:
            limited = float(given.get("top_p", 1.0)) < 1
        except (TypeError, ValueError):  # which its own check tells
            limited = False
        return {**given, "top_k": TOP_K_OF_TOP_P} if limited else given

    @property
    def truncates(self) -> bool:
        """Whether tokens are sampled from a distribution cut by top-k or top-p."""
        return self.top_p < 1 or self.top_k > 0


class RolloutConfig(Section):
    prompts_per_batch: int = Field(default=16, ge=1, le=1_000_000)
    """Groups that one weight version is trained on."""
    samples_per_prompt: int = Field(default=8, ge=1, le=65_536)
    """Episodes in a group."""
    sampling: SamplingConfig = SamplingConfig()
    workflow: str = "single_turn"
    """`single_turn`, `multi_turn`, `agent`, or a class of yours: `path.py:Class`."""
    agent: AgentConfig | None = None
    """What plays an episode by the OpenAI API: a function of yours, `path.py:function`, a program, as `{command:
    [python, agent.py]}`, or agents that ask for tasks, as `{outside: true, port: 8100}`; see docs/agents.md. With it
    `workflow` is `agent`."""
    function: str | None = Field(default=None, min_length=1)
    """A function of yours that plays training's groups in the place of the workflow: `path.py:function`, called as
    `await generate(buffer, batch, evaluation)`. See docs/rollout-functions.md."""
    buffer_filter: str | None = Field(default=None, min_length=1)
    """`function`: which of the groups that it adds together are trained: a function of yours, `path.py:function`, that
    is given them as a list, and returns some of them."""
    mask_continued: bool = False
    """`function`: of a sample that is gone on with, tokens that older weights than the present ones had sampled are
    left out of the loss. They are trained unless set, as far as `async.max_staleness` lets them."""
    environment: str | None = None
    """`multi_turn`: the environment class, `path.py:Class`."""
    max_turns: int = Field(default=8, ge=1)
    """`multi_turn`: turns of the policy in one episode."""
    keep_special_tokens: bool = False
    """`multi_turn`: the environment's `step`, and a reward's `messages`, show the special tokens that the policy wrote,
    its closing one among them. Unless kept they are left out."""
    observation_role: str = Field(default="user", min_length=1)
    """The role that what an environment says has in a chat, for the chat template: `user`, or `tool` where the policy
    calls tools."""
    episode_timeout_s: float = Field(default=600.0, gt=0)
    """An episode that takes longer fails. At most `runtime.stall_timeout_s`."""
    min_samples: int | None = Field(default=None, ge=1)
    """A group trains with at least this many episodes that did not fail, whatever the number of samples that each
    left; 2, or 1 for groups of one, unless given."""
    max_attempts: int = Field(default=3, ge=1)
    """How often a prompt that came back is tried in one epoch before it is dropped as exhausted."""
    oversample: float = Field(default=1.0, ge=1, le=16)
    """Groups started for each that a batch needs. The first that are ready make the batch; what can enter none within
    `async.max_staleness` any more is ended and tried again later (`async.on_deadline: drop`)."""
    max_drops_per_batch: int | None = Field(default=None, ge=1)
    """Groups dropped while one batch is composed (surplus ones aside), after which the run ends with an error that says
    why they were; 64 x prompts_per_batch unless given."""
    filters: tuple[FilterConfig, ...] | None = None
    """Each drops groups: `zero_spread` (all rewards equal), a function of yours, `path.py:function`, or one with
    parameters, as `{type: reward_range, low: 0.1, high: 0.9}`. Filters see rewards as they were scored, before
    `algorithm.shaping`. Unless given, `zero_spread` where advantages compare the samples of a group, else none; and
    none where `algorithm.shaping.length_weight`, `algorithm.shaping.function` or a KL in the reward tells samples of
    one reward apart."""

    workers: Literal["auto"] | Annotated[int, Field(ge=0, le=64)] = "auto"
    """Processes that play episodes, with your workflow, environment and filters, and ask the rewards: what one of them
    does (a crash, a wait that blocks) ends that process, and not the run. 0: all of it is in the run's own process, as
    for a debugger. `auto`: 1 where workflow, agent, environment or a filter is yours, named by file or module, else 0;
    with agents outside 0.
    Each has modules of its own: nothing global is shared between them."""
    block_timeout_s: float = Field(default=120.0, gt=0)
    """A rollout worker whose event loop has not turned for so long (a plain call that does not return) is ended, and
    made anew."""

    @property
    def surplus(self) -> int:
        """Groups that over-sampling starts beyond what a batch holds."""
        return math.ceil((self.oversample - 1) * self.prompts_per_batch - 1e-9)

    @property
    def most_drops(self) -> int:
        return self.max_drops_per_batch or 64 * self.prompts_per_batch

    @model_validator(mode="before")
    @classmethod
    def _an_agent_plays(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("agent") is not None and given.get("workflow") is None:
            return {**given, "workflow": "agent"}
        return given

    @model_validator(mode="after")
    def _agent_and_workflow_agree(self) -> RolloutConfig:
        if self.agent is not None and self.workflow != "agent":
            raise ValueError(
                f"agent is {self.agent!r} and workflow is {self.workflow!r}: one of them plays; leave one out"
            )
        if isinstance(self.agent, OutsideAgent) and self.function is not None:
            raise ValueError(
                f"agent is outside and function is {self.function!r}, which plays in its place: leave one out"
            )
        if self.workflow == "agent" and self.agent is None:
            raise ValueError("workflow is agent, and no agent is named; set agent: path.py:function")
        return self

    @model_validator(mode="after")
    def _min_samples_fit(self) -> RolloutConfig:
        if self.min_samples is not None and self.min_samples > self.samples_per_prompt:
            raise ValueError(
                f"min_samples is {self.min_samples}, more than samples_per_prompt ({self.samples_per_prompt}): "
                "no group could ever train; lower min_samples"
            )
        if self.function is None and (self.buffer_filter is not None or self.mask_continued):
            key = "buffer_filter" if self.buffer_filter is not None else "mask_continued"
            raise ValueError(f"{key} is of a rollout function, and function is not set; set it, or remove {key}")
        return self


class AsyncConfig(Section):
    mode: Literal["sync", "one_step_off", "async"] = "async"
    """`sync`: generation and training take turns (max_staleness 0). `one_step_off`: in parallel, whole batches
    (max_staleness 1). `async`: in parallel, streaming."""
    max_staleness: int | None = Field(default=None, ge=0, le=1_000_000)
    """Bound on batch minus version for every trained token; 0, 1 and 2 for the three modes unless given."""
    on_deadline: OnDeadline | None = None
    """What happens to a group that is still running when its last batch is due: `wait` for it; `mask` the tokens that
    are too old by then, in a later batch; `drop` it; or train it `late`, whatever its age. `wait` unless given, `drop`
    with `rollout.oversample`. See docs/recipes.md."""
    ahead: int | None = Field(default=None, ge=1)
    """Most groups running or waiting for a batch. Unless given, so many that a batch waits while the engines' slots are
    full: prompts_per_batch + slots / samples_per_prompt, but at least 2 x and at most (max_staleness + 1) x
    prompts_per_batch; and the surplus of `rollout.oversample`. `headrace check` prints it, and the staleness that it
    lets tokens reach."""
    table_gib: float | None = Field(default=None, gt=0)
    """GiB of host memory for groups until they are trained, kept sets included; half of the host's memory unless given,
    and never more than is free in /dev/shm where samples lie there (`rollout.workers`; docs/run.md), but for workers
    that have places in a cluster that is joined (`cluster.place`, `runtime.address`): then `table_gib` alone is the
    limit. A running group counts as the largest that there can be, a finished one as what it takes. The limit keeps
    generation from running further ahead, and never from filling the batch at hand. `headrace check` prints it, and
    how many groups there is room for."""
    swap: Literal["recompute", "keep", "drain"] = "recompute"
    """What a weight update does to sequences in flight."""

    @model_validator(mode="after")
    def _mode_and_staleness_agree(self) -> AsyncConfig:
        eta = self.max_staleness
        if self.mode == "sync" and eta not in (None, 0):
            raise ValueError(f"mode is sync but max_staleness is {eta}; sync means 0: remove it, or use mode: async")
        if self.mode == "one_step_off" and eta not in (None, 1):
            raise ValueError(
                f"mode is one_step_off but max_staleness is {eta}; one_step_off means 1: remove it, or use mode: async"
            )
        if self.mode == "async" and eta == 0:
            raise ValueError("mode is async but max_staleness is 0, which is on-policy: use mode: sync")
        return self

    @property
    def staleness_bound(self) -> int:
        default = {"sync": 0, "one_step_off": 1, "async": 2}[self.mode]
        return default if self.max_staleness is None else self.max_staleness

    @property
    def streaming(self) -> bool:
        """Whether the trainer begins a batch before all of it is there."""
        return self.mode == "async"

    @property
    def in_order(self) -> bool:
        """Whether what is computed from rows does not depend on when they came, to the last bit."""
        return self.mode == "sync"
