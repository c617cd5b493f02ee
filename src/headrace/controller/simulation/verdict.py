"""What must hold of a case of the fault matrix once it has ended, and which of its faults took effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from headrace.controller.simulation.cases import RULES, Case, case_of
from headrace.controller.simulation.simulated_run import FOLDER, Outcome
from headrace.experience.header import header_of
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group, Sample
from headrace.models.simulated import identities
from headrace.roles.actors.batch_stats import StalenessRule
from headrace.store import RunReader
from headrace.training.epochs import Epochs

FAULTS: dict[str, str] = {
    "worker": "rollout",
    "poison": "rollout",
    "late result": "rollout",
    "straggler": "rollout",
    "engine died": "engine",
    "swap failed": "engine",
    "swap lost": "engine",
    "swap late": "engine",
    "actor died": "actor",
    "actor lost a lease": "actor",
    "critic died": "critic",
    "critic lost a lease": "critic",
    "disk slow": "store",
    "disk full": "store",
    "sync failed": "store",
    "power cut": "store",
}
"""Each fault, and the role that has it."""
_ENDS = {
    "power cut": "power cut",
    "engine died": "EngineError: the engine died",
    "disk full": "DiskFull",
    "sync failed": "StoreError: cannot write",
}
"""How a life may end that does not finish, by the fault that ends it. (An engine ends one if it dies while the run
begins.)"""
_LONG = 5
"""A straggler: so many times as long as half of all answers."""


def tried(seed: int) -> tuple[str, Counter[str], list[str]]:
    """Of one case: its rule, the faults that took effect, and what is wrong."""
    case = case_of(seed)
    try:
        outcome = case.run()
    except Exception as error:  # Deadlock, Livelock, a limit that is passed: all of them fail the case
        return case.rule, Counter(), [f"{type(error).__name__}: {error}"]
    return case.rule, took_effect(outcome), wrongs(case, outcome)


def repeat(seed: int) -> str:
    """The command that repeats a case."""
    return f"python -m headrace.controller.simulation --seed {seed}"


def wrongs(case: Case, outcome: Outcome) -> list[str]:
    """What does not hold; empty if all is well."""
    return list(_wrongs(case, outcome, trained_groups(outcome)))


def took_effect(outcome: Outcome) -> Counter[str]:
    """Faults that took effect, each as often as it did."""
    took = Counter(outcome.took)
    lengths = [sample.response_tokens for _, group in trained_groups(outcome) for sample in group.samples]
    median = float(np.median(lengths)) if lengths else 0.0
    took["straggler"] = sum(length > _LONG * median for length in lengths)
    return +took


def trained_groups(outcome: Outcome) -> list[tuple[int, Group]]:
    """Each with the batch that it was trained in, as they are in the journal."""
    with RunReader(FOLDER, outcome.files) as reader:
        kept = [group for group in reader.journalled() if group.state == "trained"]
    # What it is due at last stands in the ledger: the run may have gone back since it was issued.
    found = [(group.batch, replace(decode_group(group.payload), deadline=group.deadline)) for group in kept]
    return sorted(found, key=lambda one: (one[0], one[1].key))


def table(rows: Mapping[str, Counter[str]]) -> str:
    """How often each fault took effect under each rule. `rows`: by rule."""
    lines = [f"{'fault':<20} {'role':<8}" + "".join(f"{rule:>8}" for rule in RULES)]
    for fault, role in FAULTS.items():
        lines.append(f"{fault:<20} {role:<8}" + "".join(f"{rows[rule][fault]:>8}" for rule in RULES))
    return "\n".join(lines)


def without_effect(rows: Mapping[str, Counter[str]]) -> list[str]:
    """Which fault never took effect under which rule."""
    return [f"{fault} under {rule}" for rule in RULES for fault in FAULTS if not rows[rule][fault]]


def _wrongs(case: Case, outcome: Outcome, trained: list[tuple[int, Group]]) -> Iterator[str]:
    yield from outcome.broken
    allowed = tuple(end for fault, end in _ENDS.items() if outcome.took.get(fault))
    for life in outcome.lives:
        if life.end != "finished" and not (allowed and life.end.startswith(allowed)):
            yield f"a life ended: {life.end}"
    if outcome.status != "finished":
        yield f"the run ended: {outcome.status}"
        return
    if len(took := took_effect(outcome)) < 2:
        yield f"only {dict(took)} took effect"
    if outcome.refs_left:
        yield f"{outcome.refs_left} refs were not freed"
    yield from _wrong_counts(case, outcome, trained)
    yield from _wrong_states(case, outcome, trained)
    for batch, group in trained:
        yield from _wrong_tokens(case, batch, group)


def _wrong_counts(case: Case, outcome: Outcome, trained: list[tuple[int, Group]]) -> Iterator[str]:
    counts, rollout = outcome.counts, case.config.rollout
    if not counts.law_holds or counts.running or counts.ready or counts.trained != len(trained):
        yield f"the ledger has {counts}, the journal {len(trained)} trained groups"
    prompts = Counter((group.key.epoch, group.key.position) for _, group in trained)
    if twice := [prompt for prompt, count in prompts.items() if count > 1]:
        yield f"prompts {twice} were trained twice"
    batches = case.config.trainer.batches or 0
    if (told := [batch.batch for batch in outcome.record.batches]) != list(range(batches)):
        yield f"the record has batches {told}"
    if Counter(batch for batch, _ in trained) != dict.fromkeys(range(batches), rollout.prompts_per_batch):
        yield f"batches have {dict(Counter(batch for batch, _ in trained))} groups"
    stalest = max((age for batch in outcome.record.batches for age in batch.staleness), default=0)
    if case.rule != "late" and stalest > case.config.async_.staleness_bound:
        yield f"the record has a staleness of {stalest}"


def _wrong_states(case: Case, outcome: Outcome, trained: list[tuple[int, Group]]) -> Iterator[str]:
    """Each sample was trained once in each epoch, by both; but for the actor's steps of which all is masked."""
    starts = np.zeros(1, np.intp)
    for name, state, samples in (
        ("actor", outcome.state, _stepped(case, trained)),
        ("critic", outcome.critic, case.config.algorithm.epochs_per_batch * _samples(trained)),
    ):
        tally = sum(int(identities(one.tokens, np.arange(len(one)), starts)[0]) for one in samples)
        if state is not None and (state.tally, state.passes) != (tally % 2**64, len(samples)):
            yield f"the {name} was trained on {state.passes} samples in all epochs, and not on each of {len(samples)}"


