"""Outputs on a quantized grid: elements that the runtime's own optimizers move by one step.

An output that the file itself quantizes (a QuantizeLinear, or a DequantizeLinear behind one) takes the values of a grid
alone. A runtime that rounds something in front of it, as onnxruntime's WeightBiasQuantization rounds the float bias of
an int8 convolution to integers of scale(x) scale(w), turns the last rounding of a few elements: each is off by exactly
one step of the grid, far beyond float32's rounding and yet no fault of the file. Such elements are taken out of the
rounding judgement and held against a judgement of their own: few, by one step each, and gone where the optimizer that
moves them is switched off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import constant64
from normdeploy.verification.cases import Case, OutputResult, hold_against
from normdeploy.verification.context import Context
from normdeploy.verification.diagnosis.optimizers import guilty_optimizers
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.values import Array

MOST = 0.01
"""Share of an output's elements, all runs together, that may be off by one step."""


@dataclass(frozen=True)
class Flips:
    """Elements of one output that one run moved by one step.

    Args:
        output: which output. setting: how the file was run. case: on what.
        count: elements off by one step.
    """

    output: int
    setting: Setting
    case: Case
    count: int


def flips_of(context: Context, case: Case, result: OutputResult, outputs: Sequence[Array], setting: Setting) -> bool:
    """Tell whether an output that fails differs from its truth by single steps of its grid alone; keep them if so.

    Args:
        result: what was found of the output. outputs: the run's. setting: how the file was run.
    """
    place = result.index
    got, truth = outputs[place], case.truth[place]
    step = step_of(context.subject.model, context.subject.output_names[place], got.ndim)
    if step is None or got.shape != truth.shape:
        return False
    seen = context.facts.setdefault("on grid", Counter())
    seen[place, str(setting)] += int(got.size)
    failing = bool(result.problems) or (result.judgement is not None and not result.judgement.ratio <= 1)
    if not failing or not np.isfinite(got.astype(np.float64)).all():
        return False
    steps = np.round((got.astype(np.float64) - np.asarray(truth, np.float64)) / step)
    if np.abs(steps).max(initial=0.0) != 1:
        return False
    settled = list(outputs)
    settled[place] = (got.astype(np.float64) - steps * step).astype(got.dtype)
    again = hold_against(case, settled)[place]
    if again.problems or (again.judgement is not None and not again.judgement.ratio <= 1):
        return False
    count = int(np.count_nonzero(steps))
    context.facts.setdefault("flips", []).append(Flips(place, setting, case, count))
    return True


def step_of(model: ir.Model, name: str, rank: int) -> Array | float | None:
    """Return the step of the grid that an output lies on, ready to divide it by; None where it lies on none.

    Args:
        model: the file's graph. name: of the output. rank: its number of axes.
    """
    value = next((v for v in model.graph.outputs if v.name == name), None)
    node = None if value is None else value.producer()
    if node is not None and node.op_type == "QuantizeLinear":
        return 1.0
    if node is None or node.op_type != "DequantizeLinear" or node.domain not in ("", "ai.onnx"):
        return None
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    scale = None if node.inputs[1] is None else constant64(node.inputs[1])
    if source is None or source.op_type != "QuantizeLinear" or scale is None or not (scale > 0).all():
        return None
    if scale.size == 1:
        return float(scale.reshape(()))
    if scale.ndim != 1:  # blocked scales
        return None
    axis = node.attributes.get_int("axis", 1) % rank
    return np.asarray(scale).reshape([-1 if k == axis else 1 for k in range(rank)])


def check_grid(context: Context) -> None:
    """Judge the elements that runs moved by one step: few, and the work of an optimizer that can be named."""
    found: list[Flips] = context.facts.get("flips", [])
    for place in sorted({flips.output for flips in found}):
        moved = [flips for flips in found if flips.output == place]
        runs = {str(flips.setting): flips for flips in moved}
        count, name = sum(flips.count for flips in moved), context.subject.output_names[place]
        size = sum(context.facts["on grid"][place, word] for word in runs)
        text = f"{count} of {size} elements of output {name!r} are one step of its quantized grid off"
        optimizers = {word: _guilty(context, [f for f in moved if str(f.setting) == word]) for word in runs}
        blamed = sorted({optimizer for names in optimizers.values() for optimizer in names})
        if not all(optimizers.values()):
            context.answer("grid", "fail", f"{text}, and no optimizer of the runtime explains it ({'; '.join(runs)})")
            continue
        option = f"disabled_optimizers={blamed}"
        text += f" under {'; '.join(runs)}: onnxruntime's {', '.join(blamed)} rounds what the file does not"
        if count > MOST * size:
            context.answer("grid", "fail", f"{text}; expected at most {MOST:.0%}: run it with {option}")
        else:
            context.answer("grid", "note", f"{text}; {option} avoids it", optimizers=blamed, flips=count, size=size)


def _guilty(context: Context, moved: Sequence[Flips]) -> tuple[str, ...]:
    """Return the optimizers without which no element of some runs (of one setting) is off; () if none explains all."""
    setting = moved[0].setting

    def passes(names: tuple[str, ...]) -> bool:
        other = replace(setting, disabled=tuple(dict.fromkeys((*setting.disabled, *names))))
        try:
            return all(_holds(context, flips, other) for flips in moved)
        except GraphError:
            return False
        finally:
            context.subject.close(other)

    try:
        return guilty_optimizers(context.subject.path, setting.level, passes)
    except GraphError:
        return ()


def _holds(context: Context, flips: Flips, setting: Setting) -> bool:
    result = hold_against(flips.case, context.subject.run(flips.case.family.feeds, setting))[flips.output]
    return not result.problems and (result.judgement is None or result.judgement.ratio <= 1)
