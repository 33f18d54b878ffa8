"""Shapes that the file declares, held against those that it returned: an engine that plans by them is told wrong."""

from __future__ import annotations

import onnx_ir as ir

from normdeploy.verification.check_context import Context
from normdeploy.verification.record.answers import Check, Question, Status
from normdeploy.verification.sides.declared_shapes import declared_alike, in_words
from normdeploy.verification.sides.exact_agreement import shortened
from normdeploy.verification.sides.graph_reference import GraphReference

_REMEDY = "what plans memory by declared shapes is told wrong; write the shape that it has, or leave it open"


def check_declared(context: Context) -> list[Check]:
    """Fail outputs whose declared rank, or a fixed size, a run contradicted; note names of sizes, and values inside.

    What an ONNX reference declares just so is no difference from it, and is noted.
    """
    declared, theirs = context.subject.declared, _of_reference(context)
    wrong, noted = list[str](), list[str]()
    for name, found in declared.wrong.items():
        shape = declared.outputs[name]
        text = f"output {name!r} is declared {in_words(shape)} and returned {list(found)}"
        if name in theirs and declared_alike(theirs[name], shape):
            noted.append(f"{text}, and so is the reference's")
        else:
            wrong.append(text)
    for name, (word, its, size) in declared.renamed.items():
        noted.append(
            f"output {name!r} is declared of size {word!r} and returned {size} where that is {its} of an input"
        )
    if context.proven is not None:
        for name, shape, found in declared.wrong_inside(context.proven.sizes):
            noted.append(f"{name!r} is declared {in_words(shape)} and is {list(found)}")
    answers = ((Status.FAIL, wrong), (Status.NOTE, noted))
    return [Check(Question.STRUCTURE, status, f"{shortened(told)}: {_REMEDY}") for status, told in answers if told]


def _of_reference(context: Context) -> dict[str, ir.Shape]:
    """Return the shapes that an ONNX reference declares, by the name of the file's output in its place."""
    if not isinstance(context.reference, GraphReference):
        return {}
    names = zip(context.subject.output_names, context.reference.output_names, strict=False)
    return {ours: context.reference.declared[its] for ours, its in names if its in context.reference.declared}
