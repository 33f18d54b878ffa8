"""The public functions: export, fold, inspect, verify, tune (``load``, ``bench`` and ``package`` are the runtime's own,
``diff`` that of the room ``compare``).

Each is a short composition of rooms; what a room does is written there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from normdeploy.files import PathLike
from normdeploy.parsing.amounts import require_count
from normdeploy.proven import ExportResult, FoldResult, Level, Progress
from normdeploy.writing import export, fold

if TYPE_CHECKING:
    from torch import nn

    from normdeploy.inspection import Findings
    from normdeploy.runtime import Plan
    from normdeploy.verification import Verdict

__all__ = ["ExportResult", "FoldResult", "export", "fold", "inspect", "tune", "verify"]


def inspect(model_or_path: nn.Module | PathLike, args: Any = None) -> Findings:
    """Say what is wrong or risky in a model's normalizations, before export.

    Args:
        model_or_path: an eager torch module, or an ONNX file.
        args: example arguments; with them, what shows only when the model runs is found too.

    Returns:
        Findings: iterable of ``.severity .where .what .remedy``.

    Raises:
        ModelError: the model, its arguments or the file are unusable.

    >>> import torch, normdeploy as nd
    >>> findings = nd.inspect(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
    >>> [(finding.severity, finding.where, finding.what.partition(":")[0]) for finding in findings]
    [('warning', '1', 'its running statistics are still mean 0 and variance 1')]
    """
    from normdeploy.inspection import inspect as run_inspection

    return run_inspection(model_or_path, args)


def verify(
    model_or_onnx: nn.Module | PathLike,
    path: PathLike,
    *,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    data: Any = None,
    seed: int = 0,
    level: Level = "default",
    budget: str | None = None,
    runtime: str = "cpu",
    progress: Progress | None = None,
) -> Verdict:
    """Prove that the ONNX file at ``path`` computes what the reference computes, or say where it does not.

    Logic is checked in float64, rounding is judged in float32, and every check must show that it could have failed.

    Args:
        model_or_onnx: the reference: an eager torch module or an ONNX file.
        path: the ONNX file to judge.
        args: example arguments of the module, where ``path`` alone does not tell how to call it.
        kwargs: example keyword arguments.
        data: inputs of yours, joining the input families: an array or a dict of arrays by input name.
        seed: of the inputs made.
        level: how much to try.
        budget: what lower precision may cost, for a file that has it: "rel=1e-2" or "top1=0.5%". The file is then
            judged against its own stored weights in float64, and their loss against this budget.
        runtime: what runs the file: "cpu"; "cuda" or "tensorrt" (docs/howto/gpu.md); "web", onnxruntime-web in a
            headless browser; "mobile", its ORT format on the CPU (docs/web.md).
        progress: called with (stage, share done) while the verifier works.

    Returns:
        Verdict: ``.status`` is "pass", "weak", "not-exercised", "fail" or "error"; ``.to_json() .to_html()``.

    Raises:
        UsageError: a negative seed, or a budget that does not follow the grammar.
        ModelError: the reference, the file or the data are unusable.
        MissingDependencyError: the browser, or what it runs, is not here.
        BrowserError: the browser ended, or does not answer.

    >>> import normdeploy as nd
    >>> print(nd.verify("plain.onnx", "folded.onnx", level="quick").status)  # files of the example of fold
    pass
    """
    from normdeploy.verification import verify as run_verifier
    from normdeploy.verification.runtimes import judged_under

    require_count("seed", seed, least=0)
    with judged_under(runtime) as settings:
        return run_verifier(
            model_or_onnx,
            path,
            args=args,
            kwargs=kwargs,
            data=data,
            seed=seed,
            level=level,
            budget=budget,
            settings=settings,
            progress=progress,
        )


def tune(
    path: PathLike,
    *,
    data: Any = None,
    reference: Any = None,
    budget: str | None = None,
    batch_size: int = 8,
    sizes: Mapping[str, int] | None = None,
    seconds: float = 40.0,
    time_limit: float = 900.0,
    precedence: bool = True,
    overwrite: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Find the fastest way to run the model on this machine within a verified budget; saved as ``<name>.plan.json``.

    Args:
        path: the ONNX file.
        data: inputs of yours, needed for reduced precision: an array or a dict of arrays by input name.
        reference: what results are compared with; the file itself in float64 by default.
        budget: "exact" (default), or a loss as "top1=0.5%" or "rel=1e-2".
        batch_size: samples per timed call: give the batch that will be used.
        sizes: sizes of dynamic dimensions other than the batch, by word, where ``data`` does not tell them.
        seconds: for all timing; judging and converting come on top.
        time_limit: seconds after which nothing new is tried.
        precedence: put this process before other programs while ways are timed, where the system grants it.
        overwrite: allow replacing the plan, and the variant of lower precision, that lie beside the model.
        progress: called with a sentence before each step.

    Returns:
        Plan: what to run, what was tried, what each candidate cost and lost.

    Raises:
        OutputExistsError: there is a plan and ``overwrite`` is false.
        ModelError: the file or the data are unusable.
        UsageError: the budget does not follow the grammar, a count below 1, or seconds that are not above 0.

    >>> import normdeploy as nd
    >>> plan = nd.tune("folded.onnx")
    >>> plan.path.name, nd.load("folded.onnx", plan=plan).settings == plan.settings
    ('folded.plan.json', True)
    """
    from normdeploy.runtime import tune as run_tuner

    return run_tuner(
        path,
        data=data,
        reference=reference,
        budget=budget,
        batch_size=batch_size,
        sizes=sizes,
        seconds=seconds,
        time_limit=time_limit,
        precedence=precedence,
        overwrite=overwrite,
        progress=progress,
    )
