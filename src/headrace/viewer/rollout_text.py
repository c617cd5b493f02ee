"""Rollouts for people at a terminal, and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.text import Text

from headrace.experience.records.rollout_codec import RolloutDetail, decode_detail
from headrace.experience.sample import EVALUATION_EPOCH
from headrace.observe.untrusted import visible
from headrace.store.rollouts import Rollout

_STYLES = {"completed": "green", "truncated": "yellow", "failed": "red", "dropped": "magenta", "aborted": "dim"}


def as_text(rollout: Rollout) -> Text:
    """Several lines. Nothing that a model wrote is taken for markup or for a terminal's commands."""
    detail = decode_detail(rollout.data)
    epoch, position, attempt = rollout.key
    parts: list[Any] = [
        (f"batch {rollout.batch}", "bold"),
        f"  prompt {visible(rollout.prompt_id)}",
        ("  evaluation" if epoch == EVALUATION_EPOCH else f"  group {epoch}/{position}#{attempt}", "dim"),
        (f" episode {rollout.episode}", "dim"),
        (f".{rollout.sample}" if rollout.sample else "", "dim"),
        "\n  ",
        (rollout.status, _STYLES.get(rollout.status, "")),
        *([f": {visible(rollout.reason)}"] if rollout.reason else []),
    ]
    for name, value in _numbers(rollout, detail):
        parts.append(f"  {name} {value}")
    for name, term in detail.terms.items():
        parts.append((f"\n  term {visible(name)} {term:.4g}", "dim"))
    if detail.metadata:
        parts.append((f"\n  {visible(', '.join(metadata_words(detail)))}", "dim"))
    for turn in rollout.turns:
        mark, style = ("<", "") if turn.by_policy else (">", "cyan")
        lines = visible(turn.text).split("\n")
        parts += [(f"\n  {mark if number == 0 else ' '} {line}", style) for number, line in enumerate(lines)]
    return Text.assemble(*parts)


def as_json(rollout: Rollout) -> dict[str, Any]:
    """One line of `--json`; numbers as they were recorded, arrays by token."""
    detail = decode_detail(rollout.data)
    return {
        "batch": rollout.batch,
        "at": rollout.at or None,
        "prompt_id": rollout.prompt_id,
        "group": list(rollout.key),
        "episode": rollout.episode,
        "sample": rollout.sample,
        "status": rollout.status,
        "reason": rollout.reason,
        "reward": rollout.reward,
        "terms": dict(detail.terms),
        "metadata": dict(detail.metadata),
        "advantage": rollout.advantage,
        "staleness": rollout.staleness,
        "response_tokens": rollout.tokens,
        "turns": [{"by": "policy" if turn.by_policy else "given", "text": turn.text} for turn in rollout.turns],
        "tokens": detail.tokens.tolist(),
        "loss_mask": detail.loss_mask.tolist(),
        "logprobs": [round(value, 6) for value in detail.logprobs.tolist()],
        "versions": detail.versions.tolist(),
        "trained": _listed(detail.trained),
        "advantages": _listed(detail.advantages),
        "trainer_logprobs": _listed(detail.trainer_logprobs),
        "temperatures": _listed(detail.temperatures),
    }


def metadata_words(detail: RolloutDetail) -> list[str]:
    """Each name with its value, which is JSON."""
    return [f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in detail.metadata.items()]


def gap(detail: RolloutDetail) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    """[T]: the trainer's log-prob minus the engine's, 0 where nothing entered the loss; None where it is not known."""
    if detail.trainer_logprobs is None or detail.trained is None:
        return None
    return np.where(detail.trained, detail.trainer_logprobs - detail.logprobs, np.float32(0.0))


def _numbers(rollout: Rollout, detail: RolloutDetail) -> Iterator[tuple[str, str]]:
    if rollout.reward is not None:
        yield "reward", f"{rollout.reward:.4g}"
    if rollout.advantage is not None:
        yield "advantage", f"{rollout.advantage:+.3g}"
    yield "tokens", str(rollout.tokens)
    versions = detail.versions[detail.loss_mask]
    if len(versions):
        first, last = int(versions.min()), int(versions.max())
        yield ("version", f"v{first}") if first == last else ("versions", f"v{first} to v{last}")
    if rollout.staleness is not None:
        yield "staleness", str(rollout.staleness)
    gaps = gap(detail)
    if gaps is not None and detail.trained is not None and detail.trained.any():
        yield "gap", f"{float(np.abs(gaps[detail.trained]).mean()):.2g}"


def _listed(values: np.ndarray[Any, Any] | None) -> list[Any] | None:
    if values is None:
        return None
    return values.tolist() if values.dtype == np.bool_ else [round(value, 6) for value in values.tolist()]
