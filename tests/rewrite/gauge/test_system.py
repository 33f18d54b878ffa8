"""Systems of equations over gauges, against linear algebra on the same equations: numpy and brute force."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normdeploy.rewrite.gauge.equations import expression_rows as rows_module
from normdeploy.rewrite.gauge.equations.expression_rows import Rows, combined
from normdeploy.rewrite.gauge.equations.substitute import roots, values
from normdeploy.rewrite.gauge.equations.system import Conflict, System

settings.register_profile("system", deadline=None, max_examples=100)
settings.load_profile("system")
SEED = st.integers(0, 2**32 - 1)
UNKNOWNS = 5
NONE = np.zeros((0, UNKNOWNS))


def drawn(rng: np.random.Generator, count: int, *, exponents: bool) -> np.ndarray:
    """Return coefficients [count, UNKNOWNS] of few unknowns each; exponents are -1, 0 and 1."""
    rows = rng.choice([-1.0, 1.0] if exponents else [-2.0, -1.0, 0.5, 1.0, 3.0], (count, UNKNOWNS))
    return rows * (rng.random((count, UNKNOWNS)) < 0.5)


def stated(system: System, names: np.ndarray, coefficients: np.ndarray, constant: float) -> Conflict | None:
    """State one equation."""
    terms = [(names[at : at + 1], np.array([factor])) for at, factor in enumerate(coefficients)]
    return system.add(Rows.of(*terms, constant=constant), "test")


def solvable(matrix: np.ndarray, right: np.ndarray) -> bool:
    """Tell by rank whether matrix x = right has a solution."""
    return int(np.linalg.matrix_rank(matrix)) == int(np.linalg.matrix_rank(np.column_stack([matrix, right])))


def snapshot(system: System, names: np.ndarray) -> list[object]:
    reduced = system.reduce(Rows.of((names, 1.0), constant=1.0 if system.multiplicative else 0.0))
    arrays = (reduced.unknowns, reduced.coefficients, reduced.constant, system.signs.known[names])
    return [*(array.tolist() for array in arrays), len(system.held), system.signs.mark()]


@given(SEED, st.integers(1, 9), st.booleans())
def test_additive_equations_hold_as_long_as_linear_algebra_says(seed, count, consistent):
    """An equation is taken if and only if it has a solution together with those before; else it changes nothing."""
    rng = np.random.default_rng(seed)
    system = System(multiplicative=False)
    names = system.new((UNKNOWNS,)).reshape(-1)
    truth = rng.normal(size=UNKNOWNS)
    matrix, right = np.zeros((0, UNKNOWNS)), np.zeros(0)
    for row in drawn(rng, count, exponents=False):
        value = float(row @ truth) if consistent or rng.random() < 0.6 else float(rng.normal())
        wider, longer = np.vstack([matrix, row]), np.append(right, value)
        before = snapshot(system, names)
        mark = system.mark()
        conflict = stated(system, names, row, -value)
        if solvable(wider, longer):
            assert conflict is None
            matrix, right = wider, longer
        else:
            assert conflict is not None
            system.rollback(mark)
            assert snapshot(system, names) == before
    found = values(system, rng.normal(size=system.size))[names]
    np.testing.assert_allclose(matrix @ found, right, atol=1e-7)


@given(SEED, st.lists(st.integers(1, 6), min_size=1, max_size=4), st.booleans())
def test_the_rows_of_a_batch_hold_together(seed, batches, multiplicative):
    """Rows that read each other's unknowns, in any order: what is substituted back solves every row."""
    rng = np.random.default_rng(seed)
    system = System(multiplicative=multiplicative)
    names = system.new((UNKNOWNS,)).reshape(-1)
    truth = rng.uniform(0.5, 2, UNKNOWNS)
    stated_rows: list[tuple[np.ndarray, np.ndarray]] = []
    for count in batches:
        matrix = drawn(rng, count, exponents=multiplicative)
        right = np.prod(truth**matrix, axis=1) if multiplicative else matrix @ truth
        terms = [(np.full(count, name), matrix[:, at]) for at, name in enumerate(names)]
        conflict = system.add(Rows.of(*terms, constant=1 / right if multiplicative else -right), "batch")
        if conflict is not None:  # what shares no root; the rows are consistent
            assert multiplicative
            assert conflict.loose is not None
            return
        stated_rows.append((matrix, right))
        found = values(system, rng.uniform(0.5, 2, system.size))[names]
        for rows, expected in stated_rows:
            np.testing.assert_allclose(
                np.prod(found**rows, axis=1) if multiplicative else rows @ found, expected, rtol=1e-7, atol=1e-7
            )
        root, coefficient, constant = roots(system)
        single = root[names] >= 0
        at = np.where(single, root[names], 0)
        free = rng.uniform(0.5, 2, system.size)
        if multiplicative:
            by_root = constant[names] * free[at] ** np.where(at > 0, coefficient[names], 0.0)
        else:
            by_root = constant[names] + np.where(at > 0, coefficient[names] * free[at], 0.0)
        np.testing.assert_allclose(by_root[single], values(system, free)[names][single], rtol=1e-7, atol=1e-7)


