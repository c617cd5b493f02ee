"""Where a run works, and how long without progress."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from headrace.config.base import Section


class PassStuckConfig(Section):
    """How long work may go on without progress, by what it is in. Whoever does it is then taken for stuck, and the
    command ends. Work, unless given, 30 s and five times the longest yet; 300 s for a process's first."""

    layer_s: float | None = Field(default=None, gt=0)
    """A layer of a pass, there or back."""
    microbatch_s: float | None = Field(default=None, gt=0)
    """What a micro-batch takes beside its layers: the loss, say."""
    chunk_s: float | None = Field(default=None, gt=0)
    """A bucket of gradients or state between replicas; what ranks add up for a step, and its update."""
    event_loop_s: float = Field(default=30.0, gt=0)
    """A turn of the event loop of a rank's process, which computes beside it."""

    @property
    def limits(self) -> dict[str, float]:
        """Of work, those that are given, by what they limit."""
        given = self.model_dump(exclude_none=True, exclude={"event_loop_s"})
        return {key.removesuffix("_s"): value for key, value in given.items()}


class StuckConfig(PassStuckConfig):
    """How long work may go on without progress, by what it is in. Whoever does it is then taken for stuck: what has a
    process of its own is ended and made anew, else the run ends. Work, unless given, 30 s and five times the longest
    yet; 300 s for a process's first."""

    decode_step_s: float | None = Field(default=None, gt=0)
    """A decode step of an embedded engine, or a pass of prefill. Of an inference server that has requests, and is not
    paused: the time without a token of any of them, while what it says of its load stays the same."""
    chunk_s: float | None = Field(default=None, gt=0)
    """A bucket of new weights on their way, or of gradients or state between replicas; what ranks add up for a step,
    and its update."""
    event_loop_s: float = Field(default=30.0, gt=0)
    """A turn of the event loop of an engine's, model's or relay's process, which computes beside it: one that has not
    turned for so long, as where the whole process stands, or for a third of `runtime.stall_timeout_s`."""


class RestartsConfig(Section):
    """How often workers may be lost. Beyond that all ranks of the trainer, or of the critic, go on from the last
    commit, and when that is so again, within the window or without a commit since, the run stops with the reason; an
    engine is given up, and for any other worker the run stops."""

    most: int = Field(default=3, ge=1)
    """The loss of a rank of the trainer, or of the critic, that is too often: so many within the window, or in a row
    without a trained batch between."""
    workers: int = Field(default=10, ge=2)
    """The same of an engine, a rollout worker, the functions' worker or a model that only scores, each counted by
    itself: so many within the window, whatever it did between. What a rollout worker is lost with does not count once a
    prompt is known to be the reason. (How many in a row without progress are too many is fixed: docs/run.md.)"""
    window_s: float = Field(default=600.0, gt=0)


class RuntimeConfig(Section):
    kind: Literal["inline", "ray"] = "inline"
    """`inline`: all on this machine, in this process and those that the config names. `ray`: workers that have
    processes of their own are actors of a Ray cluster (`pip install 'headrace[cluster]'`)."""
    address: str | None = Field(default=None, min_length=1)
    """Of a Ray cluster to join, as `127.0.0.1:6379` or `auto`; unless given, one is started on this machine for the
    run. Its token is the environment's RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH's."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads for all compute lanes together; the machine's cores unless given, and at most eight for each."""
    turns: bool = False
    """Have everything that computes take turns, instead of sharing the CPU: to compare, and to debug. On a CPU
    `async.mode: sync` always does, since results would depend on how many threads are free at the moment."""
    trace: bool = False
    """Write `trace.json`: what computed when, for Perfetto or chrome://tracing."""
    stall_timeout_s: float = Field(default=900.0, gt=0)
    """A wait of the run that lasts longer ends it with an error that says what it waited for, and so does code of yours
    that blocks the event loop for longer; never less than `rollout.episode_timeout_s`."""
    stuck: StuckConfig = StuckConfig()
    restarts: RestartsConfig = RestartsConfig()
