"""Version 0 where no trainer publishes it: in an evaluation, and in a run that only records.

A server that is attached to has weights of nobody's version, and rests until it has taken one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from headrace.config import ConfigError, TrainConfig
from headrace.config.parts_fit import not_seen_by
from headrace.controller.planning.plan import Plan
from headrace.engines.embedded.cache_plan import context_limit
from headrace.models.experts import experts_per_token
from headrace.models.loading import load_causal_lm
from headrace.runtime.process.site import Site
from headrace.training.frozen import FrozenScorer
from headrace.training.taking import scored
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightPublisher
from headrace.weights.shm import ShmPublisher
from headrace.weights.swap_check import check_tokens, make_check
from headrace.weights.version import INITIAL


@contextmanager
def plane_of(config: TrainConfig, folder: Path | None) -> Iterator[WeightPublisher]:
    """By which engines can take version 0; nothing is published yet. Servers that are attached to reach it as they
    reach a trainer's. `folder`: of the run, if there is one. Raises ConfigError where they cannot."""
    if not config.engine.attached:
        yield MemoryPublisher()
    elif config.transport == "disk":
        if folder is None and config.servers_beyond:
            raise ConfigError(not_seen_by(config.servers_beyond[0]))
        with tempfile.TemporaryDirectory(prefix="weights-", dir=None if folder is None else folder.absolute()) as made:
            yield DiskPublisher(made)
    else:
        site = Site(str(folder or ""))
        try:
            own = site.folder / "weights"
            own.mkdir(mode=0o700)
            yield ShmPublisher(own)
        finally:
            site.close()


def publish_first(plan: Plan, plane: WeightPublisher) -> None:
    """Version 0, with a swap check where others convert it. Blocking. Raises ConfigError, WeightError."""
    config = plan.config
    dtype = config.engine.dtype or config.model.dtype
    model = load_causal_lm(plan.weights, dtype=getattr(torch, dtype), device="cpu")
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    check = None
    if not isinstance(plane, MemoryPublisher):
        longest = context_limit(model.config, config.engine) - 1  # behind it one is sampled
        tokens = check_tokens(int(model.config.get_text_config().vocab_size), longest)
        routers_choose = experts_per_token(model.config) > 0
        score = partial(scored, FrozenScorer(model).logprobs)
        check = make_check(tokens, score, temperature=1.0, dtype=dtype, routers_choose=routers_choose)
    plane.send(plane.snapshot(INITIAL, tensors.items(), check))
