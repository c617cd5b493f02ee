"""What was measured, in words: for the plain lines, the live view and `inspect` alike."""

from __future__ import annotations

from headrace.observe.glyphs import decimal, near_zero, percent
from headrace.observe.offline.record import HeldOutRows, Measured


def facts(measured: Measured) -> list[tuple[str, str]]:
    """(name, value); of what was measured only."""
    found = [("loss", near_zero(measured.loss, 4))]
    if measured.accuracy is not None:
        found.append(("accuracy", percent(measured.accuracy)))
    if measured.margin is not None:
        found.append(("margin", decimal(measured.margin)))
    if measured.chosen_reward is not None:
        found.append(("chosen / rejected", f"{decimal(measured.chosen_reward)} / {decimal(measured.rejected_reward)}"))
    if measured.chosen_logprob is not None:
        policy = f"{decimal(measured.chosen_logprob, 2)} / {decimal(measured.rejected_logprob, 2)}"
        reference = (
            f"{decimal(measured.reference_chosen_logprob, 2)} / {decimal(measured.reference_rejected_logprob, 2)}"
        )
        found += [("log-probs", policy), ("reference", reference)]
    return found


def held_out_line(kind: str, found: HeldOutRows) -> str:
    """As `sft step 20: held out loss 0.5  accuracy 80%  (64 rows)`."""
    told = "  ".join(f"{name} {value}" for name, value in facts(found.measured))
    return f"{kind} step {found.step}: held out {told}  ({found.rows} rows)"
