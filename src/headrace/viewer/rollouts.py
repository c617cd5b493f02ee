"""All rollouts that can still be read of a run: those that its record keeps, and what is in its journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from headrace.experience.records.codec import CodecError, decode_group
from headrace.experience.records.rollouts import rollout_of
from headrace.store import RunDamaged, RunReader
from headrace.store.rollouts import DROPPED, Query, Rollout, RolloutsReader
from headrace.viewer.token_text import TokenTexts

logger = logging.getLogger(__name__)


def find(path: Path, query: Query) -> list[Rollout]:
    """Those of the run in `path` that `query` asks for, in its order.

    A record of rollouts that is damaged costs a warning. Raises RunMissing, RunDamaged, and StoreError for a pattern
    that is none.
    """
    pattern = query.compiled()
    with RunReader(path) as run:
        kept: list[Rollout] = []
        if RolloutsReader.exists(path):
            try:
                with RolloutsReader(path) as reader:
                    kept = reader.read(query)
            except RunDamaged as error:
                logger.warning("%s; what the journal still holds is shown", error)
        found = {_place(rollout): rollout for rollout in kept}
        for rollout in _journalled(run, query):
            if query.holds(rollout, pattern):
                found.setdefault(_place(rollout), rollout)
    return query.sorted(found.values())


def _journalled(run: RunReader, query: Query) -> Iterator[Rollout]:
    """Samples of finished groups whose segment is still there: all since the last checkpoint, and some from before.

    One that was not trained on yet counts as of the last batch that may train it, and has no time.
    """
    texts: TokenTexts | None = None
    for journalled in run.journalled(query.first_batch, query.last_batch):
        try:
            group = decode_group(journalled.payload)
        except CodecError as error:
            logger.warning("a group of the journal cannot be read: %s", error)
            continue
        texts = texts or TokenTexts.of_run(run.path, run.config_yaml)
        dropped = journalled.reason if journalled.state == DROPPED else None
        for sample in group.samples:
            yield rollout_of(group.prompt_id, sample, texts.decode, batch=journalled.batch, at=0.0, dropped=dropped)


def _place(rollout: Rollout) -> tuple[object, ...]:
    return (*rollout.key, rollout.episode, rollout.sample)
