"""Rollouts as one self-contained page: every token, group beside group.

What a model wrote is data in it: JSON in which no tag can end, read by a script that makes text of it and nothing else.
A policy in the page forbids every other script, and every address. Characters that would turn the text around, or have
no glyph, are shown by name; each word of others is a piece of its own, whichever way it is written.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from headrace.experience.records.rollout_codec import decode_detail
from headrace.experience.sample import EVALUATION_EPOCH
from headrace.observe.untrusted import visible
from headrace.store import RunReader
from headrace.store.errors import write_failed
from headrace.store.rollouts import Rollout
from headrace.viewer.html import json_element, policy
from headrace.viewer.rollout_text import gap, metadata_words
from headrace.viewer.token_text import TokenTexts

_DIGITS = 3


def write_page(file: Path, run: Path, rollouts: Sequence[Rollout]) -> None:
    """`run`: the folder that they are of. Raises StoreError where the file cannot be written."""
    with RunReader(run) as reader:
        texts = TokenTexts.of_run(run, reader.config_yaml)
    drawn = page(run.resolve().name, rollouts, texts)
    try:
        file.write_text(drawn, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise write_failed(error, file) from error


def page(name: str, rollouts: Sequence[Rollout], texts: TokenTexts) -> str:
    """Groups stand in the order of their first sample."""
    style, script = (_asset(f"rollouts.{kind}") for kind in ("css", "js"))
    groups: dict[tuple[int, int, int], list[tuple[int, Rollout]]] = {}
    for number, rollout in enumerate(rollouts):
        groups.setdefault(rollout.key, []).append((number, rollout))
    body = "".join(_group(members) for members in groups.values())
    data = "".join(_data(number, rollout, texts) for number, rollout in enumerate(rollouts))
    title = _shown(f"{name}: {len(rollouts)} rollouts")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy(script=script, style=style)}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title><style>{style}</style></head><body>'
        f"<header><h1>{title}</h1><label>colour by "
        '<select id="by"><option>version<option>gap<option>advantage<option>mask</select></label>'
        '<span id="legend"></span></header><noscript>Tokens are shown by a script of this page.</noscript>\n'
        f"{body}{data}<script>{script}</script></body></html>\n"
    )


def _group(members: Sequence[tuple[int, Rollout]]) -> str:
    first = members[0][1]
    epoch, position, attempt = first.key
    group = "evaluation" if epoch == EVALUATION_EPOCH else f"group {epoch}/{position}#{attempt}"
    heading = f"batch {first.batch}, prompt <bdi>{_shown(first.prompt_id)}</bdi>, {group}"
    prompt = first.turns[0].text if first.turns and not first.turns[0].by_policy else ""
    cards = "".join(
        f'<article class="{html.escape(rollout.status)}" data-id="s{number}"><p>{_facts(rollout)}</p>'
        "<pre></pre></article>"
        for number, rollout in members
    )
    return (
        f'<section><h2>{heading}</h2><pre class="prompt given">{_shown(prompt)}</pre>'
        f'<div class="group">{cards}</div></section>\n'
    )


def _facts(rollout: Rollout) -> str:
    facts = [f"<b>{html.escape(rollout.status)}</b>"]
    if rollout.reason is not None:
        facts.append(f"<bdi>{_shown(rollout.reason)}</bdi>")
    if rollout.reward is not None:
        facts.append(f"reward <b>{rollout.reward:.4g}</b>")
    detail = decode_detail(rollout.data)
    facts += [f"term <bdi>{_shown(name)}</bdi> {value:.4g}" for name, value in detail.terms.items()]
    if rollout.advantage is not None:
        facts.append(f"advantage {rollout.advantage:+.3g}")
    facts.append(f"{rollout.tokens} tokens")
    if rollout.staleness is not None:
        facts.append(f"staleness {rollout.staleness}")
    facts += [f"<bdi>{_shown(words)}</bdi>" for words in metadata_words(detail)]
    return " · ".join(facts)


def _shown(text: str) -> str:
    return html.escape(visible(text))


def _data(number: int, rollout: Rollout, texts: TokenTexts) -> str:
    """A sample's tokens as JSON in an element that nothing runs."""
    detail = decode_detail(rollout.data)
    pieces = [visible(piece) for piece in texts.pieces(detail.tokens)]
    trained = detail.trained if detail.trained is not None else np.zeros_like(detail.loss_mask)
    gaps = gap(detail)
    chosen = np.flatnonzero(detail.loss_mask)
    sample: dict[str, Any] = {
        "text": "".join(pieces),
        "lengths": [_units(piece) for piece in pieces],
        "mask": "".join(map(str, (detail.loss_mask.astype(int) + trained.astype(int)).tolist())),
        "versions": _runs(detail.versions.tolist()),
        "gap": None if gaps is None else [_rounded(value) for value in gaps.tolist()],
        "advantage": None
        if detail.advantages is None
        else _runs([_rounded(value) for value in detail.advantages.tolist()]),
        "skip": int(chosen[0]) if len(chosen) else len(pieces),
    }
    return f"{json_element(f's{number}', sample)}\n"


def _units(text: str) -> int:
    """Its length as JavaScript counts it: UTF-16."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _rounded(value: float) -> float | None:
    """None for what is not finite, which JSON has no word for."""
    return round(value, _DIGITS) if math.isfinite(value) else None


def _runs(values: Sequence[float | None]) -> list[list[float | None]]:
    return [[value, len(list(part))] for value, part in groupby(values)]


def _asset(name: str) -> str:
    return (files("headrace.viewer") / "page" / name).read_text(encoding="utf-8")
