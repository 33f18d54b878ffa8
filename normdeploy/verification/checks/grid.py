"""Is what flips at quantizers the work of an optimizer that can be named?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from normdeploy.errors import GraphError
from normdeploy.graph import constant_tensor
from normdeploy.graph.traits import is_dequantizer, is_standard
from normdeploy.graph.walk import nodes_in
from normdeploy.ort.byte_products import EXACT_PRODUCTS, WHOLE_OPERANDS
from normdeploy.verification.check_context import Context
from normdeploy.verification.diagnosis.optimizers import guilty_optimizers
from normdeploy.verification.judging.flips import FEW, Flips, step_of
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.record.measured import Flipped
from normdeploy.verification.sides.grids import rounding_themselves
from normdeploy.verification.sides.sessions import Setting


def check_grid(context: Context) -> list[Check]:
    """Judge the elements that runs moved by flips: the work of an optimizer that can be named."""
    if _multiplies_bytes(context.subject.model):
        context.not_checked.append(
            f"8-bit products where a session lacks {'='.join(EXACT_PRODUCTS)}: they saturate on x64 processors without "
            "dot-product instructions; normdeploy's own sessions set it there, where onnxruntime can be asked"
        )
    if _multiplies_stored_weights(context.subject.model):
        context.not_checked.append(
            f"products with weights stored in integers where a session lacks {'='.join(WHOLE_OPERANDS)}: onnxruntime "
            "rounds the floats that they multiply to 8 bits there; normdeploy's own sessions set it"
        )
    checks: list[Check] = []
    found = context.flips.found
    for place in sorted({flips.output for flips in found}):
        moved = [flips for flips in found if flips.output == place]
        settings = list(dict.fromkeys(flips.setting for flips in moved))
        count, name = sum(flips.count for flips in moved), context.subject.output_names[place]
        furthest = max(flips.size for flips in moved)
        size = sum(context.flips.sizes[place, setting] for setting in settings)
        on_grid = step_of(context.subject.model, name, moved[0].case.truth[place].ndim) is not None
        where = "off, by steps of its quantized grid," if on_grid else "off by what flips at quantizers inside explain"
        text = f"{count} of {size} elements of output {name!r} are {where}"
        guilty = [
            explaining_optimizers(context, [flips for flips in moved if flips.setting == setting])
            for setting in settings
        ]
        runs, blamed = "; ".join(map(str, settings)), sorted({name for names in guilty for name in names})
        kernels = rounding_themselves(context.subject.model)
        if not all(guilty) and kernels:
            # What is off is near the file in float64: the kernels of its own operators round otherwise
            text += (
                f" under {runs}: onnxruntime's kernels of {kernels} round their "
                f"results otherwise than these are defined; that is at most {furthest:.2g} times what simulated flips "
                f"make (of {FEW:g} allowed); QuantizeLinear and DequantizeLinear around the real operator, and "
                "disabled_optimizers=['QDQSelectorActionTransformer'], avoid it"
            )
            checks.append(Check(Question.GRID, Status.NOTE, text, Flipped(furthest, (), count, size)))
            continue
        if not all(guilty):
            text += f", and no optimizer of the runtime explains it ({runs})"
            checks.append(Check(Question.GRID, Status.FAIL, text, Flipped(furthest)))
            continue
        option = f"disabled_optimizers={blamed}"
        text += f" under {runs}: onnxruntime's {', '.join(blamed)} rounds what the file does not"
        text += (
            f"; what its rounding of biases leaves is at most {furthest:.2g} times what simulated flips make "
            f"(of {FEW:g} allowed); {option} avoids it"
        )
        measured = Flipped(furthest, tuple(blamed), count, size)
        checks.append(Check(Question.GRID, Status.NOTE, text, measured))
    return checks


_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def _multiplies_bytes(model: ir.Model) -> bool:
    """Tell whether a runtime may multiply values of 8 bits by weights of 8 bits."""
    weights = any(value.dtype in _BYTES and len(value.shape or ()) > 1 for value in model.graph.initializers.values())
    names = {node.op_type for node in nodes_in(model.graph)}
    return weights and any(name.startswith(("Q", "DynamicQuantize")) or "Integer" in name for name in names)


def _multiplies_stored_weights(model: ir.Model) -> bool:
    """Tell whether a MatMul or Gemm reads a weight that is stored in integers, on its way from there to floats."""
    stored = [n for n in nodes_in(model.graph) if is_dequantizer(n) and _is_weight(n.inputs[0])]
    readers = (reader for node in stored for value in node.outputs for reader, _ in value.uses())
    return any(is_standard(reader, "MatMul", "Gemm") for reader in readers)


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and constant_tensor(value) is not None


def explaining_optimizers(context: Context, moved: Sequence[Flips]) -> tuple[str, ...]:
    """Return the optimizers without which no element of some runs (of one setting) is off; () if none explains all."""
    setting = moved[0].setting

    def passes(names: tuple[str, ...]) -> bool:
        other = replace(setting, disabled=tuple(dict.fromkeys((*setting.disabled, *names))))
        try:
            return all(_holds(context, flips, other) for flips in moved)
        finally:
            context.subject.close(other)

    try:
        return guilty_optimizers(context.subject.path, setting.level, passes)
    except GraphError:
        return ()


def _holds(context: Context, flips: Flips, setting: Setting) -> bool:
    return hold_against(flips.case, context.subject.run(flips.case.family.feeds, setting))[flips.output].holds
