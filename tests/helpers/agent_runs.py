"""Runs with agents, and what their journals have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from agent_code import SOURCE
from controller_jobs import make_job, make_model
from safetensors.torch import load_file, save_file

from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Sample
from headrace.store.journal import Journal

_TEMPLATE = (
    "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def samples_of(run: Path) -> list[Sample]:
    """Of a run with `record.journal=all`."""
    journal = Journal(run / "journal")
    writers = sorted({segment.writer for segment in journal.segments()})
    groups = [decode_group(journal.read(each.place)) for writer in writers for each in journal.written(writer)]
    return [sample for group in groups for sample in group.samples]


def turns_of(sample: Sample) -> int:
    """How many stretches of it are trained."""
    mask = sample.loss_mask.astype(np.int8)
    return int((np.diff(mask, prepend=np.int8(0)) == 1).sum())


def agent_settings(folder: Path, agent: str) -> dict[str, object]:
    """Of a job in `folder` that one of `agent_code` plays; its files are written there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.py").write_text(SOURCE)
    (folder / "chat.jinja").write_text(_TEMPLATE)
    return {
        "rollout__agent": f"{folder}/agent.py:{agent}",
        "rollout__workers": 0,
        "data__template": {"file": f"{folder}/chat.jinja"},
    }


def make_sampling_job(folder: Path, agent: str, architecture: str = "qwen3", **changes: object) -> Path:
    """A run of an agent that samples in ways of its own, with a model that has preferences, so that it matters at which
    temperature it is asked."""
    settings = {"record__journal": "all", "data__eval": None, "trainer__batches": 3, "gateway__sampling": "client"}
    settings |= {"rollout__sampling": {"max_new_tokens": 16}}
    job = make_job(folder, **{**settings, **changes, **agent_settings(folder, agent)})
    make_model(folder / "model", architecture)
    model = folder / "model" / "model.safetensors"
    scaled = {name: 4 * tensor if "embed" in name else tensor for name, tensor in load_file(model).items()}
    save_file(scaled, model, metadata={"format": "pt"})
    return job
