"""What `headrace inspect` prints for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.config.evaluation import PLAIN
from headrace.observe.glyphs import amount, bar, brief, curve, decimal, duration, percent, percents
from headrace.observe.metrics import ringing
from headrace.observe.run_record import RunRecord
from headrace.observe.shares import of_side, shares
from headrace.viewer.terminal.panels import status_style, why_failed

_CURVE_LINES = 6
_EVENTS_SHOWN = 5
_QUIET_EVENTS = ("swap",)
"""One for each batch: they would push out what happened seldom."""


def describe_run(run: RunRecord, summary: Mapping[str, Any], width: int) -> RenderableType:
    """`summary` as made from `run` by `build_summary`; at most `width` columns."""
    parts: list[RenderableType] = [_title(run), *why_failed(run.error), Text()]
    if run.batches:
        parts += [_curve(run, min(width, 100)), Text()]
    for alarm in ringing(run.so_far):
        parts += [Text.assemble(("ALARM ", "bold red"), alarm.words), Text()]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in _facts(run, summary):
        table.add_row(Text(name), Text(value))
    parts += [table, Text(), _staleness(summary), Text(), _time(run)]
    notable = [event for event in run.events if event.kind not in _QUIET_EVENTS][-_EVENTS_SHOWN:]
    if notable:
        parts.append(Text("\nlast events", "bold"))
    for event in notable:
        # What has lines of its own, as a whole config, is for machines.
        told = ", ".join(f"{key} {value}" for key, value in event.data.items() if "\n" not in str(value))
        parts.append(Text.assemble("  ", (event.kind, "cyan"), "  ", told))
    return Group(*parts)


def _title(run: RunRecord) -> Text:
    of = f" of {run.planned_batches}" if run.planned_batches else ""
    version = f"v{run.number}" if run.branch == 0 else f"v{run.number}~{run.branch}"
    return Text.assemble(
        (run.name, "bold"),
        "  ",
        (run.status, status_style(run.status)),
        f"  {version}{of}",
        ("  config ", "dim"),
        run.config_sha256[:12],
    )


def _curve(run: RunRecord, width: int) -> RenderableType:
    rewards = [batch.reward_mean for batch in run.batches]
    labels = [decimal(max(rewards), 3), *[""] * (_CURVE_LINES - 2), decimal(min(rewards), 3)]
    indent = max(map(len, labels))
    drawn = curve(rewards, max(width - indent - 1, 10), _CURVE_LINES, span=0)
    lines = [
        Text.assemble((label.rjust(indent), "dim"), " ", (line, "cyan"))
        for label, line in zip(labels, drawn, strict=True)
    ]
    return Group(Text("mean reward of each batch", "bold"), *lines)


def _facts(run: RunRecord, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    groups, samples, tokens = summary["groups"], summary["samples"], summary["tokens"]
    mismatch, drift = summary["mismatch"], summary["drift"]
    law = "" if run.counts.law_holds else f"  BROKEN: these add up to {run.counts.accounted}"
    reward = summary["reward"]
    recorded = run.config.rollouts_only
    done = "recorded" if recorded else "trained"
    kept = "all that was finished" if run.config.keeps_journal else "what is needed"
    facts = [
        ("ran", duration(summary["wall_s"])),
        (
            "reward",
            f"{decimal(reward['first'])} → {decimal(reward['last'])}"
            + (": nothing was trained; the first batches are of the answers that ended first" if recorded else ""),
        ),
        *(
            (f"  {name}", f"{decimal(term['first'])} → {decimal(term['last'])}")
            for name, term in reward["terms"].items()
        ),
        *_evaluations(summary["eval"]),
        *_best(summary["best"]),
        (
            "groups",
            f"{groups['issued']} issued = {groups['running']} running + {groups['ready']} ready + "
            f"{groups['trained']} {done} + {sum(groups['dropped'].values())} dropped{law}",
        ),
    ]
    if groups["dropped"]:
        facts.append(("dropped", _counted(groups["dropped"], groups["drop_words"])))
    facts.append(("samples", f"{samples['generated']} generated, {samples['trained']} {done}"))
    if reward["call_p50_s"] is not None:
        facts.append(("reward calls", f"p50 {brief(reward['call_p50_s'])}, p99 {brief(reward['call_p99_s'])}"))
    if samples["failed"]:
        facts.append(("failed samples", _counted(samples["failed"], samples["failure_words"])))
    facts += [
        (
            "tokens",
            f"{amount(tokens['generated'])} generated ({amount(tokens['generated_per_s'])}/s), "
            f"{amount(tokens['trained'])} trained ({amount(tokens['trained_per_s'])}/s)",
        ),
        ("too stale", percent(tokens["masked"] / max(tokens["masked"] + tokens["trained"], 1))),
        ("not padding", "-" if tokens["nonpad_share"] is None else f"{tokens['nonpad_share']:.1%}"),
        (
            "log-prob mismatch",
            f"{decimal(mismatch['mean_abs'], 5)} mean, {decimal(mismatch['max_abs'])} largest, on "
            f"{amount(mismatch['tokens'])} fresh tokens",
        ),
        ("log-prob drift", f"{decimal(drift['mean_abs'], 4)} mean, {decimal(drift['max_abs'])} largest"),
        ("journal", f"{amount(run.journal_bytes)}B on disk, {kept}"),
        ("seed", str(summary["seed"])),
    ]
    return facts


def _evaluations(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A line for each held-out set, and what holding the engine for them took."""
    sets = summary["sets"]
    if PLAIN in sets or not sets:
        yield "evaluation", f"{decimal(summary['before'])} → {decimal(summary['after'])}"
    for name, found in sets.items():
        told = [
            f"{metric} {decimal(each['value'])}" + ("" if each["stderr"] is None else f" ±{decimal(each['stderr'])}")
            for metric, each in found["metrics"].items()
        ]
        failed = f", {found['failed']} samples failed" if found["failed"] else ""
        if name != PLAIN:
            change = f"{decimal(found['before'])} → {decimal(found['after'])}"
            yield f"  {name}", f"{change}; v{found['version']}: {', '.join(told)}{failed}"
        elif len(told) > 1 or failed:
            yield "", f"v{found['version']}: {', '.join(told)}{failed}"
    if summary["seconds"]:
        behind = summary["versions_behind"]
        yield "evaluated for", f"{duration(summary['seconds'])}, at most {behind} versions behind at the end of one"


