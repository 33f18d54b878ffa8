r"""A run held part by part: whether the network amplifies rounding, or something in it is computed wrongly.

Where a network's outputs hang on the flank of something steep, the rounding of a first operator is as large as the
output in the end, and a few runs with noise may miss what one run of the runtime meets. Such a run is cut into parts of
a few operators. What the runtime itself computed at a part's entry is evaluated in float64 behind it, and what the
runtime computed at its exit is held against that by the criterion of this part alone, so that nothing is amplified:

.. math:: \lvert o_\text{exit} - f_\text{part}(o_\text{entry}) \rvert \le \text{the bound of } f_\text{part}

The values between the parts are outputs of the run that is cut, so it is another session than the one that is judged: a
runtime fuses nothing across a value that it has to give away. It speaks for an output of the judged one only if it ends
in the very same bits there; then that output is what a chain of parts makes, each of which is right. Two cuts are made,
and no border of one is a border of the other: what goes wrong at a border of one lies inside a part of the other. Where
showing so many values changes the bits, larger parts are tried.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from normdeploy.array_types import Array, Arrays
from normdeploy.errors import GraphError
from normdeploy.graph import bare_proto, module_path, weight_bytes
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.walk import values_read
from normdeploy.verification.bounds.noise import NoisyGraph
from normdeploy.verification.family_case import make_case
from normdeploy.verification.judging.outputs import hold_against
from normdeploy.verification.samples.family import Family
from normdeploy.verification.sides.flat_values import Feeds
from normdeploy.verification.sides.part_reference import PartReference
from normdeploy.verification.sides.sessions import Setting, open_session, run_session
from normdeploy.verification.sides.subgraph import array_type, opened, subgraph
from normdeploy.verification.sides.subject import Subject

SIZES = (8, 16, 32)
"""Operators of a part, tried in this order while showing the values between them changes the runtime's bits."""

_LARGEST = 1 << 30
"""Bytes of weights above which a file is not cut: the opened file holds them once more."""

_NEAR = 2
"""How many operators a border may lie beside its place, where fewer values cross."""

_SHOWN = frozenset(
    {
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.FLOAT16,
        ir.DataType.INT64,
        ir.DataType.INT32,
        ir.DataType.INT8,
        ir.DataType.UINT8,
        ir.DataType.BOOL,
    }
)
"""Types of values that a run can give away as arrays."""

_RUNS = 4
"""Runs with noise behind a part's bound; sixteen more where it is exceeded by little."""


@dataclass(frozen=True)
class InParts:
    """What cutting a run showed.

    Args:
        holds: every part of two cuts is right, and what was cut is the run that is judged.
        worst: the largest error over bound of any part. parts: how many were held.
        why: what does not hold, in words.
    """

    holds: bool
    worst: float = 0.0
    parts: int = 0
    why: str = ""


@dataclass(frozen=True)
class _Part:
    """Some operators in a row.

    Args:
        nodes: they. exits: values that they compute and others, or the user, read.
        fixed: operators of the graph that follow from constants: each part that reads them has its own.
    """

    nodes: Sequence[ir.Node]
    exits: Sequence[ir.Value]
    fixed: Set[ir.Node]


def held_in_parts(
    subject: Subject,
    feeds: Feeds,
    outputs: Sequence[Array],
    setting: Setting,
    *,
    seed: int,
    judged: Collection[int] | None = None,
) -> InParts:
    """Hold a run of the file part by part.

    Args:
        subject: the file, whose graph is known to be right. feeds: what it was run on. outputs: what came out.
        setting: how it was run. seed: of the noise.
        judged: numbers of the outputs that it shall speak for; all by default.
    """
    spoken_for = {
        name: output
        for i, (name, output) in enumerate(zip(subject.output_names, outputs, strict=True))
        if judged is None or i in judged
    }
    if weight_bytes(subject.model) > _LARGEST:
        return InParts(False, why=f"weights of more than {_LARGEST >> 20} MB are not cut into parts")
    why = ""
    for size in SIZES:
        found: list[InParts] = []
        for parts in cuts(subject.model.graph, size):
            try:
                one = _held(subject, parts, feeds, spoken_for, setting, seed)
            except GraphError as error:
                return InParts(False, why=f"it cannot be cut into parts ({error})")
            if one is None:
                why = "showing the values between its parts changes what the runtime computes"
                break
            if not one.holds:
                return one
            found.append(one)
        else:
            return InParts(True, max(one.worst for one in found), sum(one.parts for one in found))
    return InParts(False, why=why)


