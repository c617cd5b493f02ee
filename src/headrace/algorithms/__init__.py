"""The maths of training, as pure functions, and the recipes that put it together, as data.

Conventions of every function here: token tensors are flat `[N]`, with `mask [N]` (bool, True where a token is
trained) and `sample_index [N]` (int64, non-decreasing: which sample a token belongs to); sample tensors are
`[S]`, with `group_index [S]` (any integers, in any order). Nothing assumes equal groups, contiguous groups,
indices that start at 0, or padding. float64 in gives float64 out; narrower floats are computed in float32.
Inputs are never changed, and what stands at a masked-out position (NaN included) has no influence.

Numerators, denominators and stats are sums: over any split of a batch into micro-batches or ranks that keeps
samples (for losses of pairs, pairs) whole, they add up to the value for the whole batch. What needs the whole batch
at once says so: whitening, the batch's standard deviation, M2PO's mask. What compares a group needs the group.
"""