def _samples(trained: Sequence[tuple[int, Group]]) -> list[Sample]:
    return [sample for _, group in trained for sample in group.trainable]


def _stepped(case: Case, trained: list[tuple[int, Group]]) -> list[Sample]:
    """Of all steps of the actor, the samples."""
    config = case.config
    epochs = Epochs(config.algorithm.epochs_per_batch, config.algorithm.updates_per_batch, case.seed)
    masks = case.rule == "mask"
    rule = StalenessRule(config.async_.staleness_bound, masks, allows_late=not masks)
    found: list[Sample] = []
    for batch, those in groupby(trained, key=lambda one: one[0]):
        groups = [*those]
        samples = _samples(groups)
        counts = [bool(rule.trained(one, batch)) for _, group in groups for one in header_of(group).trainable]
        for epoch in range(epochs.count):
            for share in epochs.shares(len(samples), batch, epoch):
                found += [samples[place] for place in share] if any(counts[place] for place in share) else []
    return found


def _wrong_tokens(case: Case, batch: int, group: Group) -> Iterator[str]:
    eta = case.config.async_.staleness_bound
    versions = [sample.versions[sample.loss_mask] for sample in group.samples if sample.loss_mask.any()]
    begun = group.deadline - eta
    oldest = min((int(one.min()) for one in versions), default=begun)
    if oldest < begun:
        yield f"group {group.key} is due at {group.deadline} and has tokens of {oldest}"
    if case.rule in ("wait", "drop") and batch - oldest > eta:
        yield f"group {group.key} was trained in batch {batch}, with tokens of {oldest}"
    if case.rule == "wait" and batch > group.deadline:
        yield f"group {group.key} was due at {group.deadline} and trained in batch {batch}"
