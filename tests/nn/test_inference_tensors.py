"""Models built under torch.inference_mode(): made ordinary, recalibrated and trained."""

import torch
from torch import nn

from normdeploy.nn import recalibrate
from normdeploy.nn.inference_tensors import leave_inference


class Holder:
    __slots__ = ("gain",)


def built():
    torch.manual_seed(0)
    with torch.inference_mode():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
        model[2].weight = nn.Parameter(model[2].weight.clone(), requires_grad=False)
        model[2].tied = model[2].weight
        model.extra = [torch.ones(2), {"deep": torch.zeros(1)}]
        model.holder = Holder()
        model.holder.gain = torch.full((2,), 3.0)
    return model


def test_every_tensor_is_exchanged_for_an_ordinary_one_of_the_same_numbers():
    model = built()
    numbers = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert leave_inference(model) == 6 + 3 + 3  # parameters, buffers, plain ones
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert not tensor.is_inference()
        assert torch.equal(tensor, numbers[name])
    assert model[2].tied is model[2].weight
    assert (model[0].weight.requires_grad, model[2].weight.requires_grad) == (True, False)
    plain = (model.extra[0], model.extra[1]["deep"], model.holder.gain)
    assert not any(tensor.is_inference() for tensor in plain)
    assert float(model.holder.gain.sum()) == 6
    assert leave_inference(model) == 0
    model.train()(torch.randn(5, 3)).sum().backward()


def test_population_statistics_of_such_a_model():
    model, ordinary = built(), built()
    leave_inference(ordinary)
    batch = torch.randn(16, 3)
    (ours,), (expected,) = recalibrate(model, [batch]), recalibrate(ordinary, [batch])
    assert ours == expected
    assert torch.equal(model[1].running_var, ordinary[1].running_var)
