"""What is wrong or risky in a model's normalizations, before export or in any ONNX file."""

from normdeploy.inspection.doctor import inspect
from normdeploy.inspection.findings import Finding, Findings

__all__ = ["Finding", "Findings", "inspect"]
