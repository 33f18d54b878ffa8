r"""Sites of the traced graph whose numbers the module's own calls name, and the mutants that this comparison sees.

With `--quick` the traced graph is not evaluated where the file is confirmed to be it for every input: the file's runs
say then, to rounding, whether the trace is the module. An epsilon, or a shift behind a hundred layers, is below that.
So the numbers themselves are compared: those that an operator of the traced graph holds (scale, shift, mean, variance
to the bit, an epsilon or another Python number to its rounding to float32) with those that a call of the module hands
to torch, each call for one operator. Had the trace been a mutant, no call would have named its numbers.

A mutant is seen where it is another function than the site: where it changes what the site makes of random numbers by
more than float64's rounding. Where it leaves an affine map as it is, to the bit, it is the same function. A norm that
the trace spells out, and numbers that no call names, are left to a comparison of values
(:mod:`normdeploy.verification.mutation.watched_sites`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from normdeploy.errors import GraphError
from normdeploy.graph import Evaluator, constant64, constant_tensor, evaluate_node
from normdeploy.graph.fixed_values import fixed_nodes
from normdeploy.graph.traits import is_standard
from normdeploy.nn.as_numpy import to_numpy
from normdeploy.verification.float64_chain import FINEST
from normdeploy.verification.mutation.known_numbers import constants_of_graph, group_norms, only_use
from normdeploy.verification.mutation.lone_rows import one_row
from normdeploy.verification.mutation.mutants import BATCH_NORM, INSTANCE_NORM, Site, is_norm, opsets
from normdeploy.verification.mutation.named_regions import Step, evaluated, region_of, step_of
from normdeploy.verification.mutation.random_rows import ROWS, SAMPLES, away_from, random_numbers, random_rows
from normdeploy.verification.mutation.same_numbers import equal, rounded, same_group, same_norm, take
from normdeploy.verification.mutation.watched_sites import Key
from normdeploy.verification.sides.call_record import CallRecord, NormCall
from normdeploy.verification.sides.flat_values import UNIT_ROUNDOFF

_ROWS_OF = ("Identity", "Slice", "Reshape")
"""What takes rows of a norm's result."""

_ROUNDED = 4 * UNIT_ROUNDOFF["float32"]
"""Relative difference up to which a site is what operators of the traced graph make there: numbers of a site that is
recognised in several are products of theirs, rounded."""


