from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from normdeploy.verification.sides.double import float64_mode


class Casting(nn.Module):
    """Does everything that ``model.double()`` does not survive."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)
        self.plain = torch.rand(5) + 0.5  # not registered: .double() does not see it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x).float()
        mask = torch.zeros(x.shape[0], 5, dtype=torch.float32)
        mask[:, 0] = 1.0
        table = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
        return (x.to(torch.float32) * self.plain + mask * table).type_as(self.linear.weight) / torch.sqrt(
            x.var(-1, keepdim=True) + 1e-5
        )


def test_casts_plain_tensors_and_new_tensors_are_promoted():
    torch.manual_seed(0)
    model = Casting().eval()
    x = torch.randn(7, 5)
    with torch.no_grad(), float64_mode() as mode:
        y = model(x)
    assert y.dtype == torch.float64
    w, b, p = (t.detach().double().numpy() for t in (model.linear.weight, model.linear.bias, model.plain))
    h = x.double().numpy() @ w.T + b
    mask = np.zeros((7, 5))
    mask[:, 0] = 1
    expected = (h * p + mask * np.array([0.1, 0.2, 0.3, 0.4, 0.5])) / np.sqrt(h.var(-1, ddof=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-13)
    assert mode.written <= {"__setitem__"}


@pytest.mark.parametrize(
    "module",
    [
        nn.LSTM(4, 3, batch_first=True),
        nn.GRU(4, 3, num_layers=2),
        nn.MultiheadAttention(4, 2, batch_first=True),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        nn.Sequential(nn.Conv1d(5, 6, 3), nn.BatchNorm1d(6), nn.GELU()),
    ],
    ids=lambda m: type(m).__name__,
)
def test_it_agrees_with_a_doubled_copy(module: nn.Module):
    import copy

    torch.manual_seed(1)
    module.eval()
    x = torch.randn(2, 5, 4)
    args = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    with torch.no_grad():
        with float64_mode():
            got = module(*args)
        want = copy.deepcopy(module).double()(*(a.double() for a in args))
    for a, b in zip(torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(want), strict=True):
        if a is not None:
            assert a.dtype == torch.float64
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_nothing_of_the_model_or_the_process_changes():
    model = Casting().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad(), float64_mode():
        model(torch.randn(2, 5))
    assert torch.get_default_dtype() == torch.float32
    assert model.plain.dtype == torch.float32
    assert all(torch.equal(v, before[k]) and v.dtype == before[k].dtype for k, v in model.state_dict().items())


def test_integers_and_booleans_stay():
    with torch.no_grad(), float64_mode():
        ids = torch.arange(4)
        assert ids.dtype == torch.int64
        assert (ids > 2).dtype == torch.bool
        found = torch.nn.functional.embedding(ids, torch.randn(4, 2))
    assert found.dtype == torch.float64


def test_writes_into_a_low_precision_tensor_are_reported():
    buffer = torch.zeros(3)
    with torch.no_grad(), float64_mode() as mode:
        buffer.add_(0.1)
    assert mode.written == {"add_"}
    assert buffer.dtype == torch.float32
    assert torch.equal(buffer, torch.full((3,), 0.1))


class OwnPrecision(nn.Module):
    """Adds the epsilon of its own precision, as ``nn.RMSNorm`` does where none is given, and masks by its minimum."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        masked = x.masked_fill(x > 0, torch.finfo(x.dtype).min)
        return self.norm(x), x / (x.abs().sum(-1, keepdim=True) + torch.finfo(x.dtype).eps) + masked


def test_what_a_program_derives_from_its_precision_stays():
    model = OwnPrecision().eval()
    x = 1e-4 * torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), float64_mode():
        norm, rest = model(x)
    y, eps = x.double().numpy(), 2.0**-23
    np.testing.assert_allclose(norm.numpy(), y / np.sqrt((y * y).mean(-1, keepdims=True) + eps), rtol=1e-13)
    masked = np.where(y > 0, -float(np.finfo(np.float32).max), y)
    np.testing.assert_allclose(rest.numpy(), y / (np.abs(y).sum(-1, keepdims=True) + eps) + masked, rtol=1e-13)
    assert torch.finfo(torch.float64).eps == 2.0**-52  # given back


def test_the_logarithm_of_a_sigmoid_or_softmax_is_not_lost():
    x = torch.tensor([[-2000.0, -1.0, 3.0]])
    with float64_mode():
        sigmoid, softmax = torch.sigmoid(x), x.softmax(-1)
        found, shares = sigmoid.log(), torch.log(softmax)
        changed = torch.sigmoid(x)
        changed += 1.0
        copied = torch.sigmoid(x).clone()
        exact = changed.log(), copied.log()
    torch.testing.assert_close(found, torch.nn.functional.logsigmoid(x.double()))
    torch.testing.assert_close(shares, torch.log_softmax(x.double(), -1))
    torch.testing.assert_close(exact[0], torch.log1p(torch.sigmoid(x.double())))  # written to since
    assert exact[1][0, 0] == -torch.inf  # not the sigmoid itself


def test_what_a_sigmoid_read_may_have_changed_before_its_logarithm():
    x = torch.tensor([[0.5, -1.0]], dtype=torch.float64)
    with float64_mode():
        sigmoid = torch.sigmoid(x)
        x.zero_()
        found = sigmoid.log()
    torch.testing.assert_close(found, torch.log(torch.sigmoid(torch.tensor([[0.5, -1.0]], dtype=torch.float64))))


@pytest.mark.parametrize(
    ("a", "b"), [((3, 8, 16), (3, 16, 8)), ((48, 16), (3, 16, 8)), ((3, 8, 16), (16, 48)), ((8, 48), (48, 8))]
)
def test_products_of_groups_are_computed_in_float64_where_torch_has_them_in_float32_alone(
    a: tuple[int, ...], b: tuple[int, ...]
):
    torch.manual_seed(0)
    x, y, whole = torch.randn(a), torch.randn(b), len(a) == len(b) == 3
    ends = None if whole else torch.tensor([16, 16, 48], dtype=torch.int32)  # the second group has nothing
    with float64_mode():
        found = torch.nn.functional.grouped_mm(x, y, offs=ends)
    assert found.dtype == torch.float64
    spans, left, right = [(0, 16), (16, 16), (16, 48)], x.double().numpy(), y.double().numpy()
    if whole:
        expected = np.einsum("gmk,gkn->gmn", left, right)
    elif len(a) == 2 and len(b) == 3:
        expected = np.concatenate([left[i:j] @ right[g] for g, (i, j) in enumerate(spans)])
    elif len(b) == 2 and len(a) == 3:
        expected = np.concatenate([left[g] @ right[:, i:j] for g, (i, j) in enumerate(spans)], 1)
    else:
        expected = np.stack([left[:, i:j] @ right[i:j] for i, j in spans])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)
