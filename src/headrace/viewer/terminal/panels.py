"""The parts of the live view: each a pure function from a snapshot to something that rich can print."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from headrace.observe.glyphs import amount, bar, brief, by_name, curve, decimal, duration, near_zero, percent, percents
from headrace.observe.record import no_step
from headrace.observe.run_record import by_set
from headrace.observe.shares import at_most, of_side
from headrace.observe.spent import OTHER
from headrace.viewer.terminal.snapshot import Snapshot

_WIDEST_NAME = 14
"""Of a number; a reward's term can have any name."""
_SAMPLE_FAILED = "failed_sample"
_STATUS_STYLES = {"running": "green", "finished": "bold green", "stopped": "yellow", "failed": "bold red"}


def status_style(status: str) -> str:
    return _STATUS_STYLES.get(status, "bold red")


def why_failed(error: str | None) -> list[Text]:
    """A line of `inspect`, of a run that did."""
    return [] if error is None else [Text.assemble(("failed: ", "bold red"), error)]


def header(snapshot: Snapshot, width: int) -> Panel:
    progress, done = snapshot.progress, len(snapshot.batches)
    of = f"{done}/{snapshot.planned_batches}" if snapshot.planned_batches else str(done)
    line = Text.assemble(("batch ", "dim"), (of, "bold"))
    if progress is not None:
        tail = Text.assemble("  ", (percent(progress), "bold"), ("  ETA ", "dim"), (duration(snapshot.eta_s), "bold"))
        cells = max(width - 4 - line.cell_len - tail.cell_len - 2, 4)
        filled = round(progress * cells)
        line.append("  ").append("━" * filled, "cyan").append("━" * (cells - filled), "grey37").append_text(tail)
    facts = Text.assemble(("version ", "dim"), snapshot.version, ("   elapsed ", "dim"), duration(snapshot.elapsed_s))
    last = snapshot.last
    if last is not None:
        facts.append("   batch ", "dim").append(f"{last.step_s:.2f} s")
        if (why := no_step(last)) is not None:
            facts.append("   policy unchanged: ", "dim").append(why)
        else:
            facts.append("   loss ", "dim").append(near_zero(last.loss))
            facts.append("   grad norm ", "dim").append(decimal(last.grad_norm, 2), "red" if last.skipped else "")
    title = Text.assemble(("headrace", "bold"), " · ", snapshot.name)
    return panel(line, facts, title=title, corner=Text(snapshot.status, status_style(snapshot.status)))


def reward(snapshot: Snapshot, width: int, height: int) -> Panel:
    """The curve of mean rewards over the run, its range in the lower border, and evaluations under it."""
    rewards = [batch.reward_mean for batch in snapshot.batches]
    drawn = curve(rewards, width - 4, height - 3, snapshot.planned_batches or 0)
    sets = by_set(evaluation for evaluation in snapshot.evaluations if evaluation.score is not None)
    footer = Text() if sets else Text.assemble(("eval ", "dim"), "-")
    for scored in sets.values():
        first, last = scored[0], scored[-1]
        footer.append("  " if footer.plain else "").append(f"{last.label} ", "dim")
        footer.append(f"v{first.number} " if len(sets) == 1 else "").append(decimal(first.score), "bold")
        if last is not first:
            footer.append(f" → v{last.number} " if len(sets) == 1 else "→")
            footer.append(decimal(last.score), "bold green")
    return panel(
        *(Text(line, "cyan") for line in drawn),
        footer,
        title=Text.assemble("reward ", (decimal(rewards[-1] if rewards else None), "bold cyan")),
        corner=Text(f"{decimal(min(rewards), 2)} … {decimal(max(rewards), 2)}", "dim") if rewards else None,
    )


