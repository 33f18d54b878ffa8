"""Sections of a build's page: the network drawn, where time goes, error by depth, quality, tuning, how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normdeploy.report.latency_sections import MICRO
from normdeploy.report.network import network
from normdeploy.report.page import Badge, Cell, Details, Facts, Picture, Section, Table
from normdeploy.report.pictures import depth_curve, share_bars


def network_section(graphs: Mapping[str, Any], ledger: Mapping[str, Any]) -> Section:
    """Draw the network before and after."""
    drawn = network(graphs["before"], graphs["after"], ledger["rows"])
    caption = (
        "One box per module; values go from top to bottom, arcs pass others by. A green dot is a normalization that "
        "was folded, fused or merged, an orange one stayed; a number says how many. A box with a dot leads to its row "
        "below; resting on it shows the algebra."
    )
    return Section("The network before and after", [Picture(drawn, caption)])


def profile_section(profile: Mapping[str, Any]) -> Section:
    """Say where the time goes, by kind of operator."""
    rows = [(name, float(share) * MICRO) for name, share in profile["seconds"].items()]
    cells: list[list[Cell]] = [[name, round(value, 2)] for name, value in rows]
    return Section(
        "Where the time goes",
        [
            Picture(share_bars(rows[:15], unit="µs per call"), "Time per kind of operator, as onnxruntime fused them."),
            Details("Numbers", [Table(["operator", "µs per call"], cells)]),
        ],
        f"onnxruntime's own profile of our file, mean of {profile['calls']} calls; profiling itself takes some time.",
    )


def error_by_depth_section(points: Sequence[Mapping[str, Any]]) -> Section:
    """Draw how the error grows along the graph."""
    rows: list[list[Cell]] = [[p["where"], p["op"], float(p["relative_error"])] for p in points]
    return Section(
        "Error by depth",
        [
            Picture(depth_curve(points), "Error of every operator's result against the same graph in float64."),
            Details(f"All {len(rows)} operators", [Table(["where", "operator", "relative error"], rows)]),
        ],
    )


def commands_section(report: Mapping[str, Any]) -> Section:
    """Name the commands that do it again."""
    name, recipe = report["name"], report["recipe"]
    commands: list[tuple[str, Cell]] = [
        ("what is out of date, again", f"normdeploy build {recipe}"),
        ("all but the training, again", f"normdeploy build {recipe} --force"),
        ("is the file the one that was proven", f"normdeploy verify {name}.onnx"),
        ("latency on another machine", f"normdeploy bench {name}.onnx"),
    ]
    return Section("Do it again", [Facts(commands)])


def quality_section(quality: Mapping[str, Any]) -> Section:
    """Say how good the file is on the test split."""
    measure = quality["measure"]
    rows: list[list[Cell]] = [
        ["eager torch", quality["eager"]["accuracy"], quality["eager"]["loss"]],
        ["onnxruntime", quality["onnxruntime"]["accuracy"], quality["onnxruntime"]["loss"]],
    ]
    facts: list[tuple[str, Cell]] = [("largest difference of an output", quality["largest_difference"])]
    if quality["agreement"] is not None:
        facts.append(("equal decisions", f"{quality['agreement']:.2%}"))
    return Section(
        "On the test split",
        [Table(["", measure, "loss"], rows), Facts(facts)],
        f"{quality['count']} samples that training never saw.",
    )


def plan_section(plan: Mapping[str, Any]) -> Section:
    """Say what the tuner tried."""
    rows: list[list[Cell]] = [
        [
            trial["name"],
            trial["precision"],
            Badge(trial["status"], "good" if trial["status"] in ("chosen", "accepted") else "neutral"),
            round(trial["latency"]["median_s"] * MICRO, 1) if trial["latency"] else None,
            trial["reason"],
        ]
        for trial in plan["trials"]
    ]
    return Section(
        "Tuning", [Table(["candidate", "precision", "status", "median, µs", "why"], rows)], f"Budget: {plan['budget']}."
    )
