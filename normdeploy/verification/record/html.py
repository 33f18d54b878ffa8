"""The verdict as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from normdeploy.report.page import (
    STATUS_TONES,
    Badge,
    Block,
    Cards,
    Cell,
    Details,
    Facts,
    Page,
    Picture,
    Section,
    Table,
    Text,
    checks_table,
    render_page,
)
from normdeploy.report.pictures import BOUND, EAGER, OURS, depth_curve, drawing, svg
from normdeploy.report.words import WORDS
from normdeploy.verification.record.answers import HISTOGRAM_EDGES, Localization, Measurement, SiteReport, Status

if TYPE_CHECKING:
    from normdeploy.verification.record.verdict import Verdict

_LEADS = {
    Status.PASS: "The file computes what its reference computes, and every check could have failed.",
    Status.WEAK: "The reference could not be run in float64, or has no graph: the verdict rests on less than a pass.",
    Status.NOT_EXERCISED: "No difference was found, but at least one check could not have failed.",
    Status.FAIL: "The file does not compute what its reference computes.",
    Status.ERROR: "The verification could not be finished.",
}


def render(verdict: Verdict) -> str:
    """Return one HTML document: reasons, checks, error distributions, error by depth, sites, worst inputs."""
    sections = [_checks(verdict)]
    if verdict.localization is not None:
        sections.insert(0, _localization(verdict.localization))
    if verdict.measurements:
        sections.append(_errors(verdict.measurements))
    if verdict.depth:
        sections.append(_depth(verdict))
    if verdict.sites:
        sections.append(_sites(verdict.sites))
    sections.append(_conditions(verdict))
    versions = verdict.environment.get("versions", {})
    files = verdict.environment.get("files", {})
    page = Page(
        title=next(iter(files), "Verification"),
        subtitle=" ".join([_LEADS[verdict.status], *verdict.reasons]),
        sections=sections,
        status=Badge(verdict.status, STATUS_TONES[verdict.status]),
        footer="normdeploy verify; " + ", ".join(f"{name} {version}" for name, version in versions.items()),
    )
    return render_page(page)


def _checks(verdict: Verdict) -> Section:
    worst = max((m.ratio for m in verdict.measurements), default=0.0)
    killed = sum(m.killed for s in verdict.sites for m in s.mutants)
    total = sum(len(s.mutants) for s in verdict.sites)
    cards = Cards(
        (
            ("largest error", f"{worst:.2f}", "of what rounding explains; 1 is the limit"),
            ("mutants killed", f"{killed} of {total}", f"at {len(verdict.sites)} normalization sites"),
            ("runs judged", str(len(verdict.measurements)), f"in {sum(verdict.seconds.values()):.1f} s"),
        )
    )
    return Section("Checks", (cards, WORDS, checks_table(map(asdict, verdict.checks))))


def _localization(found: Localization) -> Section:
    items = [(key, str(value)) for key, value in found.to_dict().items() if key != "summary"]
    return Section("Where it starts", (Text((found.summary,), "bad"), Facts(items)))


def _errors(measurements: Sequence[Measurement]) -> Section:
    rows = sorted(measurements, key=lambda m: -m.ratio)
    worst = rows[0]
    blocks: list[Block] = [
        Picture(
            _histogram(measurements),
            "Absolute error against float64 over all runs, in units of one rounding of the output's RMS: the runtime "
            "and eager PyTorch.",
        ),
        Picture(_ratios(measurements), "Error over bound, per input family; the limit is 1."),
        Facts(
            (
                ("worst input family", worst.family),
                ("output", worst.output),
                ("setting", worst.setting),
                ("element", str(list(worst.worst))),
                ("error over bound", worst.ratio),
                ("largest error, runtime", worst.max_error),
                ("largest error, eager", worst.max_eager),
                ("largest value", worst.max_truth),
            )
        ),
    ]
    amplified = [m for m in rows if m.in_parts is not None]
    if amplified:
        lead = "Beyond the bound and held in parts: the network amplifies rounding; each part of these runs is right."
        held: list[list[Cell]] = [[m.family, m.output, m.setting, m.ratio, m.in_parts] for m in amplified]
        heads = ("family", "output", "setting", "error / bound", "of the worst part")
        blocks += [Text((lead,)), Table(heads, held)]
    columns = ("family", "output", "setting", "ratio", "RMS error", "RMS eager", "S", "RMS value")
    table = Table(
        columns,
        [[m.family, m.output, m.setting, m.ratio, m.rms_error, m.rms_eager, m.rms_spread, m.rms_truth] for m in rows],
    )
    blocks.append(Details(f"All {len(rows)} measurements", (table,)))
    return Section("Rounding", blocks, "Each output against its float64 truth, next to eager's own rounding.")


def _histogram(measurements: Sequence[Measurement]) -> str:
    counts = np.zeros((2, len(HISTOGRAM_EDGES) - 1))
    for m in measurements:
        for i, row in enumerate(m.histogram):
            if row:
                counts[i] += row
    used = np.flatnonzero(counts.sum(axis=0))
    low, high = (max(int(used[0]) - 1, 0), min(int(used[-1]) + 2, counts.shape[1])) if used.size else (0, 4)
    centres = (np.asarray(HISTOGRAM_EDGES[:-1]) + np.asarray(HISTOGRAM_EDGES[1:])) / 2
    with drawing(2.8) as (figure, axes):
        for row, name, colour in ((counts[1], "eager", EAGER), (counts[0], "runtime", OURS)):
            share = row / max(row.sum(), 1)
            axes.step(centres[low:high], share[low:high], where="mid", label=name, color=colour, linewidth=1.8)
            axes.fill_between(centres[low:high], share[low:high], step="mid", color=colour, alpha=0.18)
        axes.set_xlabel("log10 of |error| / (u · RMS of the output)")
        axes.set_ylabel("share of elements")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        return svg(figure)


def _ratios(measurements: Sequence[Measurement]) -> str:
    families: dict[str, float] = {}
    failed = {m.family for m in measurements if not m.holds}
    for m in measurements:
        families[m.family] = max(families.get(m.family, 0.0), m.ratio)
    names = sorted(families, key=lambda name: families[name])
    floor = 1e-3
    with drawing(0.8 + 0.28 * len(names)) as (figure, axes):
        values = [min(max(families[name], floor), 1e9) for name in names]
        colours = [BOUND if name in failed else OURS for name in names]
        axes.barh(range(len(names)), values, color=colours, height=0.62, left=0)
        axes.axvline(1.0, color=BOUND, linewidth=1.2)
        axes.set_xscale("log")
        axes.set_xlim(left=floor)
        axes.set_yticks(range(len(names)), [name if len(name) < 48 else name[:45] + "..." for name in names])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("error / bound")
        return svg(figure)


def _depth(verdict: Verdict) -> Section:
    points = verdict.depth
    picture = Picture(
        depth_curve([asdict(point) for point in points]),
        "Error of every operator's result against the same graph in float64.",
    )
    rows: list[list[Cell]] = [[p.where, p.op, p.relative_error] for p in points]
    details = Details(f"All {len(rows)} operators", (Table(("where", "operator", "relative error"), rows),))
    return Section("Error by depth", (picture, details))


def _sites(sites: Sequence[SiteReport]) -> Section:
    rows: list[list[Cell]] = []
    details: list[list[Cell]] = []
    for site in sites:
        spared = sum(m.harmless and not m.killed for m in site.mutants)
        weakest = min((m.ratio for m in site.mutants if m.killed), default=0.0)
        answer = Badge("exercised", "good") if site.exercised else Badge("not exercised", "warn")
        rows.append(
            [
                site.where,
                site.kind,
                f"{sum(m.killed for m in site.mutants)} of {len(site.mutants)}",
                spared,
                weakest,
                answer,
            ]
        )
        for m in site.mutants:
            state = Badge("killed", "good") if m.killed else Badge("harmless", "neutral" if m.harmless else "warn")
            if not m.killed and not m.harmless:
                state = Badge("survived", "warn")
            details.append([site.where, m.name, state, m.ratio, m.family, m.note])
    table = Table(("where", "operator", "mutants killed", "harmless", "weakest kill (x bound)", "answer"), rows)
    every = Table(("where", "mutant", "fate", "x bound", "input family", "note"), details)
    return Section(
        "Normalization sites",
        (table, Details(f"All {len(details)} mutants", (every,))),
        "Each site was damaged on purpose; a check that lets the damage pass proves nothing.",
    )


def _conditions(verdict: Verdict) -> Section:
    facts = verdict.environment
    processor = facts.get("processor", {})
    items: list[tuple[str, Cell]] = [
        ("reference", str(facts.get("reference", ""))),
        ("level", str(facts.get("level", verdict.level))),
        ("seed", facts.get("seed")),
        ("settings", "; ".join(facts.get("settings", []))),
        ("processor", f"{processor.get('name', '')} ({', '.join(processor.get('features', []))})"),
        ("weights SHA-256", str(facts.get("weights_sha256", ""))),
    ]
    items += [(f"SHA-256 of {name}", str(digest)) for name, digest in facts.get("files", {}).items()]
    items += [(f"input {name}", f"{i['dtype']} {i['shape']}") for name, i in facts.get("inputs", {}).items()]
    blocks: list[Block] = [Facts(items)]
    if verdict.not_checked:
        blocks.append(Table(("not checked",), [[text] for text in verdict.not_checked]))
    return Section("Conditions", blocks)
