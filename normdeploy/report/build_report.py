"""The build report: from its plain data (``NAME.report.json``) to the console and to a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normdeploy.report import console
from normdeploy.report.console import row_words
from normdeploy.report.latency_sections import MICRO, graph_section, latency_section, ratio_words, threads_words
from normdeploy.report.ledger_table import print_ledger
from normdeploy.report.page import (
    STATUS_TONES,
    Badge,
    Block,
    Cards,
    Cell,
    Details,
    Facts,
    Folded,
    Page,
    Section,
    Table,
    checks_table,
)
from normdeploy.report.page import (
    Text as Paragraphs,
)
from normdeploy.report.quantized_table import print_quantized, quantized_section
from normdeploy.report.sections import (
    commands_section,
    error_by_depth_section,
    network_section,
    plan_section,
    profile_section,
    quality_section,
)
from normdeploy.report.text import Text
from normdeploy.report.words import WORDS

VERDICT_WORDS = {
    "pass": "Proven equal: the logic in float64, the rounding in float32, and every check could have failed.",
    "weak": "The reference could not be run in float64, or has no graph; the verdict rests on less than a pass does.",
    "not-exercised": "No difference was found, but at least one check could not have failed.",
    "fail": "Not equal to the reference; no file was written.",
    "error": "The verification could not be finished; no file was written.",
}
_ACTION_TONES: dict[str, Any] = {"folded": "good", "fused": "good", "merged": "good", "kept": "warn"}
_SEVERITY_TONES: dict[str, Any] = {"error": "bad", "warning": "warn"}
_FEW_PLACES = 3


def print_build(report: Mapping[str, Any]) -> None:
    """Print a build's tables: normalizations, before and after, latency, quality, and the verdict."""
    print_ledger(report["ledger"]["rows"])
    graph = report["graph"]
    rows = [
        ("nodes", *(graph[key]["nodes"] for key in ("traced", "plain", "ours"))),
        ("file, bytes", "", *(f"{graph[key]['bytes']:,}" for key in ("plain", "ours"))),
    ]
    console.print_rows("Size", ["", "as traced", "plain export", "normdeploy"], rows, right=(1, 2, 3))
    latency = report["latency"]
    console.print_rows(
        f"Latency, batch {latency['batch_size']}, {threads_words(latency['threads'])}, interleaved",
        ["", "median", "quartiles", "normdeploy is"],
        [
            (
                item["name"],
                f"{item['median_s'] * MICRO:,.0f} µs",
                f"{item['q25_s'] * MICRO:,.0f} to {item['q75_s'] * MICRO:,.0f}",
                ratio_words(latency["ratios"].get(item["name"])),
            )
            for item in latency["contenders"]
        ],
        right=(1, 2),
    )
    quality = report["quality"]
    if quality is not None:
        rows = [
            (name, f"{quality[key]['accuracy']:.4f}", f"{quality[key]['loss']:.6f}")
            for name, key in (("eager torch", "eager"), ("onnxruntime", "onnxruntime"))
        ]
        console.print_rows(
            f"Test split, {quality['count']} samples", ["", quality["measure"], "loss"], rows, right=(1, 2)
        )
    if report.get("quantized"):
        print_quantized(report["quantized"])
    for reason in report["verdict"]["reasons"]:
        console.console().print(Text(f"- {reason}"), soft_wrap=True)
    status = report["status"]
    line = Text(f"verdict: {status.upper()}. ", style=console.STATUS_STYLES[status])
    console.console().print(line.append(VERDICT_WORDS[status], style="not bold default"), soft_wrap=True)


def build_page(report: Mapping[str, Any]) -> Page:
    """Describe a build's report as a page."""
    status = report["status"]
    sections = [_summary(report)]
    if report.get("network") and report.get("ledger") is not None:
        sections.append(network_section(report["network"], report["ledger"]))
    if report.get("ledger") is not None:
        sections.append(_ledger(report["ledger"]))
    if "latency" in report:
        sections += [latency_section(report["latency"]), graph_section(report["graph"])]
    if report.get("profile"):
        sections.append(profile_section(report["profile"]))
    if report.get("quality"):
        sections.append(quality_section(report["quality"]))
    if report.get("plan"):
        sections.append(plan_section(report["plan"]))
    if report.get("quantized"):
        sections.append(quantized_section(report["quantized"]))
    sections.append(_verdict(report["verdict"]))
    if report["verdict"].get("depth"):
        sections.append(error_by_depth_section(report["verdict"]["depth"]))
    sections += [_inspection(report), _origin(report), commands_section(report)]
    return Page(
        title=report["name"],
        subtitle=VERDICT_WORDS[status],
        sections=sections,
        status=Badge(status, STATUS_TONES[status]),
        footer=f"Made by normdeploy {report['normdeploy']} from {report['recipe']}. The same data as JSON: "
        f"{report['name']}.report.json",
    )


