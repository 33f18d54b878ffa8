"""Everything a model holds is found once, under the path a user would write."""

import torch
from torch import nn

from normdeploy.nn.object_walk import Snapshot, unregistered_tensors, walk


class Plain:
    def __init__(self, **attributes):
        vars(self).update(attributes)


def test_registered_things_keep_their_registered_path_even_when_held_twice():
    model = nn.Sequential(nn.Linear(2, 3))
    model.alias = {"w": model[0].weight, "layer": model[0]}
    paths = {found.path: found.registered for found in walk(model)}
    assert paths["0.weight"]
    assert "alias.w" not in paths
    assert "alias.layer" not in paths
    assert unregistered_tensors(model) == {}


def test_plain_tensors_are_those_that_state_dict_misses():
    hidden = nn.Linear(2, 2)
    norm = Plain(gamma=torch.ones(2), parts=[torch.zeros(1), {"deep": torch.zeros(3)}])
    model = nn.Linear(2, 2)
    model.norm, model.layers, model.direct = norm, [hidden], torch.zeros(4)
    model.register_buffer("temporary", torch.zeros(1), persistent=False)
    found = unregistered_tensors(model)
    assert set(found) == {
        "norm.gamma",
        "norm.parts.0",
        "norm.parts.1.deep",
        "layers.0.weight",
        "layers.0.bias",
        "direct",
    }
    assert found["norm.gamma"] is norm.gamma


def test_cycles_end():
    a, b = Plain(), Plain()
    a.other, b.other, a.tensor = b, a, torch.zeros(1)
    model = nn.Identity()
    model.a = a
    assert [found.path for found in walk(model)].count("a.other") == 1
    assert list(unregistered_tensors(model)) == ["a.tensor"]


def test_library_objects_are_not_entered():
    model = nn.Identity()
    model.lock, model.kind, model.device = __import__("threading").Lock(), torch.float32, torch.device("cpu")
    model.logger = __import__("logging").getLogger("tests")
    assert all(not found.path.startswith("logger.") for found in walk(model))


def test_snapshot_names_and_undoes_what_changed():
    part = Plain(value=1, items=[1, 2])
    model = nn.Linear(2, 2)
    model.part = part
    weight, items = model.weight, part.items
    snapshot = Snapshot(model)
    part.value, part.new = 2, 3
    part.items.append(4)
    model.weight = nn.Parameter(torch.zeros(2, 2))
    assert set(snapshot.restore()) == {"part.value", "part.new", "part.items", "weight"}
    assert vars(part) == {"value": 1, "items": [1, 2]}
    assert part.items is items
    assert model.weight is weight
    assert snapshot.restore() == []
