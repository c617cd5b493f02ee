"""What `--resume` may change, and why that is safe; and why nothing else may."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Safe:
    why: str
    decides: bool = False
    """Whether it decides the run's result, and so is part of `config_sha256`."""


_PLACE = Safe("where and how fast it runs, not what it computes")
_SIZE = Safe("how much is computed together: equal within rounding")
_PATIENCE = Safe("how long it waits before it gives up")
_ASIDE = Safe("beside training: no weight depends on it")
_LENGTH = Safe("where the run ends: its prompts and batches go on from where they are", decides=True)
_RATE = Safe("each optimiser step works its rate out anew, from its number and the config", decides=True)

SAFE: dict[str, Safe] = {
    "runtime": _PLACE,
    "cluster": _PLACE,
    "weights": _PLACE,
    "track": _ASIDE,
    "record": _ASIDE,
    "checkpoint": _ASIDE,
    "evaluation": _ASIDE,
    "data.eval": Safe(_ASIDE.why, decides=True),
    "model.gradient_checkpointing": _PLACE,
    "engine.max_concurrent_sequences": _SIZE,
    "engine.kv_cache_gib": _SIZE,
    "engine.prefill_tokens_per_step": _SIZE,
    "engine.replicas": _SIZE,
    "engine.lent": _SIZE,
    "engine.kind": _PLACE,
    "engine.python": _PLACE,
    "engine.url": _PLACE,
    "engine.token_env": _PLACE,
    "engine.admin_token_env": _PLACE,
    "engine.args": _PLACE,
    "engine.start_deadline_s": _PATIENCE,
    "engine.spread": _PLACE,
    "engine.process": _PLACE,
    "engine.return_deadline_s": _PATIENCE,
    **{f"{who}.placement": _PLACE for who in ("trainer", "critic", "teacher", "reward.model", "functions")},
    **{f"{who}.layout": _SIZE for who in ("trainer", "critic", "reference", "proximal", "teacher", "reward.model")},
    **{f"{who}.optimizer.offload": _SIZE for who in ("trainer", "critic")},
    "trainer.backend": _SIZE,
    **{f"{who}.max_tokens_per_microbatch": _SIZE for who in ("trainer", "critic", "reference", "proximal", "teacher")},
    "reward.model.max_tokens_per_microbatch": _SIZE,
    **{
        f"reward.{judge}.{key}": safe
        for judge in ("judge", "terms.*.judge")
        for key, safe in (
            ("timeout_s", _PATIENCE),
            ("engine.max_concurrent_sequences", _SIZE),
            ("engine.kv_cache_gib", _SIZE),
            ("engine.prefill_tokens_per_step", _SIZE),
        )
    },
    "reward.workers": _PLACE,
    "reward.timeout_s": _PATIENCE,
    "rollout.max_drops_per_batch": _PATIENCE,
    "gateway.max_concurrent_requests": _PATIENCE,
    "gateway.max_body_mib": _PATIENCE,
    "rollout.workers": _PLACE,
    "rollout.agent.host": _PLACE,
    "rollout.agent.port": _PLACE,
    "rollout.agent.token_env": _PLACE,
    "rollout.block_timeout_s": _PATIENCE,
    "rollout.episode_timeout_s": Safe(_PATIENCE.why, decides=True),
    "async.table_gib": Safe("it only holds starts back; groups that are live keep their deadlines"),
    "async.ahead": Safe("it only holds starts back; groups that are live keep their deadlines", decides=True),
    "trainer.batches": _LENGTH,
    "trainer.epochs": _LENGTH,
    "trainer.optimizer.lr": _RATE,
    "trainer.lr_schedule": _RATE,
    "critic.optimizer.lr": _RATE,
    "critic.lr_schedule": _RATE,
}
"""By key, or by the section that a key is in; `*` is any place in a list."""

ALIKE: dict[str, tuple[str, ...]] = {f"{who}.placement": ("own", "process") for who in ("reference", "proximal")}
"""Of keys that are not safe, values that say where it runs alone."""

LENGTHS = tuple(key for key, safe in SAFE.items() if safe is _LENGTH)
"""Keys that say how long a run is, and nothing else."""

_PROMISED = "groups that are live were promised a deadline by it"
_COUNTED = "the ledger counts prompts by their place in this data"
_TRAINED = "the batches so far were trained by it"
_NOT_SAFE: dict[str, str] = {
    "seed": "the order of the prompts and the noise of every token follow from it",
    "data": _COUNTED,
    "async.swap": "tokens in flight were promised how they outlive a swap",
    "async": _PROMISED,
    "rollout.prompts_per_batch": "deadlines count batches of this size",
    "rollout.max_attempts": "prompts that were handed back were promised so many attempts",
    "rollout": "the groups so far were drawn by it",
    "gateway": "the groups so far were played through it",
    "reward": "the groups so far were scored by it",
    "engine": "the groups so far were sampled by it",
    "model": "what was trained is this model",
    "from": "it is what the run began from",
    "rollouts_only": "a run either trains or only records",
}
"""By key or section; the longest that fits."""


def is_safe(key: str) -> bool:
    """Whether a resumed run may change `key`, a dotted one of a single value."""
    return _found(key) is not None


def is_safe_change(key: str, was: object, now: object) -> bool:
    """Whether a resumed run may change `key` so."""
    alike = ALIKE.get(key, ())
    return is_safe(key) or (was in alike and now in alike)


def plainest(key: str, value: object) -> object:
    """Of the values of `key` that are alike the first; else `value` itself."""
    alike = ALIKE.get(key, ())
    return alike[0] if value in alike else value


def is_operational(key: str) -> bool:
    """Whether `key` decides no run's result. A section is, if all of it is."""
    safe = _found(key)
    return safe is not None and not safe.decides


def why_not(key: str) -> str:
    """Why a resumed run may not change `key`."""
    parts = key.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((_NOT_SAFE[name] for name in names if name in _NOT_SAFE), _TRAINED)


@lru_cache(maxsize=4096)
def _found(key: str) -> Safe | None:
    return next((safe for name, safe in SAFE.items() if _is_in(key, name)), None)


def _is_in(key: str, name: str) -> bool:
    parts, names = key.split("."), name.split(".")
    return len(parts) >= len(names) and all(
        fnmatchcase(part, pattern) for part, pattern in zip(parts, names, strict=False)
    )
