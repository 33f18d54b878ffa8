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
        None where the equation leaves out the result, has an ellipsis, names a diagonal or is one of other ranks.
    """
    if node.op_type == "MatMul":
        return _of_matrices(*ranks)
    left, arrow, written = node.attributes.get_string("equation", "").replace(" ", "").partition("->")
    terms = tuple(left.split(","))
    followed = arrow and "." not in left and [len(term) for term in terms] == list(ranks)
    if not followed or any(len(set(term)) < len(term) for term in (*terms, written)):
        return None
    return terms, written


def _of_matrices(left: int, right: int) -> tuple[tuple[str, ...], str]:
    """Return a MatMul's letters: "..ab,..bc->..ac", the leading axes counted from the end; a vector has "b" alone."""
    stack = ascii_letters[3 : 3 + max(left, right, 2) - 2]
    first, second = (stack[len(stack) - max(rank - 2, 0) :] for rank in (left, right))
    rows, columns = "a" if left > 1 else "", "c" if right > 1 else ""
    return (f"{first}{rows}b", f"{second}b{columns}"), f"{stack}{rows}{columns}"


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
