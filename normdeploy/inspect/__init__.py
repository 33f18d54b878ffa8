"""What is wrong or risky in a model's normalizations, before export or in any ONNX file."""

from normdeploy.inspect.doctor import inspect
from normdeploy.inspect.findings import Finding, Findings

__all__ = ["Finding", "Findings", "inspect"]