def speed(snapshot: Snapshot, height: int) -> Panel:
    """Tokens per second first; of the rest as much as there is room for."""
    last = snapshot.last
    # On one that left the policy as it is there is nothing to measure.
    stepped = last if last is not None and no_step(last) is None else None
    kept, sent = [], []
    if last is not None and last.kept_mass is not None:
        kept.append(("kept mass", decimal(last.kept_mass), "on what top-p and top-k keep"))
    if snapshot.carried is not None:
        way = snapshot.carried.data
        sent.append(("sent", amount(way["bytes_per_s"]), f"B/s, new weights, {way['transport']}"))
    rows = [
        ("generated", amount(snapshot.generated_per_s), "tok/s"),
        ("trained", amount(snapshot.trained_per_s), "tok/s"),
        ("response", decimal(last.response_tokens_mean, 1) if last else "-", "tokens, mean"),
        *((name, decimal(value), "reward term, mean") for name, value in (last.reward_terms if last else {}).items()),
        *(
            (name, decimal(value), "reward of its prompts")
            for name, value in (last.reward_sources if last else {}).items()
        ),
        ("scoring", brief(snapshot.reward_call_p50_s), f"p50; p99 {brief(snapshot.reward_call_p99_s)}"),
        *kept,
        ("mismatch", decimal(snapshot.mismatch, 4), "engine to trainer"),
        ("drift", decimal(stepped.drift_mean_abs, 4) if stepped else "-", "since sampled"),
        ("clipped", percent(stepped.clip_fraction) if stepped else "-", "of tokens"),
        ("swaps", brief(snapshot.swap_stall_s), "engines stalled, in all"),
        *sent,
        ("weights", decimal(stepped.behavior_weight_mean, 2) if stepped else "-", "proximal / behaviour, mean"),
        ("KL", decimal(stepped.approx_kl, 4) if stepped else "-", "behaviour to current"),
        ("entropy", decimal(last.entropy) if last else "-", "nats, mean"),
        ("lr", f"{last.lr:.2g}" if last else "-", ""),
    ]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, max_width=_WIDEST_NAME)
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    for row in rows[: height - 2]:
        table.add_row(*row)
    return panel(table, title=Text("speed"), height=height)


def staleness(snapshot: Snapshot, width: int, height: int) -> Panel:
    """Share of trained tokens by staleness; what does not fit is gathered in the last line."""
    rows = height - 3
    total = sum(snapshot.staleness.values())
    values = sorted(snapshot.staleness)
    shown = values if len(values) <= rows else values[: rows - 1]
    lines = [(str(value), snapshot.staleness[value], value > snapshot.max_staleness) for value in shown]
    if len(shown) < len(values):
        rest = values[rows - 1 :]
        lines.append((f"≥{rest[0]}", sum(snapshot.staleness[v] for v in rest), rest[-1] > snapshot.max_staleness))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True, width=max(width - 15, 4))
    table.add_column(justify="right", no_wrap=True, width=4)
    for name, tokens, beyond in lines:
        share = tokens / total if total else 0.0
        table.add_row(name, Text(bar(share, max(width - 15, 4)), "red" if beyond else "blue"), percent(share))
    for _ in range(rows - len(lines)):
        table.add_row("", "", "")
    out = Text.assemble(("left out ", "dim"), amount(snapshot.masked_tokens))
    out.append("  late groups ", "dim").append(str(snapshot.late_groups))
    if snapshot.lost_branch_tokens:
        out.append("  lost ", "dim").append(amount(snapshot.lost_branch_tokens))
    return panel(table, out, title=Text(f"tokens by staleness, η = {snapshot.max_staleness}"))


def times(snapshot: Snapshot, width: int, height: int) -> Panel:
    """What the trainer's and the engines' time went to lately. What there is no room for is part of `other`."""
    shown = at_most(snapshot.shares, height - 2)
    cells = max((width - 20) // 5, 4)
    widths = (max((len(share.side) for share in shown), default=0), cells, 4)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, width=widths[0])
    table.add_column(no_wrap=True, width=widths[1])
    table.add_column(justify="right", no_wrap=True, width=widths[2])
    # With a space after each, and within the borders.
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(width - 4 - sum(widths) - 4, 8))
    for side in dict.fromkeys(share.side for share in shown):
        parts = of_side(shown, side)
        for place, (share, told) in enumerate(zip(parts, percents([part.share for part in parts]), strict=True)):
            style = "yellow" if share.is_wait else "grey37" if share.what == OTHER else "green"
            what = Text.assemble(("waits: ", "dim"), share.what) if share.is_wait else Text(share.what, "dim")
            table.add_row("" if place else side, Text(bar(share.share, cells), style), told, what)
    return panel(table, title=Text("where the time goes"), height=height)


