"""A product's equation as letters: what each operand's axes and the result's are called."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters

import onnx_ir as ir

from normdeploy.array_types import Array


def letters_of(node: ir.Node, ranks: Sequence[int]) -> tuple[tuple[str, ...], str] | None:
    """Return the letters of each operand of an Einsum or a MatMul and of the result, as in ``"ij,jk->ik"``.

    Args:
        node: the operator. ranks: of its operands.

    Returns:
        None where the equation names a diagonal, sums over an ellipsis or is one of other ranks.
    """
    equation = node.attributes.get_string("equation", "").replace(" ", "")
    if node.op_type == "MatMul":  # a vector has one axis alone
        rows, columns = "a" if ranks[0] > 1 else "", "c" if ranks[1] > 1 else ""
        equation = f"...{rows}b,...b{columns}->...{rows}{columns}"
    left, arrow, written = equation.partition("->")
    terms = left.split(",")
    if not arrow:  # every letter that stands once, in the alphabet's order, behind the ellipsis
        once = sorted(letter for letter in left if letter.isalpha() and left.count(letter) == 1)
        written = ("..." if "..." in left else "") + "".join(once)
    if len(terms) != len(ranks) or any(term.count("...") > 1 for term in (*terms, written)):
        return None
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    free = [letter for letter in ascii_letters if letter not in equation]
    if not all(0 <= count <= len(free) * ("..." in term) for term, count in zip(terms, hidden, strict=True)):
        return None
    dots = "".join(free[: max(hidden)])  # counted from the end, as NumPy broadcasts
    terms = [term.replace("...", dots[len(dots) - count :]) for term, count in zip(terms, hidden, strict=True)]
    if dots and "..." not in written:
        return None
    written = written.replace("...", dots)
    plain = all(letters.isalpha() or not letters for letters in (*terms, written))
    if not plain or any(len(set(letters)) < len(letters) for letters in (*terms, written)):
        return None
    return (tuple(terms), written) if set(written) <= set("".join(terms)) else None


def averaged_by(terms: tuple[str, ...], written: str, weights: int, axis: int) -> str | None:
    """Return the letter that an Einsum averages over, where one operand sums to one; None if it does not.

    Then sum_j a[.., j] (v[.., j] + t) = sum_j a[.., j] v[.., j] + t, for what t does not vary along j.

    Args:
        terms, written: as from :func:`letters_of`.
        weights: which operand sums to one. axis: along which of its axes.
    """
    if len(terms) != 2 or not -len(terms[weights]) <= axis < len(terms[weights]):
        return None
    letter, data = terms[weights][axis], terms[1 - weights]
    rows = terms[weights].replace(letter, "")
    summed = set("".join(terms)) - set(written)
    return letter if summed == {letter} and letter in data and set(rows) <= set(written) else None


def placed(array: Array, term: str, order: Sequence[str]) -> Array:
    """Return an operand's array with one axis per letter of an order, of size 1 for those that it does not have.

    Args:
        array: an axis per letter of ``term``. term: the operand's letters, all of them in ``order``.
        order: letters.
    """
    cells = [array.shape[term.index(letter)] if letter in term else 1 for letter in order]
    return array.transpose([term.index(letter) for letter in order if letter in term]).reshape(cells)