def _held(
    subject: Subject, parts: Sequence[_Part], feeds: Feeds, judged: Arrays, setting: Setting, seed: int
) -> InParts | None:
    """Hold every part of one cut; None where the run with its values shown ends in other bits of what is judged."""
    names = [str(value.name) for part in parts for value in part.exits]
    session = open_session(bare_proto(opened(subject.model, names)).SerializeToString(), setting)
    wanted = list(dict.fromkeys([*subject.output_names, *names]))
    ran = run_session(session, {name: feeds[name] for name in subject.input_names}, wanted)
    values: Arrays = {**feeds, **dict(zip(wanted, ran, strict=True))}
    if not all(_same_bits(values[name], output) for name, output in judged.items()):
        return None
    worst = 0.0
    for part in parts:
        ratio = _ratio(subject.model, part, values, seed)
        worst = max(worst, ratio)
        if not ratio <= 1:
            named = ", ".join(dict.fromkeys(node.op_type for node in part.nodes))
            place = module_path(part.nodes[0]) or str(part.nodes[0].name)
            return InParts(False, ratio, len(parts), f"from {place!r} on, {named} alone err by {ratio:.3g} bounds")
    return InParts(True, worst, len(parts))


def _ratio(model: ir.Model, part: _Part, values: Arrays, seed: int) -> float:
    """Return the largest error over bound of a part's exits; infinite for what is not a matter of rounding."""
    exits = [str(value.name) for value in part.exits]
    small = subgraph(model, part.nodes, exits, values, fixed=part.fixed)
    feeds = {str(value.name): values[str(value.name)] for value in small.graph.inputs}
    reference = PartReference(small, [np.asarray(values[name]).dtype for name in exits])
    own = Family("part", feeds)
    case = make_case(reference, NoisyGraph(small), own, exits, runs=_RUNS, seed=seed, precision="float32")
    worst = 0.0
    for result in hold_against(case, [values[name] for name in exits]):
        if result.problems:
            return float("inf")
        worst = max(worst, 0.0 if result.judgement is None else result.judgement.ratio)
    return float("inf") if case.found_undecided else worst  # nothing was judged there


def _same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def cuts(graph: ir.Graph, size: int) -> Iterator[list[_Part]]:
    """Yield two cuts of a graph into parts of about ``size`` operators, without a border in common."""
    fixed = fixed_nodes(graph).by_constants  # weights stored in integers among them
    nodes = [node for node in graph if node not in fixed]
    crossing = _crossing(nodes)
    taken: set[int] = set()
    for first in (size, size // 2):
        borders = _borders(crossing, range(first, len(nodes), size), taken)
        taken.update(borders)
        yield _parts(nodes, graph, [0, *borders, len(nodes)], fixed)


def _borders(crossing: Sequence[int | None], places: Collection[int], taken: Collection[int]) -> list[int]:
    """Return a border near each place: where fewest values cross, so that what a runtime fuses is rarely cut.

    Args:
        crossing: how many values cross in front of each operator; None where one cannot be shown.
        taken: borders of the other cut.
    """
    found: list[int] = []
    for place in places:
        near = range(max(place - _NEAR, 1), min(place + _NEAR + 1, len(crossing)))
        free = [(count, abs(i - place), i) for i in near if (count := crossing[i]) is not None and i not in taken]
        if free and (not found or min(free)[2] > found[-1]):
            found.append(min(free)[2])
    return found


def _crossing(nodes: Sequence[ir.Node]) -> list[int | None]:
    """Return how many values made in front of each operator are read by it or behind it."""
    last: dict[ir.Value, int] = {}
    for i, node in enumerate(nodes):
        last.update(dict.fromkeys(values_read(node), i))
    count, hidden = [0] * (len(nodes) + 1), [0] * (len(nodes) + 1)
    for i, node in enumerate(nodes):
        for value in node.outputs:
            for row in (count, hidden) if array_type(value) not in _SHOWN else (count,):
                row[i + 1] += 1
                row[max(last.get(value, i), i) + 1] -= 1
    totals = zip(np.cumsum(count).tolist(), np.cumsum(hidden).tolist(), strict=True)
    return [None if kept else crossing for crossing, kept in list(totals)[: len(nodes)]]


def _parts(nodes: Sequence[ir.Node], graph: ir.Graph, borders: Sequence[int], fixed: Set[ir.Node]) -> list[_Part]:
    found = []
    owner = {node: number for number, at in enumerate(borders[:-1]) for node in nodes[at : borders[number + 1]]}
    read: dict[ir.Value, set[int]] = {}
    for node in nodes:
        for value in values_read(node):
            read.setdefault(value, set()).add(owner[node])
    outputs = set(graph.outputs)
    for number, at in enumerate(borders[:-1]):
        mine = nodes[at : borders[number + 1]]
        made = [value for node in mine for value in node.outputs if value.name]
        exits = [value for value in made if value in outputs or read.get(value, set()) - {number}]
        if exits:
            found.append(_Part(mine, exits, fixed))
    return found
