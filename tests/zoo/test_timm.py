"""Vision networks as timm publishes them, random weights and statistics: nothing stays but what has to.

Run with ``-m zoo``; needs timm. Nothing is downloaded.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from timm_library import load_timm
from torch import nn
from zoo_networks import shake

from normdeploy.exporting.trace import trace
from normdeploy.graph import Evaluator
from normdeploy.rewrite import rewrite

pytestmark = [
    pytest.mark.zoo,
    # the library's own deprecations are not ours
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

SIZES = {
    "resnet18": 64,
    "seresnet50": 64,
    "mobilenetv2_050": 64,
    "mobilenetv3_small_050": 64,
    "efficientnet_b0": 64,
    "regnetx_002": 64,
    "regnety_002": 64,
    "hrnet_w18_small": 64,
    "dla46_c": 64,
    "repvgg_a0": 64,
    "mobileone_s0": 64,
    "repvit_m0_9": 64,
    "fastvit_t8": 128,
    "fastvit_sa12": 128,
    "levit_128s": 224,
    "convnext_atto": 64,
    "visformer_tiny": 224,
    "cait_xxs24_224": 224,
    "resmlp_12_224": 224,
    "densenet121": 64,
    "resnetv2_50": 64,
    "beit_base_patch16_224": 224,  # its tables of relative positions
    "nest_tiny": 224,  # attention over five axes
}
# what stays: how many, and what stands in the way of each
STAYS = {
    # norms in front of an activation that read what a pool or an activation wrote: nobody there can take a shift
    "densenet121": (59, "Relu"),
    # x + d (A x + b): A mixes the tokens, d scales the channels, x is not scaled; one product with d has to stay
    "resmlp_12_224": (12, "its scale cannot leave"),
}


def drawn(name: str) -> nn.Module:
    """Return the network with statistics, scales and a head that are no identity."""
    torch.manual_seed(0)
    model: nn.Module = shake(load_timm().create_model(name, pretrained=False))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 and parameter.unique().numel() == 1:  # LayerScale, y = a x + b, a zero head's bias
                parameter.uniform_(0.5, 1.5)
            elif not parameter.any():
                parameter.normal_(std=0.02)
    return model.eval()


@pytest.mark.parametrize("name", SIZES)
def test_nothing_stays_but_what_has_to(name: str) -> None:
    model = drawn(name)
    x = torch.randn(2, 3, SIZES[name], SIZES[name], generator=torch.Generator().manual_seed(1))
    result = rewrite(trace(model, (x,)).model)
    count, reason = STAYS.get(name, (0, ""))
    assert len(result.ledger.kept) == count, Counter(row.reason for row in result.ledger.kept)
    assert all(reason in row.reason for row in result.ledger.kept)
    left = Counter(node.op_type for node in result.model.graph)
    assert left["BatchNormalization"] == (count if reason == "Relu" else 0)
    (found,) = Evaluator(result.model).run({result.model.graph.inputs[0].name: x.double()}).values()
    with torch.no_grad():
        truth = model.double()(x.double())
    assert truth.abs().max() > 0
    assert (found - truth).norm() < 1e-6 * truth.norm()  # constants that were float32 before stay so
