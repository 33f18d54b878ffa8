"""What hints say against an operator that others confirm: they are hints of another file."""

import onnx_ir as ir

from normdeploy.verification.derivation.related.report import Report, Row
from normdeploy.verification.derivation.related.stored_rounding import Wrong


def _rows(*, rounding: bool) -> list[Row]:
    x = ir.val("x")
    nodes = [ir.node("Gemm", [x], name="confirmed"), ir.node("MatMul", [x], name="open")]
    for node in nodes:
        node.outputs[0].name = f"{node.name}.result"
    return [Row(nodes[0], wrong=Wrong("scaled", False)), Row(nodes[1], wrong=Wrong("another number", rounding))]


def _against(rows: list[Row], *confirmed: str) -> list[str]:
    report = Report(rows, follows=True, confirmed_by_others=confirmed)
    return [row.name for row in report.contradicted]


def test_wrong_numbers_contradict_a_file() -> None:
    assert _against(_rows(rounding=False)) == ["confirmed", "open"]


def test_hints_against_what_others_confirm_are_of_another_file_and_prove_no_other_operator_wrong() -> None:
    assert _against(_rows(rounding=False), "confirmed.result") == []


def test_a_last_digit_counts_whatever_hints_find_it() -> None:
    assert _against(_rows(rounding=True), "confirmed.result") == ["open"]


def test_what_others_confirm_elsewhere_takes_nothing_from_a_contradiction() -> None:
    assert _against(_rows(rounding=False), "another.result") == ["confirmed", "open"]
