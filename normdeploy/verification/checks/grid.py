"""Flips: values that the runtime's own optimizers put on the other side of a quantizer's tie.

A runtime that rounds something in front of a quantizer, as onnxruntime's WeightBiasQuantization rounds the float bias
of an int8 convolution to integers of scale(x) scale(w), turns the rounding of a few values: each is off by one step
there, far beyond float32's rounding and yet no fault of the file. Where that quantizer is the output's own, the output
is off by steps of its grid; where it lies inside, by what a step inside makes of it. Such outputs are taken out of the
rounding judgement and held against one of their own: they stay on their grid if they have one, agree where the
optimizer that moves them is switched off, and move not much further than where, in float64, 1 % of the values at each
quantizer, those nearest to a tie, are flipped (:mod:`normdeploy.verification.sides.grids`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import constant64
from normdeploy.graph.traits import is_standard
from normdeploy.verification.cases import Case, OutputResult, hold_against
from normdeploy.verification.context import Context
from normdeploy.verification.diagnosis.optimizers import guilty_optimizers
from normdeploy.verification.sides.grids import flipped, quantizes
from normdeploy.verification.sides.reference import run_evaluator
from normdeploy.verification.sides.sessions import Setting
from normdeploy.verification.sides.values import Array


@dataclass(frozen=True)
class Flips:
    """Elements of one output that one run moved by flips.

    Args:
        output: which output. setting: how the file was run. case: on what.
        count: elements that are off.
        size: the error over that of the simulated flips, in the 2-norm.
    """

    output: int
    setting: Setting
    case: Case
    count: int
    size: float


def flips_of(context: Context, case: Case, result: OutputResult, outputs: Sequence[Array], setting: Setting) -> bool:
    """Tell whether an output that fails differs from its truth by no more than flips explain; keep them if so.

    Args:
        result: what was found of the output. outputs: the run's. setting: how the file was run.
    """
    place = result.index
    got, truth = outputs[place], case.truth[place]
    failing = bool(result.problems) or (result.judgement is not None and not result.judgement.ratio <= 1)
    if got.shape != truth.shape or not quantizes(context.subject.evaluator):
        return False
    seen = context.facts.setdefault("on grid", Counter())
    seen[place, str(setting)] += int(got.size)
    if not failing or not np.isfinite(got.astype(np.float64)).all():
        return False
    error = got.astype(np.float64) - np.asarray(truth, np.float64)
    step = step_of(context.subject.model, context.subject.output_names[place], got.ndim)
    if step is not None:
        steps = np.round(error / step)
        settled = list(outputs)
        settled[place] = (got.astype(np.float64) - steps * step).astype(got.dtype)
        again = hold_against(case, settled)[place]
        if again.problems or (again.judgement is not None and not again.judgement.ratio <= 1):
            return False  # off the grid
    else:
        steps = np.abs(error) > _MOVED * np.abs(np.asarray(truth, np.float64)).max(initial=0.0)
    simulated, moved = _flipped_error(context, case, place), float(np.linalg.norm(error))
    if moved > FEW * simulated:
        return False
    count, size = int(np.count_nonzero(steps)), moved / simulated if simulated else float("inf")
    context.facts.setdefault("flips", []).append(Flips(place, setting, case, count, size))
    return True


_MOVED = 1e-6
"""Differences relative to the largest value that count as moved, of outputs that lie on no grid."""


FEW = 4.0
"""Times the simulated flips' effect that is allowed: of a few flips, which values they are makes so much."""


def _flipped_error(context: Context, case: Case, place: int) -> float:
    """Return how far an output moves (in the 2-norm) where SHARE of the values at each quantizer are flipped."""
    kept: dict[tuple[int, int], float] = context.facts.setdefault("flipped", {})
    if (id(case), place) not in kept:
        evaluator, feeds = context.subject.evaluator, case.family.feeds
        moved = run_evaluator(evaluator, feeds, stand_ins=flipped(evaluator))
        found = [moved[name] for name in context.subject.output_names]
        for index, (a, b) in enumerate(zip(context.subject.logic(feeds), found, strict=True)):
            error = np.asarray(a, np.float64) - np.asarray(b, np.float64)
            kept[id(case), index] = float(np.linalg.norm(error))
    return kept[id(case), place]


def step_of(model: ir.Model, name: str, rank: int) -> Array | float | None:
    """Return the step of the grid that an output lies on, ready to divide it by; None where it lies on none.

    Args:
        model: the file's graph. name: of the output. rank: its number of axes.
    """
    value = next((v for v in model.graph.outputs if v.name == name), None)
    direct = _behind(value, frozenset({"Identity"}))
    node = _behind(value, _MOVES)
    if node is None or not is_standard(node):
        return None
    if node.op_type == "QuantizeLinear":
        return 1.0
    scale = constant64(node.inputs[1]) if node.op_type == "DequantizeLinear" else None
    source = _behind(node.inputs[0], _MOVES)
    if source is None or source.op_type != "QuantizeLinear" or scale is None or not (scale > 0).all():
        return None
    if scale.size == 1:
        return float(scale.reshape(()))
    if scale.ndim != 1 or node is not direct:  # blocked scales, or channels that were moved
        return None
    axis = node.attributes.get_int("axis", 1) % rank
    return np.asarray(scale).reshape([-1 if k == axis else 1 for k in range(rank)])


_MOVES = frozenset(
    {
        "Identity",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Slice",
        "Relu",
        "Clip",
        "MaxPool",
        "Gather",
    }
)
"""Operators that leave values on their grid; a Clip of integers stands between the quantizers of a narrow range."""


def _behind(value: ir.Value | None, passed: frozenset[str]) -> ir.Node | None:
    """Return the operator that computes a value, some seen through."""
    node = None if value is None else value.producer()
    while node is not None and is_standard(node, *passed):
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node


def check_grid(context: Context) -> None:
    """Judge the elements that runs moved by flips: the work of an optimizer that can be named."""
    found: list[Flips] = context.facts.get("flips", [])
    for place in sorted({flips.output for flips in found}):
        moved = [flips for flips in found if flips.output == place]
        runs = {str(flips.setting): flips for flips in moved}
        count, name = sum(flips.count for flips in moved), context.subject.output_names[place]
        furthest = max(flips.size for flips in moved)
        size = sum(context.facts["on grid"][place, word] for word in runs)
        on_grid = step_of(context.subject.model, name, moved[0].case.truth[place].ndim) is not None
        where = "off, by steps of its quantized grid," if on_grid else "off by what flips at quantizers inside explain"
        text = f"{count} of {size} elements of output {name!r} are {where}"
        optimizers = {word: _guilty(context, [f for f in moved if str(f.setting) == word]) for word in runs}
        blamed = sorted({optimizer for names in optimizers.values() for optimizer in names})
        if not all(optimizers.values()):
            context.answer(
                "grid",
                "fail",
                f"{text}, and no optimizer of the runtime explains it ({'; '.join(runs)})",
                ratio=furthest,
            )
            continue
        option = f"disabled_optimizers={blamed}"
        text += f" under {'; '.join(runs)}: onnxruntime's {', '.join(blamed)} rounds what the file does not"
        text += (
            f"; furthest off {furthest:.2g} times what simulated flips make (of {FEW:g} allowed); {option} avoids it"
        )
        context.answer("grid", "note", text, optimizers=blamed, flips=count, size=size, ratio=furthest)


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
