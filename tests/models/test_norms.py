"""The written-out RMS normalisation: autograd's numbers, and only where the model's own agrees."""

import pytest
import torch
from models_helpers import tiny_model
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from headrace.models import norms
from headrace.models.norms import fused_rms_norm, rms_norm, use_fast_norms


def test_by_hand() -> None:
    """mean of 9 and 16 is 12.5; less than 0.01 is 12.51."""
    x = torch.tensor([[3.0, 4.0]])
    expected = torch.tensor([[3.0 * 2, 4.0 * -1]]) / 12.51**0.5
    assert torch.allclose(rms_norm(x, torch.tensor([2.0, -1.0]), 0.01), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8), (1, 5, 2, 8)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_values_and_gradients_are_those_of_autograd(
    shape: tuple[int, ...], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    theirs = LlamaRMSNorm(8, eps=1e-6)
    nn.init.normal_(theirs.weight)
    theirs.to(dtype)
    x, up = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    weight = theirs.weight.detach().clone().requires_grad_()
    own, other = rms_norm(a, weight, 1e-6), theirs(b)
    assert own.dtype == other.dtype == dtype
    own.backward(up)
    other.backward(up)
    for mine, expected in ((own, other), (a.grad, b.grad), (weight.grad, theirs.weight.grad)):
        assert mine is not None
        assert expected is not None
        assert torch.allclose(mine.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_torchs_own_which_a_device_takes_rounds_once(dtype: torch.dtype) -> None:
    """Within two roundings of the other one: bfloat16 has 8 bits."""
    torch.manual_seed(0)
    x, weight = torch.randn(5, 2, 64).to(dtype), torch.randn(64).to(dtype)
    mine, other = fused_rms_norm(x, weight, 1e-6), rms_norm(x, weight, 1e-6)
    assert mine.dtype == dtype
    assert torch.allclose(mine.float(), other.float(), rtol=1e-5 if dtype == torch.float32 else 2**-7, atol=1e-6)


def test_gradient_of_the_weight_is_left_out_where_nobody_wants_it() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    rms_norm(x, torch.ones(4), 1e-6).sum().backward()
    assert x.grad is not None


def test_memory_that_runs_out_as_a_norm_is_tried_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def ran_out(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    norm = LlamaRMSNorm(8, eps=1e-6)
    weight = norm.weight
    monkeypatch.setitem(norms._NORMS, "cpu", ran_out)
    with pytest.raises(torch.OutOfMemoryError):
        use_fast_norms(norm)
    assert norm.weight is weight


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_on_a_device_takes_torchs_own(dtype: torch.dtype) -> None:
    assert use_fast_norms(tiny_model("qwen3").to(torch.device("cuda"), dtype)) == 9


@pytest.mark.parametrize("norm", [rms_norm, fused_rms_norm])
def test_a_model_takes_it_and_computes_the_same(norm: norms.Norm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(norms._NORMS, "cpu", norm)
    model = tiny_model("qwen3")
    ids = torch.arange(12)[None] % 50
    before = model(ids).logits
    expected = torch.autograd.grad(before.square().sum(), list(model.parameters()))
    # Two layers with a norm before attention, one before the MLP, of queries and of keys; and the last one.
    assert use_fast_norms(model) == 9
    after = model(ids).logits
    assert torch.allclose(after, before, atol=1e-5)
    for mine, other in zip(torch.autograd.grad(after.square().sum(), list(model.parameters())), expected, strict=True):
        assert torch.allclose(mine, other, rtol=1e-3, atol=1e-5)


def test_one_that_does_something_else_with_its_weight_is_left_alone() -> None:
    """Gemma multiplies by 1 + weight."""
    norm = GemmaRMSNorm(8)
    nn.init.ones_(norm.weight)
    assert use_fast_norms(norm) == 0
    assert bool((norm.weight == 1).all()), "the probe leaves the weight as it was"