@given(SEED, st.integers(1, 7), st.booleans())
def test_multiplicative_equations_hold_as_long_as_their_logarithms_say(seed, count, consistent):
    """Products of powers 1 and -1 of positive unknowns are linear equations of logarithms."""
    rng = np.random.default_rng(seed)
    system = System(multiplicative=True)
    names = system.new((UNKNOWNS,)).reshape(-1)
    truth = rng.uniform(0.5, 2, UNKNOWNS)
    matrix, right = np.zeros((0, UNKNOWNS)), np.zeros(0)
    for row in drawn(rng, count, exponents=True):
        value = float(np.prod(truth**row)) if consistent or rng.random() < 0.6 else float(rng.uniform(0.5, 2))
        wider, longer = np.vstack([matrix, row]), np.append(right, np.log(value))
        before = snapshot(system, names)
        mark = system.mark()
        conflict = stated(system, names, row, 1 / value)
        if conflict is None:
            assert solvable(wider, longer)
            matrix, right = wider, longer
        else:  # what is left with powers alone that share no root is refused though fractional powers would solve it
            assert not solvable(wider, longer) or (conflict.loose is not None and len(conflict.loose) > 1)
            system.rollback(mark)
            assert snapshot(system, names) == before
    found = values(system, rng.uniform(0.5, 2, system.size))[names]
    np.testing.assert_allclose(matrix @ np.log(found), right, atol=1e-7)


@given(SEED, st.integers(0, 9))
def test_signs_are_refused_if_and_only_if_none_fit(seed, count):
    """Against every assignment: ties S_i = +-S_j and products that are to be positive, in any order."""
    rng = np.random.default_rng(seed)
    system = System(multiplicative=True)
    names = system.new((UNKNOWNS,)).reshape(-1)
    fitting = list(itertools.product([-1, 1], repeat=UNKNOWNS))
    for _ in range(count):
        factor, tie = int(rng.choice([-1, 1])), bool(rng.integers(2))
        chosen = rng.choice(UNKNOWNS, 2 if tie else int(rng.integers(1, 4)), replace=False)
        powers = [1.0, -1.0] if tie else rng.choice([-1.0, 1.0], len(chosen))
        rows = Rows.of(
            *((names[[at]], power) for at, power in zip(chosen, powers, strict=True)), constant=float(factor)
        )
        left = [signs for signs in fitting if np.prod([signs[at] for at in chosen]) * factor > 0]
        before, mark = snapshot(system, names), system.mark()
        conflict = system.add(rows, "tie") if tie else system.positive(rows, "sign")
        assert (conflict is None) == bool(left)
        if conflict is None:
            fitting = left
        else:
            system.rollback(mark)
            assert snapshot(system, names) == before
    signs = system.signs.settled(rng.choice([-1, 1], system.size).astype(np.int8))
    found = values(system, rng.uniform(0.5, 2, system.size) * signs)[names]
    assert tuple(np.sign(found).astype(int)) in fitting


@given(SEED, st.integers(2, 40), st.integers(0, 60), st.booleans())
def test_equalities_stated_together_make_the_classes_of_their_graph(seed, count, edges, multiplicative):
    """Against sets that are joined one by one; an unknown that is no slack stands for each class that has one."""
    rng = np.random.default_rng(seed)
    system = System(multiplicative=multiplicative)
    slack = rng.random(count) < 0.3
    names = np.concatenate([system.new((1,), slack=bool(one)) for one in slack])
    left, right = rng.integers(0, count, (2, edges))
    for part in np.array_split(np.arange(edges), 3):
        terms = (names[left[part]], 1.0), (names[right[part]], -1.0)
        system.state(Rows.of(*terms, constant=float(multiplicative)), "tie")
    classes = [{at} for at in range(count)]
    for one, other in zip(left, right, strict=True):
        joined = next(entry for entry in classes if one in entry) | next(entry for entry in classes if other in entry)
        classes = [entry for entry in classes if not entry & joined] + [joined]
    found = roots(system)[0][names]
    assert sum(len(held.pivots) for held in system.held) == count - len(classes)
    for members in classes:
        stands = {int(found[at]) for at in members}
        assert len(stands) == 1
        free = [at for at in members if not slack[at]] or list(members)
        assert stands == {int(names[min(free)])}


