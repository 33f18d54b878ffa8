"""Operators of torch in ONNX's own, where torch's exporter has no translation, or a wrong one."""