class NamedSites:
    """Sites that calls of the module name.

    Args:
        evaluator: of the traced graph. groups: sites, by the graph that they were found in. record: the module's calls.

    Attributes:
        ratios: by how many times what float64 rounds a mutant is another function than its site.
        same: the mutants that are the same function. left: the sites that no call names, by the graph.
        count: how many sites are named.
    """

    def __init__(
        self, evaluator: Evaluator, groups: Sequence[tuple[Evaluator, list[Site]]], record: CallRecord
    ) -> None:
        self._record, self._norms = record, list(record.norms)
        self._scales, self._shifts = list(record.scales), list(record.shifts)
        graph = evaluator.graph
        self._made = {str(value.name): node for node in graph for value in node.outputs}
        self._constants = constants_of_graph(evaluator)
        self._fixed = fixed_nodes(graph)
        self._groups = group_norms(graph, self._constants)
        self.ratios: dict[Key, float] = {}
        self.same: set[Key] = set()
        self._known: set[int] = set()  # norms of the graph that calls named
        self._steps: set[ir.Node] = set()  # and what scales or shifts
        self.left: list[tuple[Evaluator, list[Site]]] = []
        self.count = 0
        for own, sites in groups:
            left = [site for site in sites if not self._named(site)]
            self.count += len(sites) - len(left)
            self.left += [(own, left)] if left else []

    def _named(self, site: Site) -> bool:
        if site.inner:
            return False
        if not site.is_affine and is_standard(site.node, INSTANCE_NORM) and self._by_group(site):
            return True
        made = self._made.get(site.output)
        if made is None:
            return False
        if site.output != site.node.outputs[0].name:
            return self._without_shift(site) or self._by_border(site, made)
        ways = (self._by_map,) if site.is_affine or site.is_epsilon else (self._by_norm, self._by_region)
        for way in ways:
            kept = list(self._norms), list(self._scales), list(self._shifts), set(self._steps)
            if way(site, made):
                return True
            self._norms, self._scales, self._shifts, self._steps = kept
        return False

    def _without_shift(self, site: Site) -> bool:
        """Tell whether what stands in front of a border adds nothing there: no call has to name it."""
        shift = constant64(site.node.inputs[2]) if site.is_affine else None
        if shift is None or shift.any() or not all(mutant.proven_at_once for mutant in site.mutants):
            return False
        for mutant in site.mutants:
            key = (site.where, site.output, mutant.name)
            self.ratios[key] = 0.0
            self.same.add(key)
        return True

    def _by_border(self, site: Site, made: ir.Node) -> bool:
        """Find the convolution that pads what a named norm makes among the calls, by its weight and padding."""
        read = made.inputs[0] if made.inputs else None
        norm = None if read is None else read.producer()
        if norm is None or norm.op_type != BATCH_NORM or not is_standard(made, "Conv") or id(norm) not in self._known:
            return False
        weight, pads = constant_tensor(made.inputs[1]), tuple(made.attributes.get_ints("pads", ()))
        own = [constant64(value) for value in (*norm.inputs[1:], *made.inputs[1:])]
        if weight is None or any(one is None for one in own):
            return False
        stored = weight.numpy()
        called = (
            padding + padding == pads and np.array_equal(to_numpy(given), stored)
            for given, padding in self._record.convolutions
            if given.shape == stored.shape
        )
        if not any(called):
            return False
        steps = made.attributes.get_ints("dilations", (1,) * (stored.ndim - 2))
        sizes = [step * (size - 1) + 1 for step, size in zip(steps, stored.shape[2:], strict=True)]
        held = [torch.from_numpy(np.array(one, np.float64)) for one in own]
        x = random_numbers((1, len(held[0]), *sizes))
        there = evaluate_node(norm, [x, *held[:4]], opset_imports=opsets(norm))[0]
        there = evaluate_node(made, [there, *held[4:]], opset_imports=opsets(made))[0]
        return self._compare(site, [x, *held], there)

    def _by_norm(self, site: Site, made: ir.Node) -> bool:
        """Find the norm that a site is, or is rows and a multiple of, among the calls."""
        scale, shift, value = self._way_up(made, site)
        node = value.producer()
        own = [None if value is None or not value.name else constant64(value) for value in site.node.inputs[1:]]
        if node is None or not is_norm(node) or node.op_type != site.node.op_type:
            return False
        names = [None if value is None or not value.name else str(value.name) for value in node.inputs[1:]]
        held = [None if name is None else self._constants.get(name) for name in names]
        if any(name is not None and one is None for name, one in zip(names, held, strict=True)):
            return False
        epsilon = node.attributes.get_float("epsilon", 1e-5)
        at = next((i for i, call in enumerate(self._norms) if same_norm(call, node.op_type, held, epsilon)), None)
        if at is None or not rounded(site.node.attributes.get_float("epsilon", 1e-5), epsilon):
            return False
        call = self._norms.pop(at)
        if call.groups and call.size < 2:
            return False  # of one number nothing is left, of this size: at others mutants differ
        x, part = random_rows(node, held, epsilon, call.size)
        values = [x, *(None if one is None else torch.from_numpy(np.array(one, np.float64)) for one in own)]
        there = evaluate_node(node, [x, *held], opset_imports=opsets(node))[0]
        if not self._compare(site, values, there * scale + shift, part=part):
            return False
        self._known.add(id(node))
        return True

    def _by_group(self, site: Site) -> bool:
        """Find the group norm that a site is the norm of among the calls, by its epsilon, groups, scale and shift."""
        whole = only_use(site.node.outputs[0])
        names = [site.output] if whole is None else [site.output, str(whole.outputs[0].name)]
        name = next((one for one in names if one in self._groups), None)
        if name is None or (name != site.output and whole is not None and not is_standard(whole, "Reshape")):
            return False
        group = self._groups[name]
        if name not in group.plain and not (equal(group.scale, None, 1.0) and equal(group.shift, None, 0.0)):
            return False
        held = [self._constants.get(str(one.name)) for one in group.node.inputs[1:] if one is not None]
        own = [constant64(one) for one in site.node.inputs[1:]]
        epsilon = group.node.attributes.get_float("epsilon", 1e-5)
        if any(one is None for one in (*held, *own)) or not (equal(held[0], None, 1.0) and equal(held[1], None, 0.0)):
            return False
        call = next((one for one in self._norms if same_group(one, group, held[0], epsilon)), None)
        if call is None or not rounded(site.node.attributes.get_float("epsilon", 1e-5), epsilon):
            return False
        x, part = random_rows(group.node, held, epsilon, call.size)
        values = [x, *(torch.from_numpy(np.array(one, np.float64)) for one in own)]
        there = evaluate_node(group.node, [x, *held], opset_imports=opsets(group.node))[0]
        if not self._compare(site, values, there, part=part):
            return False
        self._take_call(call, with_map=True)
        self._known.add(id(group.node))
        return True

    def _by_map(self, site: Site, made: ir.Node) -> bool:
        """Find the operands of an affine map among those of the calls, or an epsilon that is added."""
        scale, shift, value = self._way_up(made, site)
        x = site.node.inputs[0]
        if value.name != site.inputs[0]:
            return False
        if site.is_epsilon:
            drawn = random_numbers((ROWS,)) * site.epsilon
            return self._compare(site, [drawn], drawn * scale + shift)
        known = [constant64(site.node.inputs[place]) for place in (1, 2)]
        if x is None or x.shape is None or known[0] is None or known[1] is None:
            return False
        rank = (1,) * len(x.shape)
        shape = np.broadcast_shapes(rank, *(one.shape for one in known if one is not None), scale.shape, shift.shape)
        drawn = random_numbers((ROWS, *shape[1:]) if shape and shape[0] == 1 else shape)
        return self._compare(site, [drawn], drawn * scale + shift)

    def _way_up(self, node: ir.Node, site: Site) -> tuple[Tensor, Tensor, ir.Value]:
        """Go from a result towards what a site reads, as far as each operand is one of a call's, which is taken.

        Returns:
            s and t of s v + t, and the value v where the way ends.
        """
        value = next(value for value in node.outputs if value.name == site.output)
        scale, shift = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        while value.name != site.inputs[0]:
            at = value.producer()
            if at is None or not at.inputs or at.inputs[0] is None:
                break
            if is_standard(at, *(("Identity",) if site.is_affine else _ROWS_OF)):
                value = at.inputs[0]
                continue
            step = step_of(at, self._constants)
            inner = None if step is None else at.inputs[1 - step.place]
            if step is None or inner is None or not self._take(step):
                break
            if step.scales:
                scale = scale * step.number  # a v + b with v = f w is a f w + b
            else:
                shift = shift + scale * step.number
            value = inner
        return scale, shift, value

    def _take(self, step: Step) -> bool:
        """Take the number out that an operator scales or shifts by; it may be part of several sites."""
        if step.node not in self._steps and take(self._scales if step.scales else self._shifts, step.number):
            self._steps.add(step.node)
        return step.node in self._steps

    def _by_region(self, site: Site, made: ir.Node) -> bool:
        """Find the norm, and what scales and shifts, in all that stands between what a site reads and what it makes."""
        value = next(value for value in made.outputs if value.name == site.output)
        found = region_of(value, site.inputs[0], self._constants, self._fixed)
        own = [None if value is None or not value.name else constant64(value) for value in site.node.inputs]
        x = site.node.inputs[0]
        if found is None or x is None or x.shape is None:
            return False
        epsilon = found.norm.attributes.get_float("epsilon", 1e-5)
        call = self._call_of(found.norm, epsilon)
        if call is None or (call.groups and call.size < 2):
            return False
        same = rounded(site.node.attributes.get_float("epsilon", 1e-5), epsilon)
        if not (same and all(map(self._take, found.maps))):
            return False
        shape = [size if isinstance(size, int) else SAMPLES for size in x.shape]
        drawn = random_numbers(shape) * math.sqrt(epsilon or 1.0)
        values = [drawn, *(None if one is None else torch.from_numpy(np.array(one, np.float64)) for one in own[1:])]
        try:
            there = evaluated(found, site.inputs[0], drawn, self._constants)
        except GraphError:  # a size that is not stated, and another than what was drawn
            return False
        if not self._compare(site, values, there):
            return False
        self._known.add(id(found.norm))
        return True

    def _call_of(self, norm: ir.Node, epsilon: float) -> NormCall | None:
        """Take the call of a norm of the graph out; where it spells out a group norm, its map is the call's."""
        held = [None if one is None else self._constants.get(str(one.name)) for one in norm.inputs[1:]]
        group = self._groups.get(str(norm.outputs[0].name))
        call = next((one for one in self._norms if same_norm(one, norm.op_type, held, epsilon)), None)
        spelled = call is None
        if spelled and group is not None and equal(held[0], None, 1.0) and equal(held[1], None, 0.0):
            call = next((one for one in self._norms if same_group(one, group, held[0], epsilon)), None)
        if call is not None:
            self._take_call(call, with_map=spelled)
        return call

    def _take_call(self, call: NormCall, *, with_map: bool) -> None:
        """Take a call out, for one operator of the graph; the map behind that one is the call's where it says so."""
        self._norms = [one for one in self._norms if one is not call]
        for operands, number in zip((self._scales, self._shifts), call.numbers if with_map else (), strict=False):
            operands += [] if number is None else [number]

    def _compare(self, site: Site, values: Sequence[Tensor | None], there: Tensor, *, part: float = 1.0) -> bool:
        """Compare mutants with their site; False where the site is not what the traced graph's operators make there.

        Args:
            part: how much of a row is in ``there``.
        """
        right = site.clean(values)
        if away_from(there, right) > _ROUNDED:
            return False
        for mutant in site.mutants:
            if mutant.nothing or (mutant.between_rows and one_row(site)):
                continue
            key, away = (site.where, site.output, mutant.name), away_from(mutant.apply(values), right)
            self.ratios[key] = min(away, 1.0) * part / FINEST
            if mutant.proven_at_once and not away:
                self.same.add(key)
        return True