@given(SEED, st.integers(1, 12), st.booleans())
def test_what_is_stated_together_holds_as_if_it_were_stated_one_by_one(seed, count, multiplicative):
    """Each equation follows from the others' system, and there are as many independent ones."""
    rng = np.random.default_rng(seed)
    together, alone = System(multiplicative=multiplicative), System(multiplicative=multiplicative)
    names = together.new((UNKNOWNS,)).reshape(-1)
    alone.new((UNKNOWNS,))
    rows = []
    for _ in range(count):
        chosen = rng.choice(UNKNOWNS, int(rng.integers(1, 4)), replace=False)
        terms = [(names[[at]], float(rng.choice([-1, 1]))) for at in chosen]
        rows.append(Rows.of(*terms, constant=float(multiplicative)))
    for row in rows:
        together.state(row, "tie")
        conflict = alone.add(row, "tie")
        if conflict is not None:  # it is there to another power than one alone
            assert conflict.loose is not None
            alone.add(Rows.of((conflict.loose, 1.0), constant=1.0), "tie")
            assert alone.add(row, "tie") is None
    pivots = [sum(len(held.pivots) for held in system.held) for system in (together, alone)]
    assert all(not together.reduce(row).coefficients.any() for row in rows)
    if not multiplicative:
        assert pivots[0] == pivots[1] == np.linalg.matrix_rank(np.vstack([_dense(row, names) for row in rows]))


def _dense(row: Rows, names: np.ndarray) -> np.ndarray:
    found = np.zeros(len(names))
    for unknown, coefficient in zip(row.unknowns[0], row.coefficients[0], strict=True):
        found[names == unknown] += coefficient
    return found


@given(SEED, st.integers(2, 30))
def test_a_chain_of_ties_multiplies_its_factors(seed, length):
    """Union-find with potentials: the ends of a chain differ by the product; closing it otherwise contradicts."""
    rng = np.random.default_rng(seed)
    system = System(multiplicative=True)
    names = system.new((length,)).reshape(-1)
    factors = rng.uniform(0.5, 2, length - 1) * rng.choice([-1, 1], length - 1)
    for at in rng.permutation(length - 1):
        rows = Rows.of((names[[at + 1]], 1.0), (names[[at]], -1.0), constant=1 / factors[at])
        assert system.add(rows, int(at)) is None
    whole = float(factors.prod())
    around = Rows.of((names[[length - 1]], 1.0), (names[[0]], -1.0), constant=1 / whole)
    assert system.add(around, "known already") is None
    conflict = system.add(Rows.of((names[[length - 1]], 1.0), (names[[0]], -1.0), constant=1.001 / whole), "other")
    assert conflict is not None
    assert conflict.found == np.float64(conflict.found)
    np.testing.assert_allclose(conflict.found, 1.001, rtol=1e-9)


def test_a_batch_whose_rows_contradict_each_other_names_the_row():
    system = System(multiplicative=False)
    names = system.new((1,)).reshape(-1)
    conflict = system.add(Rows.of((names[[0, 0]], 1.0), constant=np.array([-1.0, -2.0])), "two values for one")
    assert conflict is not None
    assert conflict.row == 1
    assert conflict.equation.why(conflict.row) == "two values for one"


def test_a_slack_takes_up_what_a_sum_asks_for():
    """T_sum = T_a + T_b with b slack: b is what is expressed, a stays free."""
    system = System(multiplicative=False)
    total, left = (system.new((1,)) for _ in range(2))
    bias = system.new((1,), slack=True)
    assert system.add(Rows.of((total, 1.0), (left, -1.0), (bias, -1.0), constant=0.0), "sum") is None
    assert system.holder(int(bias[0])) is not None
    assert system.holder(int(left[0])) is None
    assert system.holder(int(total[0])) is None


