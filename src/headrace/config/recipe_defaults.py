"""What each recipe sets of the section `algorithm`, unless the user does: the values of the paper that it is from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RECIPE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    # Shao et al. 2024, arXiv 2402.03300, without its KL term, which needs a reference model (there: kl.coefficient
    # 0.04 with the estimator k3).
    "grpo": {"clip_high": 0.2, "aggregation": "sample_mean"},
    # Schulman et al. 2017, arXiv 1707.06347; the KL in the reward and lam 0.95: Ouyang et al. 2022, arXiv 2203.02155.
    "ppo": {
        "advantage": "gae",
        "clip_high": 0.2,
        "whiten": True,
        "gamma": 1.0,
        "lam": 0.95,
        "kl": {"coefficient": 0.02, "place": "reward", "estimator": "k1"},
    },
    # Liu et al. 2025, arXiv 2503.20783: no deviation in the advantage, no sample's own length in the loss.
    "dr_grpo": {"advantage": "mean_only", "clip_high": 0.2, "aggregation": "constant_length"},
    # Yu et al. 2025, arXiv 2503.14476: a higher upper clip, means over tokens, no KL.
    "dapo": {},
    # Zheng et al. 2025, arXiv 2507.18071, section 5.1; the weights that correct for staleness are at the level of its
    # ratio. Its four mini-batches a batch are not set: see docs/recipes.md.
    "gspo": {
        "loss": "gspo",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "behavior": {"level": "geometric"},
        "aggregation": "sample_mean",
    },
    # MiniMax 2025, arXiv 2506.13585: no lower bound on the weight.
    "cispo": {"loss": "cispo", "clip_low": 1.0, "clip_high": 4.0},
    # Gao et al. 2025, arXiv 2511.20347.
    "sapo": {"loss": "sapo", "aggregation": "sample_mean"},
    # Zheng et al. 2025, arXiv 2510.01161.
    "m2po": {"loss": "m2po", "objective": "naive"},
    # Ahmadian et al. 2024, arXiv 2402.14740: REINFORCE on whole samples, the KL in the reward.
    "rloo": {
        "advantage": "leave_one_out",
        "loss": "reinforce",
        "aggregation": "sample_sum",
        "kl": {"coefficient": 0.03, "place": "reward", "estimator": "k1"},
    },
    # Hu 2025, arXiv 2501.03262.
    "reinforce_plus_plus": {
        "advantage": "reinforce_plus_plus",
        "clip_high": 0.2,
        "kl": {"coefficient": 0.01, "place": "reward", "estimator": "k1"},
    },
    "reinforce_plus_plus_baseline": {
        "advantage": "reinforce_plus_plus_baseline",
        "clip_high": 0.2,
        "kl": {"coefficient": 0.001, "place": "loss", "estimator": "k2"},
    },
    # Agarwal et al. 2023, arXiv 2306.13649; Lu et al. 2025, "On-Policy Distillation".
    "opd": {"advantage": "distillation", "loss": "reinforce"},
}

LOSS_CLIPS: Mapping[str, tuple[float, float]] = {
    "clipped_surrogate": (0.2, 0.2),
    "cispo": (1.0, 4.0),
    "gspo": (3e-4, 4e-4),
    "geometric_mean": (0.4, 0.4),
}
"""`clip_low` and `clip_high` of a loss that is not the recipe's, as its paper has them (PPO, MiniMax-M1, GSPO, GMPO):
what is clipped, and how far it moves, differs from loss to loss."""


def with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given`, a section `algorithm` as it was written, over the defaults of the recipe that it names."""
    recipe = given.get("recipe", "grpo")
    defaults = dict(RECIPE_DEFAULTS.get(recipe, {})) if isinstance(recipe, str) else {}
    loss = given.get("loss")
    if isinstance(loss, str) and loss in LOSS_CLIPS and loss != defaults.get("loss", "clipped_surrogate"):
        defaults["clip_low"], defaults["clip_high"] = LOSS_CLIPS[loss]
    kl, given_kl = defaults.get("kl", {}), given.get("kl")
    if isinstance(given_kl, Mapping) and given_kl.get("place", kl.get("place")) != kl.get("place"):
        # An estimator goes with its place: in the other one its gradient is not the KL's.
        defaults["kl"] = {key: value for key, value in kl.items() if key != "estimator"}
    return _merge(defaults, given)


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged
