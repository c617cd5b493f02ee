"""The engine's gap to the trainer, apart from the drift of old tokens, in whole runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from controller_jobs import make_job

from headrace.cli.main import main
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import EngineError, GenerateRequest, TokenChunk
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group
from headrace.observe.run_record import RunWatcher
from headrace.roles.actors import gap_sample
from headrace.runtime import supervision
from headrace.store import RunReader, RunStore

OF_A_GAP_SAMPLE = "2147483646/"
"""Begins the ids of its requests."""


def train(job: Path, folder: Path, *overrides: str) -> dict:
    assert main(["train", str(job), *overrides, "--dir", str(folder), "--plain"]) == 0
    return json.loads((folder / "summary.json").read_text())


def versions_asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the number of the version that each gap sample is asked of."""
    asked: list[int] = []
    real = gap_sample.GapSampler._sample

    async def seen(self, position, version, place):  # type: ignore[no-untyped-def]
        asked.append(version.number)
        return await real(self, position, version, place)

    monkeypatch.setattr(gap_sample.GapSampler, "_sample", seen)
    return asked


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("swap", ["recompute", "keep"])
def test_an_asynchronous_run_tells_the_mismatch_apart_from_the_drift(
    swap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards take so long that the engine has time for a sample before each step."""
    monkeypatch.setattr(gap_sample, "EVERY", 1)
    job, folder = make_job(tmp_path / "job", reward__workers=1), tmp_path / "run"
    slow = "import time\ndef score(response, row):\n    time.sleep(0.05)\n    return sum(map(ord, response)) % 7 / 7\n"
    (tmp_path / "job" / "reward.py").write_text(slow)
    summary = train(job, folder, f"async.swap={swap}", "async.max_staleness=3", "trainer.batches=8")
    assert summary["staleness"]["mean"] > 0.5
    assert summary["drift"]["mean_abs"] > 1e-3
    assert summary["mismatch"]["max_abs"] < 1e-5
    with RunReader(folder) as reader:
        batches = RunWatcher(reader).read().batches
    assert any(batch.mismatch_tokens > batch.staleness.get(0, 0) for batch in batches), "of gap samples too"
    for batch in batches:
        assert (batch.mismatch_mean_abs is None) == (batch.mismatch_tokens == 0)


def test_a_warm_up_of_the_critic_leaves_no_run_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches that fresh tokens come in are the critic's."""
    asked = versions_asked(monkeypatch)
    job = make_job(tmp_path / "job", algorithm={"recipe": "ppo"}, critic={"warmup_batches": 2})
    train(job, tmp_path / "run")
    assert asked
    assert min(asked) >= 2


@pytest.mark.parametrize("proximal", ["behavior", "loglinear", "recompute"])
def test_drift_does_not_depend_on_what_the_ratio_is_against(proximal: str, tmp_path: Path) -> None:
    """With two epochs of one step, of which the first begins with the batch's weights."""
    job, folder = make_job(tmp_path / "job"), tmp_path / "run"
    changes = [f"algorithm.proximal={proximal}", "algorithm.epochs_per_batch=2", "async.ahead=6"]
    summary = train(job, folder, *changes, "trainer.optimizer.lr=1e-2")
    assert summary["staleness"]["mean"] > 0.5
    assert summary["drift"]["mean_abs"] > 1e-3
    with RunReader(folder) as reader:
        batches = RunWatcher(reader).read().batches
    for batch in batches:
        first, second = batch.epochs
        assert first.step_kl == pytest.approx(0, abs=1e-8)
        assert second.step_kl > 0


@pytest.mark.parametrize("overrides", [
    ["algorithm.updates_per_batch=3", "algorithm.epochs_per_batch=2"],
    ["algorithm.updates_per_batch=3", "proximal.placement=own"],
    ["algorithm.updates_per_batch=3", "algorithm.proximal=loglinear"],
    ["algorithm.updates_per_batch=3", "algorithm.proximal=behavior"],
    ["rollout.sampling.top_p=0.8", "rollout.sampling.temperature=0.7"],
], ids=lambda overrides: ",".join(part.partition(".")[2] for part in overrides))  # fmt: skip
def test_no_step_on_a_batch_is_taken_for_a_mismatch(overrides: list[str], tmp_path: Path) -> None:
    """On-policy every token is fresh; of several steps without recomputed log-probs, the first one's tokens count."""
    summary = train(make_job(tmp_path / "job"), tmp_path / "run", "async.mode=sync", "trainer.batches=3", *overrides)
    steps = 3 if any("algorithm.proximal=" in override for override in overrides) else 1
    assert summary["mismatch"]["max_abs"] < 1e-5
    assert summary["mismatch"]["tokens"] == pytest.approx(summary["tokens"]["trained"] / steps, rel=0.3 * (steps > 1))


def groups_of(folder: Path) -> dict[tuple[int, int, int], Group]:
    """Those in the journal, by key."""
    with RunReader(folder) as reader:
        digest = reader.config_sha256
    store = RunStore.open(folder, config_sha256=digest, keep_checkpoints=100)
    rows = store.ledger.attempts("trained")
    groups = {row.key: decode_group(store.journal.read(row.offset)) for row in rows if row.offset is not None}
    store.close()
    return groups


@pytest.mark.slow
@pytest.mark.copied
def test_gap_samples_are_outside_the_ledger_and_leave_the_training_samples_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a learning rate of next to nothing all versions are one, and a group's tokens follow from its noise."""
    asked = versions_asked(monkeypatch)
    job = make_job(tmp_path / "job", checkpoint__keep=100)
    runs = {}
    for name, every in (("with", 1), ("without", 1000)):
        monkeypatch.setattr(gap_sample, "EVERY", every)
        summary = train(job, tmp_path / name, "trainer.optimizer.lr=1e-30", "rollout.filters=[]")
        counts = summary["groups"]
        assert counts["issued"] == counts["trained"] == 12, "all that may start is trained in the end"
        assert bool(asked) == (name == "with")
        asked.clear()
        runs[name] = groups_of(tmp_path / name)
    assert runs["with"].keys() == runs["without"].keys()
    for key, group in runs["with"].items():
        other = runs["without"][key]
        assert group.prompt_id == other.prompt_id
        for sample, its in zip(group.samples, other.samples, strict=True):
            np.testing.assert_array_equal(sample.tokens, its.tokens)
            np.testing.assert_allclose(sample.logprobs, its.logprobs, atol=1e-5)


@pytest.mark.parametrize("fault", ["hangs", "raises"])
def test_a_gap_sample_that_is_never_served_costs_a_warning_at_most(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = EmbeddedEngine.generate

    async def generate(self: EmbeddedEngine, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        if request.request_id.startswith(OF_A_GAP_SAMPLE):
            if fault == "raises":
                raise EngineError("no place for it")
            await asyncio.get_running_loop().create_future()
        async with aclosing(real(self, request)) as chunks:
            async for chunk in chunks:
                yield chunk

    monkeypatch.setattr(gap_sample, "EVERY", 1)
    monkeypatch.setattr(EmbeddedEngine, "generate", generate)
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.01)  # before it is asked again: the run is short
    folder = tmp_path / "run"
    summary = train(make_job(tmp_path / "job"), folder)
    assert summary["status"] == "finished"
    assert summary["version"] == 6
    assert summary["samples"]["failed"] == {}
    with RunReader(folder) as reader:
        events = [event.data for event in reader.events.read() if event.kind == "gap_sample_missed"]
    if fault == "raises":
        assert len(events) == 1
        assert "no place for it" in events[0]["message"]
