"""From rewards to advantages: against the group `[S]`, over time `[N]`, and whitened over a batch."""

from headrace.algorithms.advantages.groups import Scale, group_normalized, leave_one_out, opo
from headrace.algorithms.advantages.reinforcepp import reinforce_plus_plus, reinforce_plus_plus_baseline
from headrace.algorithms.advantages.returns import discounted_returns, gae
from headrace.algorithms.advantages.whitening import whiten

__all__ = [
    "Scale",
    "discounted_returns",
    "gae",
    "group_normalized",
    "leave_one_out",
    "opo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "whiten",
]
