"""Rules of other packages: found by their entry point, checked like ours, accounted for in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from node_kinds import kinds

from normdeploy.errors import RewriteError, UsageError
from normdeploy.graph.evaluate import Evaluator
from normdeploy.rewrite import rewrite, rules_of_others

NET = """<ir_version: 10, opset_import: ["" : 20]>
net (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
    three = Constant <value = float {%s}> () six = Constant <value = float {6}> ()
    nought = Constant <value = float {0}> ()
    s = Add(x, three) c = Clip(s, nought, six) p = Mul(x, c) h = Div(p, six)
    y = Relu(h) z = Neg(%s)
}"""


def hard_swish(node: ir.Node) -> list[ir.Node] | None:
    """x * clip(x + 3, 0, 6) / 6; it looks at no numbers."""
    if node.op_type != "Div" or node.inputs[0] is None or (product := node.inputs[0].producer()) is None:
        return None
    return [ir.node("HardSwish", [product.inputs[0]])]


@pytest.fixture
def added() -> Iterator[None]:
    rules_of_others.add_rule(hard_swish)
    yield
    rules_of_others.remove_rule("hard_swish")


@pytest.mark.usefixtures("added")
def test_a_rule_replaces_its_spelling_and_leaves_a_row() -> None:
    model = ir.from_onnx_text(NET % ("3", "h"))
    done = rewrite(model)
    assert sorted(kinds(done.model)) == ["HardSwish", "Neg", "Relu"]
    assert [(row.kind, row.action, row.into) for row in done.ledger] == [("hard_swish", "fused", "HardSwish")]
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32) * 4
    truth = x * np.clip(x.astype(np.float64) + 3, 0, 6) / 6
    found = Evaluator(done.model).run({"x": x})
    y, z = (found[str(value.name)] for value in done.model.graph.outputs)
    np.testing.assert_allclose(y.numpy(), np.maximum(truth, 0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(z.numpy(), -truth, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("added")
def test_a_rule_may_end_where_the_graph_does() -> None:
    model = ir.from_onnx_text(
        NET.replace("y = Relu(h)", "").replace("=> (float[n, 4] y,", "=> (float[n, 4] h,") % ("3", "h")
    )
    done = rewrite(model)
    assert sorted(kinds(done.model)) == ["HardSwish", "Neg"]
    assert [value.name for value in done.model.graph.outputs] == ["h", "z"]
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32) * 4
    found = Evaluator(done.model).run({"x": x})
    truth = x * np.clip(x.astype(np.float64) + 3, 0, 6) / 6
    np.testing.assert_allclose(found["h"].numpy(), truth, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["z"].numpy(), -truth, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("added")
def test_what_others_read_of_a_spelling_stays() -> None:
    done = rewrite(ir.from_onnx_text(NET % ("3", "c")))
    assert {"HardSwish", "Clip", "Add", "Neg"} <= set(kinds(done.model))
    assert "Div" not in kinds(done.model)


@pytest.mark.usefixtures("added")
def test_a_rule_that_computes_something_else_is_named_and_ends_it() -> None:
    with pytest.raises(RewriteError, match="hard_swish"):
        rewrite(ir.from_onnx_text(NET % ("2", "h")))


def test_without_rules_nothing_is_asked() -> None:
    done = rewrite(ir.from_onnx_text(NET % ("3", "h")))
    assert "HardSwish" not in kinds(done.model)
    assert "hard_swish" not in {row.kind for row in done.ledger}


def installed(folder: Path, code: str) -> None:
    (folder / "their_rules.py").write_text(code)
    info = folder / "their_rules-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rules\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[normdeploy.rules]\ntheirs = their_rules:rule\n")


@pytest.fixture
def their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    rules_of_others.installed_rules.cache_clear()
    yield tmp_path
    rules_of_others.installed_rules.cache_clear()


def test_an_installed_package_brings_its_rule(their_folder: Path) -> None:
    code = "import onnx_ir as ir\ndef rule(node):\n    if node.op_type == 'Div':\n"
    code += "        return [ir.node('HardSwish', [node.inputs[0].producer().inputs[0]])]\n"
    installed(their_folder, code)
    done = rewrite(ir.from_onnx_text(NET % ("3", "h")))
    assert "HardSwish" in kinds(done.model)
    assert done.ledger[0].kind == "theirs"


@pytest.mark.parametrize(
    ("code", "words"), [("1 / 0", "'theirs'.*ZeroDivisionError"), ("rule = 3", "'theirs' is a int")]
)
def test_a_package_that_cannot_be_loaded_is_named(their_folder: Path, code: str, words: str) -> None:
    import sys

    sys.modules.pop("their_rules", None)
    installed(their_folder, code)
    with pytest.raises(UsageError, match=words):
        rewrite(ir.from_onnx_text(NET % ("3", "h")))