def groups(snapshot: Snapshot, width: int, troubles: Sequence[Text] = ()) -> Panel:
    """The queue between generation and training, against the most that it may hold; what was lost, and why."""
    cells = max(width // 5, 8)
    most = snapshot.most_groups or max(snapshot.running + snapshot.ready, 1)
    running = round(min(snapshot.running / most, 1.0) * cells)
    ready = round(min(snapshot.ready / most, 1.0) * cells)
    ready = min(max(ready, int(snapshot.ready > 0)), cells - running)
    queue = Text.assemble(("━" * ready, "green"), ("━" * running, "blue"), ("━" * (cells - ready - running), "grey37"))
    queue.append("  ready ", "dim").append(str(snapshot.ready), "bold green")
    queue.append("  running ", "dim").append(str(snapshot.running), "bold blue")
    if snapshot.most_groups is not None and snapshot.running + snapshot.ready <= snapshot.most_groups:
        # A restore may bring back more.
        queue.append(f"  of {snapshot.most_groups}", "dim")
    queue.append("   recorded " if snapshot.only_recorded else "   trained ", "dim").append(
        str(snapshot.trained), "bold"
    )
    lost = Text.assemble(("failed samples ", "dim"), (_by_reason(snapshot.failed), "red" if snapshot.failed else ""))
    lost.append("   dropped ", "dim").append(_by_reason(snapshot.dropped))
    return panel(queue, lost, *troubles, title=Text("groups"))


def troubles(snapshot: Snapshot, width: int, most: int, most_alarms: int) -> list[Text]:
    """Lines of `groups`: alarms, why the last sample failed, and the last event that tells of trouble, where there is
    one; each on `most` lines at most."""
    of_samples = [event for event in snapshot.troubles if event.kind == _SAMPLE_FAILED]
    others = [event for event in snapshot.troubles if event.kind != _SAMPLE_FAILED]
    failure = snapshot.last_failure or (of_samples[-1].data["message"] if of_samples else None)
    told = [("ALARM ", alarm.words, "bold red") for alarm in snapshot.alarms[:most_alarms]]
    if failure is not None:
        told.append(("last failure ", str(failure), "red"))
    if others:
        told.append((f"{others[-1].kind} ", str(others[-1].data["message"]), "yellow"))
    return [line for name, words, style in told for line in _lines(name, words, style, width - 4, most)]


def _lines(name: str, words: str, style: str, width: int, most: int) -> list[Text]:
    """What there is no room for is left for the last of them."""
    lines = textwrap.wrap(words, width, initial_indent=name, break_on_hyphens=False)
    first, *others = [*lines[: most - 1], " ".join(lines[most - 1 :])]
    return [
        Text.assemble((name, "dim"), (first.removeprefix(name), style)),
        *(Text(line, style) for line in others if line),
    ]


def _by_reason(counted: dict[str, int]) -> str:
    total = sum(counted.values())
    if not total:
        return "0"
    return f"{total} ({by_name(counted)})"


def panel(*lines: RenderableType, title: Text, height: int | None = None, corner: Text | None = None) -> Panel:
    """`corner` stands in the lower border, on the right."""
    # The border is dim, and would dim a title without a style of its own.
    title.stylize_before("not dim default")
    for line in lines:
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "ellipsis"
    return Panel(
        Group(*lines),
        title=title,
        title_align="left",
        subtitle=corner,
        subtitle_align="right",
        height=height,
        box=box.ROUNDED,
        border_style="grey42",
    )
