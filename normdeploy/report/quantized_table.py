"""What quantizing made of a network: float, post-training and trained int8 beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from normdeploy.intervals import Interval
from normdeploy.report import console
from normdeploy.report.latency_sections import MICRO
from normdeploy.report.page import STATUS_TONES, Block, Cell, Section, Table, checks_table
from normdeploy.report.page import Text as Paragraphs

_HEAD = ("", "95 % interval", "less than float32", "error of outputs", "bytes", "µs per call")


def _rows(quantized: Mapping[str, Any]) -> Iterator[list[str]]:
    times = {item["name"]: item for item in quantized["latency"]["contenders"]}
    for row in quantized["rows"]:
        name = row["name"]
        lost, error = (Interval(**row[key]) if key in row else None for key in ("lost", "error"))
        time = times[name]
        yield [
            name,
            Interval(**row["quality"]).words(".4f"),
            "" if lost is None else lost.words(".4f"),
            "" if error is None else error.words(".2%"),
            f"{quantized['bytes'][name]:,}",
            f"{time['median_s'] * MICRO:,.0f} ({time['q25_s'] * MICRO:,.0f} to {time['q75_s'] * MICRO:,.0f})",
        ]


def print_quantized(quantized: Mapping[str, Any]) -> None:
    """Print the comparison."""
    if "rows" not in quantized:
        return
    title = f"Quantized, {quantized['count']} test samples"
    head = [quantized["measure"] if at == 1 else word for at, word in enumerate(_HEAD)]
    console.print_rows(title, head, list(_rows(quantized)), right=(4, 5))


def quantized_section(quantized: Mapping[str, Any]) -> Section:
    """Describe the comparison, and the verdict on the trained file."""
    status, verdict = quantized["status"], quantized["verdict"]
    blocks: list[Block] = []
    if "rows" in quantized:
        cells: list[list[Cell]] = [list(row) for row in _rows(quantized)]
        head = [f"{quantized['measure']}, 95 % interval" if at == 1 else word for at, word in enumerate(_HEAD)]
        caption = "Quality and losses are of the test split; losses are of the same samples, row by row."
        blocks.append(Table(head, cells, caption))
    blocks.append(checks_table(verdict["checks"], f"The trained int8 file against its module: {status}."))
    if verdict["reasons"]:
        blocks.append(Paragraphs(verdict["reasons"], STATUS_TONES[status]))
    lead = (
        "The same network in float32; in int8, its ranges taken from validation samples and its biases corrected; and "
        "in int8, trained on with fake quantization, exported, folded and verified."
    )
    return Section("Quantized", blocks, lead)