def _best(best: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if best["version"] is not None:
        where = best["checkpoint"] or "the model that it began from"
        yield "best", f"v{best['version']}, {best['metric']} {decimal(best['value'])}: {where}"


def _staleness(summary: Mapping[str, Any]) -> RenderableType:
    staleness = summary["staleness"]
    total = sum(staleness["histogram"].values())
    lines = [
        Text.assemble((f"{age:>4} ", "dim"), (bar(tokens / total, 40).ljust(40), "blue"), f" {percent(tokens / total)}")
        for age, tokens in staleness["histogram"].items()
        if total
    ]
    mean = decimal(staleness["mean"], 2)
    return Group(Text.assemble(("staleness of trained tokens", "bold"), f"  mean {mean}"), *lines)


def _time(run: RunRecord) -> RenderableType:
    """What the time of trainer and engines went to; of records that do not have it, how long they computed. And how
    busy each device was."""
    total = run.totals
    found = shares(total)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right")
    table.add_column(justify="right")
    for side in dict.fromkeys(share.side for share in found):
        parts = of_side(found, side)
        table.add_row(Text(f"time of the {side}", "bold"))
        for share, told in zip(parts, percents([part.share for part in parts]), strict=True):
            what = f"waits: {share.what}" if share.is_wait else share.what
            table.add_row(Text(f"  {what}"), f"{share.seconds:.1f} s", told)
    if not found:
        table.add_row(Text("time", "bold"))
        table.add_row(Text("  engines computed"), f"{total.generate_s:.1f} s", "")
        table.add_row(Text("  trainer computed"), f"{total.train_s:.1f} s", "")
    if total.device_s:
        table.add_row(Text("devices are busy", "bold"))
    for device, seconds in total.device_s.items():
        table.add_row(Text(f"  {device}"), f"{seconds:.1f} s", percent(seconds / total.elapsed_s))
    return table


def _counted(counts: Mapping[str, int], words: Mapping[str, str]) -> str:
    """A line for each name, with its words."""
    return "\n".join(
        f"{name} {count}" + (f", the last one: {words[name]}" if name in words else "")
        for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
