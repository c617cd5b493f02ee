"""Products by oneDNN, against those of float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headrace.models import fast_linear
from headrace.models.fast_linear import use_fast_products
from headrace.models.products import linear, packed, product, product_onto

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
IN, OUT = 24, 40
CPU = torch.device("cpu")


def near(found: Tensor | None, wanted: Tensor | None) -> bool:
    """To rounding of float32, on sums of up to 64 products of numbers about 1."""
    assert found is not None
    assert wanted is not None
    return found.shape == wanted.shape and bool(((found.double() - wanted).abs() <= 2e-5).all())


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(1, IN), (7, IN), (64, IN), (1, 5, IN), (2, 3, IN), (0, IN), (1, 0, IN)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients_are_those_of_a_linear_layer(shape: tuple[int, ...], has_bias: bool) -> None:
    given = [draw(*shape), draw(OUT, IN), draw(OUT)][: 2 + has_bias]
    ours = [tensor.clone().requires_grad_() for tensor in given]
    exact = [tensor.double().requires_grad_() for tensor in given]
    out, wanted = linear(*ours, *([] if has_bias else [None])), nn.functional.linear(*exact)
    assert near(out, wanted)
    grad = draw(*shape[:-1], OUT)
    out.backward(grad)
    wanted.backward(grad.double())
    assert all(near(one.grad, other.grad) for one, other in zip(ours, exact, strict=True))


def test_rows_may_be_a_view() -> None:
    x = draw(IN, 6).t().requires_grad_()
    weight = draw(OUT, IN)
    out = linear(x, weight, None)
    assert near(out, x.double() @ weight.double().t())
    (grad,) = torch.autograd.grad(out, x, draw(OUT, 6).t())
    assert near(grad, draw(OUT, 6).t().double() @ weight.double())


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    x, weight = draw(3, IN), draw(OUT, IN).requires_grad_()
    linear(x, weight, None).sum().backward()
    assert near(weight.grad, x.double().sum(0).expand(OUT, -1))
    assert x.grad is None


@pytest.mark.parametrize("rows", [0, 1, 2, 16, 64, 65, 300])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_packed_matrix_multiplies_any_number_of_rows(rows: int, has_bias: bool) -> None:
    x, weight, hidden = draw(rows, IN), draw(OUT, IN), draw(rows, OUT)
    bias = draw(OUT) if has_bias else None
    with torch.inference_mode():
        laid_out = packed(weight)
        wanted = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
        assert near(product(x, laid_out, bias), wanted)
        assert near(product_onto(hidden, x, laid_out, bias), hidden.double() + wanted)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(IN, OUT), nn.Linear(OUT, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(x)))
        return out


def test_a_models_layers_take_it_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_linear, "dense_is_faster", lambda device, dtype: False)
    assert use_fast_products(Net(), CPU, torch.float32) == 0
    monkeypatch.setattr(fast_linear, "dense_is_faster", lambda device, dtype: True)
    own, other = Net(), Net()
    other.load_state_dict(own.state_dict())
    assert use_fast_products(own, CPU, torch.float32) == 2
    other.double()
    for rows in (5, 1):
        x = draw(rows, IN)
        out, wanted = own(x), other(x.double())
        assert near(out, wanted)
        out.sum().backward()
        wanted.sum().backward()
    for one, two in zip(own.parameters(), other.parameters(), strict=True):
        assert near(one.grad, two.grad)


def test_other_dtypes_and_a_single_row_without_a_batch_go_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_linear, "dense_is_faster", lambda device, dtype: True)
    model = Net()
    use_fast_products(model, CPU, torch.float32)
    assert near(model(draw(IN)), model.double()(draw(IN).double()))
    assert model.bfloat16()(draw(2, IN).bfloat16()).dtype == torch.bfloat16
