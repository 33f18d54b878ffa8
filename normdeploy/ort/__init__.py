"""Room: ort. What verification and runtime both need of onnxruntime: settings, levels, providers, this machine.

Nothing here imports torch, and onnx only ``declared`` and ``support`` do.
"""
