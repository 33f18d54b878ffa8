"""Room: runtime. Exported models as functions: sessions, benchmark, tuning, bulk prediction, serving packages.

Names are loaded when first used, so that a worker that only predicts does not import torch::

    load(path, *, plan=None) -> Predictor
        predictor(array or dict) -> array or dict; .batched(...); .inputs .outputs (TensorSpec)
    measure_latency({name: callable}, *, rounds=None, seconds=5.0, warmup=3, seed=0) -> {name: Latency}
        interleaved timing of anything; Latency.median .quartiles .ratio(other)
    bench(path, *, against=(), inputs=None, sizes=None, batch_sizes=(1, 8), threads=None, seconds=5.0, rounds=None,
          plan=None, peers=None, memory=True, seed=0, progress=None) -> BenchResult  .to_json() .summary() .plot(path)
        against: modules, SOURCE strings, ModuleSource(source, arguments, weights) or ONNX files
    tune(path, *, data=None, reference=None, budget=None, batch_size=8, sizes=None, seconds=40.0, time_limit=900.0,
         seed=0, precedence=True, opponent=None, overwrite=False, progress=None) -> Plan
        .summary() .to_json() .chosen .trials .path .company
        progress: a function of (sentence)
    retune(plan, *, data=None, reference=None, progress=None, **options of tune) -> Plan
    predict(path, data, out, *, plan=None, batch_size=64, engine="local", workers=None, columns=None,
            images=None, overwrite=False, progress=None) -> BulkResult             .rows .bad .out .bad_file .summary()
        progress: a function of (rows done, rows in all or None)
    package_triton(path, folder, *, name=None, max_batch_size=64, plan=None, serving=None) -> Path
    package_web(path, folder=None, *, title=None, sizes=None, images=None, labels=None, web_runtime=None) -> Path
    package_mobile(path, folder=None, *, verify="quick") -> Path
    find_providers() -> tuple[Provider, ...]                          what this machine can run, and why not the rest
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from normdeploy.ort.installed import require_onnxruntime

if TYPE_CHECKING:
    from normdeploy.ort.machine import Machine, this_machine
    from normdeploy.ort.providers import Provider, find_providers
    from normdeploy.ort.settings import Settings
    from normdeploy.ort.specs import TensorSpec
    from normdeploy.runtime.bench_result import BenchResult
    from normdeploy.runtime.benchmark import bench
    from normdeploy.runtime.bulk import BulkResult, ImageOptions, predict
    from normdeploy.runtime.latency import Latency, Ratio, measure_latency, paired_ratio
    from normdeploy.runtime.mobile import package_mobile
    from normdeploy.runtime.module_peers import ModuleSource
    from normdeploy.runtime.plan import Plan, Trial, plan_path
    from normdeploy.runtime.predictor import CertificateWarning, PlanWarning, Predictor, load
    from normdeploy.runtime.serving import Serving
    from normdeploy.runtime.triton import package_triton
    from normdeploy.runtime.tuning.retune import retune
    from normdeploy.runtime.tuning.tuning_search import tune
    from normdeploy.runtime.web_page import package_web

require_onnxruntime()

_LAZY = {
    "retune": "runtime.tuning.retune",
    "tune": "runtime.tuning.tuning_search",
    "package_mobile": "runtime.mobile",
    "package_triton": "runtime.triton",
    "package_web": "runtime.web_page",
    "BulkResult": "runtime.bulk",
    "ImageOptions": "runtime.bulk",
    "predict": "runtime.bulk",
    "BenchResult": "runtime.bench_result",
    "bench": "runtime.benchmark",
    "CertificateWarning": "runtime.predictor",
    "Latency": "runtime.latency",
    "Machine": "ort.machine",
    "ModuleSource": "runtime.module_peers",
    "Plan": "runtime.plan",
    "PlanWarning": "runtime.predictor",
    "Predictor": "runtime.predictor",
    "Provider": "ort.providers",
    "Ratio": "runtime.latency",
    "Serving": "runtime.serving",
    "Settings": "ort.settings",
    "TensorSpec": "ort.specs",
    "Trial": "runtime.plan",
    "load": "runtime.predictor",
    "measure_latency": "runtime.latency",
    "paired_ratio": "runtime.latency",
    "plan_path": "runtime.plan",
    "find_providers": "ort.providers",
    "this_machine": "ort.machine",
}

__all__ = [
    "BenchResult",
    "BulkResult",
    "CertificateWarning",
    "ImageOptions",
    "Latency",
    "Machine",
    "ModuleSource",
    "Plan",
    "PlanWarning",
    "Predictor",
    "Provider",
    "Ratio",
    "Serving",
    "Settings",
    "TensorSpec",
    "Trial",
    "bench",
    "find_providers",
    "load",
    "measure_latency",
    "package_mobile",
    "package_triton",
    "package_web",
    "paired_ratio",
    "plan_path",
    "predict",
    "retune",
    "this_machine",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'normdeploy.runtime' has no attribute {name!r}")
    return getattr(importlib.import_module(f"normdeploy.{_LAZY[name]}"), name)
