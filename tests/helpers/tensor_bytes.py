"""How much memory tensors have, counted over all that are alive in this process, whoever has them."""

from __future__ import annotations

import gc

import torch


def tensor_bytes() -> int:
    """Of each storage once, however many tensors view it; of tensors that were made since the test began: the others
    are left out of collections (`conftest.py`), and so of what is looked at."""
    gc.collect()
    found = {}
    packed = 0
    for each in gc.get_objects():
        if type(each) is torch.Tensor and each.is_mkldnn:  # it views nothing
            packed += each.nbytes
        if type(each) in (torch.Tensor, torch.nn.Parameter) and each.layout is torch.strided:
            storage = each.untyped_storage()
            if storage.device.type != "meta":
                found[storage._cdata] = storage.nbytes()
    return packed + sum(found.values())
