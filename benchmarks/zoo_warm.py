"""What importing this does: libraries are loaded and every stage has run once, so that no network pays for it."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
from public_networks import Plain
from torch import nn
from verdict_cost import torch_export

from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify

torch.set_num_threads(1)
warnings.filterwarnings("ignore")  # the libraries' own
with tempfile.TemporaryDirectory() as _folder:
    _small = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).eval()
    torch_export(_small, Plain((torch.zeros(2, 4),)), Path(_folder) / "small.onnx")
    _traced = trace(_small, torch.zeros(2, 4))
    save_graph(rewrite(_traced.model).model, Path(_folder) / "small2.onnx")
    verify(_small, Path(_folder) / "small2.onnx", args=torch.zeros(2, 4))
