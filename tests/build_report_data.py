"""A build's report as plain data, for what shows it."""

from __future__ import annotations

from typing import Any

LATENCY = {"rounds": 9, "median_s": 1e-3, "q25_s": 9e-4, "q75_s": 2e-3, "min_s": 1e-4, "spread": 0.1}
ROW = ("where", "kind", "action", "into", "reason")
RATIO = {"value": 0.5, "low": 0.4, "high": 0.6}
REPORT: dict[str, Any] = {
    "schema": 1,
    "name": "tiny_net",
    "recipe": "tiny_net.toml",
    "normdeploy": "0",
    "versions": {"torch": "2"},
    "status": "pass",
    "training": {"test_accuracy": "0.99"},
    "findings": [{"severity": "warning", "where": "head", "what": "redundant bias", "remedy": "drop it"}],
    "onnx_sha256": "ab" * 32,
    "ledger": {
        "rows": [
            dict(zip(ROW, row, strict=True))
            for row in (
                ("features.1", "BatchNormalization", "folded", "features.0", ""),
                ("features.4", "BatchNormalization", "kept", "", "ReLU stands between"),
                ("norm", "LayerNorm", "fused", "LayerNormalization", "biased"),
            )
        ],
        "counts": {"folded": 1, "fused": 1, "merged": 0, "kept": 1},
    },
    "graph": {
        "traced": {"nodes": 14, "operators": {"Conv": 2, "BatchNormalization": 2}},
        "plain": {"bytes": 2000, "nodes": 12, "operators": {"Conv": 2}},
        "ours": {"bytes": 1500, "nodes": 9, "operators": {"Conv": 2}},
    },
    "latency": {
        "batch_size": 8,
        "threads": 1,
        "contenders": [LATENCY | {"name": name} for name in ("eager torch", "plain export", "normdeploy")],
        "ratios": {"eager torch": RATIO, "plain export": RATIO},
    },
    "quality": {
        "measure": "accuracy",
        "count": 359,
        "eager": {"accuracy": 0.9889, "loss": 0.04, "count": 359},
        "onnxruntime": {"accuracy": 0.9861, "loss": 0.04, "count": 359},
        "agreement": 0.997,
        "largest_difference": 1e-6,
    },
    "machine": {"processor": "P", "instructions": ["avx2"], "cores": 2},
    "verdict": {
        "status": "pass",
        "reasons": [],
        "checks": [{"name": "logic", "status": "pass", "detail": "equal in float64", "measured": {}}],
        "sites": [
            {
                "where": "features.1",
                "kind": "BatchNormalization",
                "mutants": [
                    {"name": "epsilon x10", "killed": True, "note": ""},
                    {"name": "shift dropped", "killed": False, "note": "harmless here"},
                ],
            }
        ],
        "not_checked": ["GPU providers"],
    },
}  # fmt: skip
