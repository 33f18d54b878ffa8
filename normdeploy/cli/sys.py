"""``normdeploy sys``: versions, processor and execution providers, for bug reports."""

from __future__ import annotations

import platform
import sys

import typer

from normdeploy import __version__
from normdeploy.cli import options
from normdeploy.ort.installed import conflict, installed_builds, version_of

_PACKAGES = (
    "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime-ep-openvino", "openvino", "numpy", "safetensors",
    "scikit-learn", "transformers", "ray", "onnxslim", "onnxsim",
)  # fmt: skip


def sys_(as_json: options.Json = False) -> None:
    """Print versions, processor features and execution providers."""
    import torch

    from normdeploy.report import console
    from normdeploy.runtime import find_providers, this_machine

    versions = installed_builds() or {"onnxruntime": "not installed"}
    versions |= {name: version_of(name) or "not installed" for name in _PACKAGES}
    machine = this_machine()
    facts = {
        "normdeploy": __version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "processor": machine.processor,
        "instructions": " ".join(machine.instructions),
        "cores": str(machine.cores),
        "gpu": machine.gpu or "none",
        "torch threads": str(torch.get_num_threads()),
    }
    offered = {provider.name: "usable" if provider.usable else provider.reason for provider in find_providers()}
    problem = conflict()
    if as_json:
        options.print_json({**facts, "packages": versions, "providers": offered, "problem": problem or None})
        return
    console.print_facts("system", facts)
    console.print_facts("packages", versions)
    console.print_facts("execution providers", offered)
    if problem:
        typer.echo(f"problem: {problem}", err=True)
