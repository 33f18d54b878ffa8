"""Networks as people publish them, configured small, random weights: every norm is one operator or folded away.

Run with ``-m zoo`` (extra ``zoo``: transformers). Nothing is downloaded.
"""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn
from zoo_networks import ZOO, shake

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.inspection import inspect
from normdeploy.rewrite import rewrite

pytestmark = [
    pytest.mark.zoo,
    # looked for, not imported: that would take seconds of every run, which deselects these
    pytest.mark.skipif(find_spec("transformers") is None, reason="the zoo needs transformers: install normdeploy[zoo]"),
    # the library's own deprecations are not ours
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

STATISTICS = {"LayerNormalization", "RMSNormalization", "InstanceNormalization"}

# what a norm is spelled with, and the few of them that a network has for something else
SPELLING = {
    "Div",
    "Pow",
    "Reciprocal",
    "ReduceL2",
    "ReduceMean",
    "ReduceSum",
    "ReduceSumSquare",
    "Sqrt",
    "BatchNormalization",
    "GroupNormalization",
}
LEFT = {
    "GPT-2": {"Pow": 2},  # the cube in its approximation of GELU, per layer
    "Swin": {"ReduceMean": 1},  # average pool
    "ConvNeXt": {"ReduceMean": 1},  # average pool
    # average pool; global response normalization, x times its share of the channels' energy, per layer: no operator
    # has it, and it does not normalize x
    "ConvNeXtV2": {"ReduceMean": 3, "ReduceL2": 2, "Div": 2},
    "ResNet": {"ReduceMean": 1},  # average pool
    "RegNet": {"ReduceMean": 3},  # average pool; squeeze and excitation, per layer
    "MobileNetV1": {"ReduceMean": 1},  # average pool
    "MobileNetV2": {"ReduceMean": 1},  # average pool
    "EfficientNet": {"ReduceMean": 7},  # squeeze and excitation, per block
    "LeViT": {"ReduceMean": 1},  # average pool
}

# the architectures that the project promises
PROMISED = {
    "BERT",
    "GPT-2",
    "T5",
    "LLaMA",
    "ViT",
    "Swin",
    "ConvNeXt",
    "ConvNeXtV2",
    "SegFormer",
    "ResNet",
    "RegNet",
    "MobileNetV1",
    "MobileNetV2",
    "EfficientNet",
    "LeViT",
    "PoolFormer",
    "Wav2Vec2",
    "Whisper encoder",
}


def norms_run(model: nn.Module, inputs: dict[str, torch.Tensor]) -> Counter[str]:
    """Count the calls of normalization modules: what the graph has to account for."""
    calls: Counter[str] = Counter()

    def count(module: nn.Module, *_: object) -> None:
        calls["batch" if isinstance(module, nn.modules.batchnorm._BatchNorm) else "statistics"] += 1

    hooks = [
        module.register_forward_hook(count)
        for module in model.modules()
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm))
        or type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))
    ]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return calls


def test_the_zoo_is_complete() -> None:
    assert set(ZOO) == PROMISED


@pytest.mark.parametrize("name", ZOO)
def test_every_norm_is_one_operator_or_folded(name: str) -> None:
    make, inputs = ZOO[name]
    torch.manual_seed(0)
    model = shake(make())
    calls = norms_run(model, inputs)
    program = trace(model, (), kwargs=inputs)
    result = rewrite(program.model)
    onnx.checker.check_model(ir.to_proto(result.model))
    kinds = Counter(node.op_type for node in result.canonical.graph)
    assert sum(kinds[kind] for kind in STATISTICS) == calls["statistics"]
    rows = [row for row in result.ledger if row.into in STATISTICS]
    assert len(rows) == calls["statistics"]
    assert all(row.action == "fused" for row in rows)
    assert not [row for row in result.ledger.kept if row.kind in ("normalization", "batch statistics")]
    assert all(row.where for row in result.ledger)
    final_kinds = Counter(node.op_type for node in ir.traversal.RecursiveGraphIterator(result.model.graph))
    assert {kind: count for kind, count in final_kinds.items() if kind in SPELLING} == LEFT.get(name, {})
    assert sum(final_kinds[kind] for kind in STATISTICS) == calls["statistics"]
    batch = [row for row in result.ledger if row.kind == "BatchNormalization"]
    assert [row.action for row in batch] == ["folded"] * calls["batch"]
    feeds = {key: torch.from_numpy(value) for key, value in program.feeds.items()}
    canonical, final = (Evaluator(graph).run(feeds) for graph in (result.canonical, result.model))
    for key, expected in canonical.items():
        assert distance(final[key], expected) <= 1e-9, key
    with torch.no_grad():
        wide = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        eager = next(iter(model.double()(**wide).values()))
    # some norms of the library cast to float32 whatever the model's type
    assert distance(next(iter(final.values())), eager.double()) <= 2e-5


@pytest.mark.parametrize("name", ZOO)
def test_the_doctor_raises_no_alarm(name: str) -> None:
    make, inputs = ZOO[name]
    torch.manual_seed(0)
    model = shake(make())
    for findings in (inspect(model, (dict(inputs),)), inspect(model)):
        # the library asks whether it is traced, to leave out a mask of ones where it is not: true, and said as a note
        asked = findings.of_kind("traced-otherwise")
        assert [finding for finding in findings if finding not in asked] == []
        assert len(asked) <= 1
        assert all(finding.severity == "note" for finding in asked)


@pytest.mark.parametrize("name", ["LeViT", "GPT-2"])
def test_the_traced_graph_of_unequal_splits_runs_in_float64(name: str) -> None:
    make, inputs = ZOO[name]
    torch.manual_seed(0)
    model = shake(make())
    program = trace(model, (), kwargs=inputs)
    assert any(node.op_type == "SplitToSequence" for node in program.model.graph)
    found = Evaluator(program.model).run({key: torch.from_numpy(value) for key, value in program.feeds.items()})
    with torch.no_grad():
        wide = {key: value.double() if value.is_floating_point() else value for key, value in inputs.items()}
        eager = next(iter(model.double()(**wide).values()))
    assert distance(next(iter(found.values())), eager.double()) <= 2e-5


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    assert bool(torch.isfinite(found).all())
    return float((found - expected).abs().max()) / max(1e-12, float(expected.abs().max()))
