"""A small real job, given in Python."""

from pathlib import Path
from typing import Any

from controller_jobs import make_model

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(4)]


def job(folder: Path, **sections: Any) -> dict[str, Any]:
    """A config without data and reward; its model is made in `folder` unless it is there."""
    if not (folder / "model").is_dir():
        make_model(folder / "model")
    return {
        "model": {"path": folder / "model"},
        "rollout": {"prompts_per_batch": 2, "samples_per_prompt": 3, "sampling": {"max_new_tokens": 6}, "filters": []},
        "trainer": {"batches": 2, "optimizer": {"lr": 1e-3}},
        "engine": {"max_concurrent_sequences": 8},
        "reward": {"workers": 1},
        "runtime": {"threads": 2, "stall_timeout_s": 60},
        **sections,
    } | {
        "rollout": {
            "prompts_per_batch": 2,
            "samples_per_prompt": 3,
            "sampling": {"max_new_tokens": 6},
            "filters": [],
            "episode_timeout_s": 60,
            **sections.get("rollout", {}),
        }
    }
