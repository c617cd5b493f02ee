"""Headrace: fully asynchronous reinforcement-learning post-training for language models.

What is public is imported when it is first used: `import headrace` alone takes a few milliseconds.
"""

from __future__ import annotations

from headrace.lazy_names import lazy_names

__version__ = "0.1.0"

_PUBLIC = {
    "train": "headrace.api.training",
    "atrain": "headrace.api.training",
    "sft": "headrace.api.offline",
    "asft": "headrace.api.offline",
    "rm": "headrace.api.offline",
    "arm": "headrace.api.offline",
    "dpo": "headrace.api.offline",
    "adpo": "headrace.api.offline",
    "evaluate": "headrace.api.evaluation",
    "aevaluate": "headrace.api.evaluation",
    "serve": "headrace.api.serving",
    "aserve": "headrace.api.serving",
    "Run": "headrace.api.run",
    "OfflineRun": "headrace.api.offline",
    "Server": "headrace.api.serving",
    "Checkpoint": "headrace.api.callbacks",
    "BatchRecord": "headrace.observe.record",
    "Evaluation": "headrace.observe.run_record",
    "OfflineStep": "headrace.observe.offline.record",
    "HeldOutRows": "headrace.observe.offline.record",
    "TrainConfig": "headrace.config",
    "SFTConfig": "headrace.config",
    "RMConfig": "headrace.config",
    "DPOConfig": "headrace.config",
    "Prompt": "headrace.experience.prompts.dataset",
    "Group": "headrace.experience.sample",
    "Policy": "headrace.rollout.policy",
    "StepResult": "headrace.rollout.environment",
    "Trajectory": "headrace.rollout.trajectory",
    "HeadraceError": "headrace.errors",
    "ConfigError": "headrace.config.errors",
    "Interrupted": "headrace.api.interrupted",
    "StoreError": "headrace.store",
    "RunExists": "headrace.store",
    "RunInUse": "headrace.store",
    "RunMissing": "headrace.store",
    "ConfigMismatch": "headrace.store",
    "NothingToTrain": "headrace.experience.drops",
    "WaitTimeout": "headrace.runtime.protocol",
    "EngineError": "headrace.engines.protocol",
    "OutOfMemory": "headrace.controller.planning.out_of_memory",
    "PieceError": "headrace.algorithms.pieces",
    "TrainingDiverged": "headrace.controller.divergence",
}

__all__ = ["__version__", *_PUBLIC]

__getattr__ = lazy_names(__name__, _PUBLIC)


def __dir__() -> list[str]:
    return sorted(__all__)
