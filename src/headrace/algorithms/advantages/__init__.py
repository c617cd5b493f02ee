"""From rewards to advantages: against the group `[S]`, over time `[N]`, and whitened over a batch."""

from headrace.algorithms.advantages.groups import Kind, Scale, group_normalized, leave_one_out, of_kind, opo
from headrace.algorithms.advantages.reinforcepp import reinforce_plus_plus, reinforce_plus_plus_baseline
from headrace.algorithms.advantages.returns import discounted_returns, gae
from headrace.algorithms.advantages.whitening import whiten

__all__ = [
    "Kind",
    "Scale",
    "discounted_returns",
    "gae",
    "group_normalized",
    "leave_one_out",
    "of_kind",
    "opo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "whiten",
]