@pytest.mark.parametrize(("exponents", "constant", "root"), [((2,), 0.25, 2.0), ((3,), -8.0, -0.5), ((-4,), 16.0, 2.0)])
def test_an_unknown_that_is_multiplied_with_itself_is_its_root(exponents, constant, root):
    """S^n k = 1 with no power 1 in it: the positive root, or the only one."""
    system = System(multiplicative=True)
    name = system.new((1,)).reshape(-1)
    assert stated(system, name, np.array(exponents, np.float64), constant) is None
    np.testing.assert_allclose(values(system, np.ones(system.size))[name], root, rtol=1e-15)


def test_powers_that_share_a_root_stay_tied():
    """S_a^2 = 9 S_b^2, as where a^2 + b^2 is computed: one of both is still free."""
    system = System(multiplicative=True)
    names = system.new((2,)).reshape(-1)
    assert stated(system, names, np.array([2.0, -2.0]), 1 / 9) is None
    found = values(system, np.full(system.size, 5.0))[names]
    np.testing.assert_allclose(found[0], 3 * found[1])
    assert 5.0 in found


@pytest.mark.parametrize(("exponents", "constant"), [((2.0, 0.0), -4.0), ((2.0, 3.0), 1.0), ((0.5, 1.5), 1.0)])
def test_what_has_no_root_is_refused_and_says_what_is_loose(exponents, constant):
    system = System(multiplicative=True)
    names = system.new((2,)).reshape(-1)
    before = snapshot(system, names)
    mark = system.mark()
    conflict = stated(system, names, np.array(exponents), constant)
    assert conflict is not None
    assert conflict.loose is not None
    assert sorted(conflict.loose) == [name for name, power in zip(names, exponents, strict=True) if power]
    system.rollback(mark)
    assert snapshot(system, names) == before


@given(SEED, st.integers(1, 5), st.integers(1, 12))
def test_many_terms_are_added_up_as_few_are(seed: int, count: int, width: int) -> None:
    """Each row's coefficient of each unknown, summed by hand; whole numbers, so that no order of summation tells."""
    rng = np.random.default_rng(seed)
    unknowns, coefficients = rng.integers(0, 5, (count, width)), rng.integers(-3, 4, (count, width)).astype(float)
    given_rows = Rows(unknowns, np.where(unknowns == 0, 0.0, coefficients), np.ones(count), np.ones(count))
    expected = [
        {int(u): float(c[names == u].sum()) for u in set(names.tolist()) - {0} if c[names == u].sum()}
        for names, c in zip(unknowns, coefficients, strict=True)
    ]
    for many in (rows_module.MANY, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows_module, "MANY", many)
            found = combined(given_rows)
        for names, c, sums in zip(found.unknowns, found.coefficients, expected, strict=True):
            live = c != 0
            assert len(set(names[live].tolist())) == live.sum()
            assert {int(u): float(x) for u, x in zip(names[live], c[live], strict=True)} == sums


@given(SEED, st.integers(1, 6), st.booleans())
def test_what_reads_what_holds_is_what_that_was_stated_to_be(seed: int, count: int, multiplicative: bool) -> None:
    """Rows of two values, each a sum (product) of up to eight unknowns, with numbers for these."""
    rng = np.random.default_rng(seed)
    system = System(multiplicative=multiplicative)
    base, held = system.new((8,)), system.new((count,), slack=True)
    shares = rng.choice([-1.0, 0.0, 1.0], (count, 8))
    constant = 2.0 ** rng.integers(-3, 4, count)
    terms = [(base[at], -shares[:, at]) for at in range(8)]
    stated_rows = Rows.of((held, 1.0), *terms, constant=1 / constant if multiplicative else -constant)
    assert system.add(stated_rows, "test") is None
    exponents = rng.integers(-3, 4, 8).astype(float)  # powers of 2, and whole numbers: nothing is rounded
    of_held = shares @ exponents + (np.log2(constant) if multiplicative else constant)
    one, other = rng.integers(0, count, (2, 12))
    factors = rng.choice([-1.0, 1.0, 2.0], (2, 12))
    found = system.reduce(Rows.of((held[one], factors[0]), (held[other], factors[1]), constant=float(multiplicative)))
    numbers = np.concatenate([[0.0], exponents, np.full(count, np.nan)])  # no held one is left
    value = np.where(found.coefficients != 0, found.coefficients * numbers[found.unknowns], 0.0).sum(axis=1)
    value += np.log2(found.constant) if multiplicative else found.constant
    np.testing.assert_array_equal(value, factors[0] * of_held[one] + factors[1] * of_held[other])
    for names, c in zip(found.unknowns, found.coefficients, strict=True):
        assert len(set(names[c != 0].tolist())) == (c != 0).sum()
