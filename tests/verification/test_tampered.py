"""A tampered file never passes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import graph_damage
import onnx
import pytest
import torch
from torch import nn

from normdeploy.building.recipe_model import load_trained, recipe_example
from normdeploy.exporting.trace import trace
from normdeploy.graph import save_graph
from normdeploy.parsing.recipe import load_recipe
from normdeploy.rewrite import rewrite
from normdeploy.verification import verify
from normdeploy.verification.family_case import make_case
from normdeploy.verification.samples.family import Family

RECIPES = sorted((Path(__file__).parents[2] / "export").glob("*.toml"))
NEVER = ("pass", "weak")


def survivors(exported: object, source: Path, folder: Path, *, first_only: bool) -> Iterator[str]:
    proto = onnx.load(str(source))
    for number, damaged in enumerate(graph_damage.damages(proto, first_only=first_only)):
        path = folder / f"{number}.onnx"
        onnx.save(damaged.model, str(path))
        verdict = exported.verdict(path, level="quick")  # type: ignore[attr-defined]  # conftest's Exported
        path.unlink()
        if verdict.status in NEVER:
            yield f"{damaged.kind} at {damaged.where}: {verdict.status}"


def test_there_are_at_least_25_kinds():
    assert len(graph_damage.KINDS) >= 25


@pytest.fixture
def references_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate the reference once per family instead of once per damaged file: it is the same each time."""
    module = importlib.import_module("normdeploy.verification.check_context")
    made: dict[tuple[object, ...], object] = {}

    def once(reference: object, noisy: object, family: Family, *args: object, **options: object) -> object:
        key = (
            family.name,
            *((name, a.shape, a.tobytes()) for name, a in family.feeds.items()),
            *((k, v) for k, v in options.items() if k not in ("known", "spend", "unmeasured", "settled")),
        )
        if key not in made:
            never = {**options, "settled": bool}  # by the verdict that it is made for
            made[key] = make_case(reference, noisy, family, *args, **never)  # type: ignore[arg-type] # passed on
        return made[key]

    monkeypatch.setattr(module, "make_case", once)


@pytest.mark.usefixtures("references_once")
@pytest.mark.parametrize("which", ["folded", "plain"])
def test_every_kind_of_damage_is_caught_once(small, tmp_path: Path, which: str):
    assert list(survivors(small, getattr(small, which), tmp_path, first_only=True)) == []


def test_the_undamaged_files_pass(small):
    assert small.verdict(small.folded, level="quick").status == "pass"
    assert small.verdict(small.plain, level="quick").status == "pass"


def test_a_fold_that_ignores_the_zero_padded_border_is_caught(small, tmp_path: Path):
    """The classic silent error: the shift of `before` pushed through the padding of `second` as a constant bias."""
    proto = onnx.load(str(small.plain))
    norm = next(n for n in proto.graph.node if n.op_type == "BatchNormalization" and "before" in n.input[1])
    conv = next(n for n in proto.graph.node if n.input and n.input[0] == norm.output[0])
    values = {t.name: onnx.numpy_helper.to_array(t).astype("float64") for t in proto.graph.initializer}
    scale, shift, mean, var = (values[name] for name in norm.input[1:5])
    a = scale / (var + 1e-5) ** 0.5
    c = shift - a * mean
    weight, bias = values[conv.input[1]], values[conv.input[2]]
    folded = {"w": weight * a[None, :, None, None], "b": bias + (weight * c[None, :, None, None]).sum((1, 2, 3))}
    for key, index in (("w", 1), ("b", 2)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(folded[key].astype("float32"), f"folded_{key}"))
        conv.input[index] = f"folded_{key}"
    conv.input[0] = norm.input[0]
    proto.graph.node.remove(norm)
    path = tmp_path / "border.onnx"
    onnx.save(proto, str(path))
    verdict = small.verdict(path)
    assert verdict.status == "fail"
    assert "ignores the zero-padded border" in verdict.localization.summary


@pytest.mark.slow
@pytest.mark.usefixtures("references_once")
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
@pytest.mark.parametrize("fold", [True, False], ids=["folded", "plain"])
def test_every_kind_of_damage_is_caught_at_every_site_of_every_model(recipe: Path, fold: bool, tmp_path: Path):
    settings = load_recipe(recipe)
    model: nn.Module = load_trained(settings)
    example = recipe_example(settings, model)
    torch.set_num_threads(1)
    traced = trace(
        model,
        example.args,
        kwargs=example.kwargs,
        input_names=example.input_names,
        dynamic_shapes=example.dynamic_shapes,
    )
    rewritten = rewrite(traced.model)
    path = save_graph((rewritten.model if fold else traced.model).clone(), tmp_path / "net.onnx")

    class Here:
        def verdict(self, file: Path, **options: object) -> object:
            return verify(
                model,
                file,
                args=example.args,
                kwargs=example.kwargs,
                traced=traced,
                rewritten=rewritten,
                **options,
            )

    assert Here().verdict(path, level="quick").status == "pass"
    assert list(survivors(Here(), path, tmp_path, first_only=False)) == []