def _summary(report: Mapping[str, Any]) -> Section:
    cards: list[tuple[str, str, str]] = []
    if report.get("ledger"):
        counts = report["ledger"]["counts"]
        total = sum(counts.values())
        note = ", ".join(f"{count} {action}" for action, count in counts.items() if count)
        cards.append(
            ("Folded, fused or merged", f"{total - counts['kept']} of {total}", note or "no normalization found")
        )
    if "latency" in report:
        latency = report["latency"]
        for name in ("eager torch", "plain export"):
            ratio = latency["ratios"][name]
            words, _, interval = ratio_words(ratio).partition(" (")
            cards.append((f"Against {name}", words, f"95 %: {interval.rstrip(')')}"))
        graph = report["graph"]
        note = f"as traced → ours; plain export: {graph['plain']['nodes']}"
        cards.append(("Graph nodes", f"{graph['traced']['nodes']} → {graph['ours']['nodes']}", note))
    if report.get("quality"):
        quality = report["quality"]
        same = quality["eager"]["accuracy"] == quality["onnxruntime"]["accuracy"]
        note = "the same in eager torch" if same else f"eager torch: {quality['eager']['accuracy']:.2%}"
        value = quality["onnxruntime"]["accuracy"]
        cards.append(
            (f"Test {quality['measure']}", f"{value:.2%}" if quality["measure"] == "accuracy" else f"{value:.4f}", note)
        )
    blocks: list[Block] = [Cards(cards)] if cards else []
    blocks.append(WORDS)
    if report["verdict"]["reasons"]:
        blocks.append(Paragraphs(report["verdict"]["reasons"], STATUS_TONES[report["status"]]))
    return Section("At a glance", blocks)


def _ledger(ledger: Mapping[str, Any]) -> Section:
    rows: list[list[Cell]] = [
        [row["where"], row["kind"], Badge(row["action"], _ACTION_TONES[row["action"]]), _became(row)]
        for row in ledger["rows"]
    ]
    lead = (
        "Every normalization and channel-wise affine map of the model. Folded: computed into a neighbour's weights, "
        "nothing is left of it. Fused: one operator. Merged: joined with a parallel branch. Kept: with the reason."
    )
    return Section(
        "What became of each normalization", [Table(["where", "what", "became", "of it"], rows, anchor="row")], lead
    )


def _became(row: Mapping[str, Any]) -> Cell:
    """Return the words of a row; under a reason, the chain of operators that it sums up."""
    chain = row.get("chain", ())
    return Folded(row_words(row), "what contradicts it, operator by operator", chain) if chain else row_words(row)


def _verdict(verdict: Mapping[str, Any]) -> Section:
    blocks: list[Block] = [checks_table(verdict["checks"])]
    if verdict["sites"]:
        sites = _sites(verdict["sites"])
        caption = "A mutant is the graph with one deliberate error; a check that does not notice it proves nothing."
        blocks.append(Table(["site", "operator", "mutants killed", "of", "the others"], sites, caption))
    if verdict["not_checked"]:
        blocks.append(Details("Not checked", [Paragraphs(verdict["not_checked"])]))
    return Section("The proof", blocks)


def _sites(sites: Sequence[Mapping[str, Any]]) -> list[list[Cell]]:
    """Return a row for each place of a mutation; places of which the same is said share one."""
    alike: dict[tuple[str, int, int, str], list[str]] = {}
    for site in sites:
        missed = [mutant for mutant in site["mutants"] if not mutant["killed"]]
        notes: dict[str, list[str]] = {}
        for mutant in missed:
            notes.setdefault(mutant["note"], []).append(mutant["name"])
        others = "; ".join(f"{', '.join(names)}: {note}" for note, names in notes.items())
        what = site["kind"], len(site["mutants"]) - len(missed), len(site["mutants"]), others
        alike.setdefault(what, []).append(site["where"])
    return [[_places(places), *what] for what, places in alike.items()]


def _places(places: Sequence[str]) -> Cell:
    """Name some places, the rest behind a click."""
    if len(places) <= _FEW_PLACES:
        return ", ".join(places)
    return Folded(f"{places[0]} and {len(places) - 1} more", "all of them", places)


def _inspection(report: Mapping[str, Any]) -> Section:
    findings = report["findings"]
    if not findings:
        return Section(
            "Inspection before export",
            [Paragraphs(["Nothing wrong or risky was found in the normalizations."], "good")],
        )
    rows: list[list[Cell]] = [
        [
            Badge(item["severity"], _SEVERITY_TONES.get(item["severity"], "neutral")),
            item["where"],
            item["what"],
            item["remedy"],
        ]
        for item in findings
    ]
    return Section("Inspection before export", [Table(["severity", "where", "what", "remedy"], rows)])


def _plain(value: Any) -> str:
    """Write a list's or a mapping's entries side by side."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {entry}" for name, entry in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _origin(report: Mapping[str, Any]) -> Section:
    training: list[tuple[str, Cell]] = [
        (key.replace("_", " "), value) for key, value in sorted(report["training"].items())
    ]
    versions: list[tuple[str, Cell]] = list(report["versions"].items())
    blocks: list[Block] = [Details("Training", [Facts(training)]), Details("Versions", [Facts(versions)])]
    if "machine" in report:
        machine: list[tuple[str, Cell]] = [
            (key, _plain(value)) for key, value in report["machine"].items() if value not in ("", [], {})
        ]
        blocks.append(Details("Machine", [Facts(machine)]))
    if report["onnx_sha256"]:
        blocks.append(Facts([("SHA-256 of the ONNX file", report["onnx_sha256"])]))
    return Section("How it came to be", blocks)
