"""Modules that compute something else while they are traced are named."""

import functools
import sys
import sysconfig
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.compiler import is_compiling as asks

import normdeploy as nd
from normdeploy.exporting.module.asks_if_traced import _OWNERS, traced_otherwise
from normdeploy.exporting.trace import trace


def helper():
    return asks()


def imported_inside():
    import torch

    return torch.compiler.is_exporting()


def decorate(function):
    @functools.wraps(function)
    def inner(self, x):
        return function(self, x)

    return inner


class Direct(nn.Module):
    def forward(self, x):
        return x.clamp(max=3) if torch.compiler.is_compiling() else x


class ByHelper(nn.Module):
    def forward(self, x):
        return x.clamp(max=3) if helper() else x


class ByMethod(nn.Module):
    def forward(self, x):
        return self.inner(x)

    def inner(self, x):
        return x * 2 if torch.onnx.is_in_onnx_export() else x


class Inherited(ByMethod):
    pass


class ImportedInside(nn.Module):
    def forward(self, x):
        return x.clamp(max=3) if imported_inside() else x


class FromInside(nn.Module):
    def forward(self, x):
        from torch.compiler import is_exporting

        return x.clamp(max=3) if is_exporting() else x


class InAComprehension(nn.Module):
    def forward(self, x):
        return sum(x if asks() else -x for _ in range(2))


class Decorated(nn.Module):
    @decorate
    def forward(self, x):
        return x.clamp(max=3) if asks() else x


class OwnName(nn.Module):
    """An attribute of that name is no question to torch."""

    def __init__(self):
        super().__init__()
        self.is_compiling = False

    def forward(self, x):
        return x * 2 if self.is_compiling else x


@pytest.mark.parametrize(
    "kind", [Direct, ByHelper, ByMethod, Inherited, ImportedInside, FromInside, InAComprehension, Decorated]
)
def test_a_module_that_asks_is_named(kind):
    (asked,) = traced_otherwise(nn.Sequential(nn.Linear(3, 3), kind(), kind()))
    assert asked.modules == (("1", kind.__name__),)
    assert "is_" in asked.question
    assert not asked.installed
    assert str(asked).startswith(f"module '1' ({kind.__name__}) asks torch.")


class Second(nn.Module):
    def forward(self, x):
        return -x if helper() else x


def test_what_comes_to_one_place_is_told_together():
    asked, alone = traced_otherwise(nn.Sequential(ByHelper(), Second(), Direct()))
    assert asked.modules == (("0", "ByHelper"), ("1", "Second"))
    assert asked.function == f"{__name__}.helper"
    assert "module '0' (ByHelper) and 1 more asks" in str(asked)
    assert alone.modules == (("2", "Direct"),)
    findings = nd.inspect(nn.Sequential(ByHelper(), Second())).of_kind("traced-otherwise")
    assert [(finding.severity, finding.places) for finding in findings] == [("warning", ("0", "1"))]


@pytest.mark.parametrize(
    "folder",
    [sysconfig.get_path("purelib"), "/opt/other/lib/python3.11/site-packages", "/usr/lib/python3/dist-packages"],
    ids=["ours", "an environment's beneath", "a distribution's"],
)
def test_what_an_installed_package_asks_is_a_note(folder):
    names = {"torch": torch, "__name__": "theirs"}
    code = "def usual(x):\n    return x if torch.compiler.is_compiling() else x * 1\n"
    exec(compile(code, f"{folder}/theirs.py", "exec"), names)

    class Mine(nn.Module):
        def forward(self, x):
            return names_usual(x)

    global names_usual
    names_usual = names["usual"]
    (asked,) = traced_otherwise(Mine())
    assert (asked.installed, asked.function) == (True, "theirs.usual")
    (finding,) = nd.inspect(Mine()).of_kind("traced-otherwise")
    assert finding.severity == "note"
    assert "in theirs.usual" in finding.what


# what torch.export answers as eager torch does: no forward is another function for asking these
_SAME_ANSWER = (
    (torch.jit, "is_tracing"),
    (torch._C, "_get_tracing_state"),
    (torch._C, "_is_tracing"),
    (torch.compiler, "is_dynamo_compiling"),
    (torch.fx._symbolic_trace, "is_fx_symbolic_tracing"),
)


def test_the_questions_are_those_that_a_trace_answers_otherwise():
    answers: dict[str, list[bool]] = {}
    asked = [(sys.modules[owner], name) for owner, names in _OWNERS for name in names if owner in sys.modules]

    class Recorder(nn.Module):
        def forward(self, x):
            for owner, name in (*asked, *_SAME_ANSWER):
                if not hasattr(owner, name):
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # some are deprecated, and asked all the same
                    answers.setdefault(f"{owner.__name__}.{name}", []).append(bool(getattr(owner, name)()))
            return x * 2

    Recorder()(torch.randn(2, 3))
    assert not any(answer for given in answers.values() for answer in given), "nothing is traced yet"
    trace(Recorder().eval(), torch.randn(2, 3))
    for owner, name in asked:
        assert any(answers.get(f"{owner.__name__}.{name}", [True])), name
    for owner, name in _SAME_ANSWER:
        assert not any(answers.get(f"{owner.__name__}.{name}", [])), name


@pytest.mark.parametrize("module", [OwnName(), nn.MultiheadAttention(4, 2), nn.Sequential(nn.LSTM(3, 4))])
def test_others_are_not(module):
    assert traced_otherwise(module) == []


def test_it_is_a_note_of_the_export_and_a_finding(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), Direct()).eval()
    result = nd.export(model, torch.randn(2, 3), tmp_path / "net.onnx", verify=False)
    assert any("'1' (Direct) asks torch.compiler.is_compiling()" in note for note in result.notes)
    for findings in (nd.inspect(model), nd.inspect(model, torch.randn(2, 3))):
        assert [finding.where for finding in findings.of_kind("traced-otherwise")] == ["1"]


def test_the_tables_of_a_programs_inputs_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made again for each input, they take the square of the number of layers."""
    signature = torch.export.graph_signature.ExportGraphSignature
    made = dict.fromkeys(("inputs_to_parameters", "inputs_to_buffers"), 0)
    for name in made:
        usual = getattr(signature, name).fget

        def counted(self: object, name: str = name, usual: Callable[[object], object] = usual) -> object:
            made[name] += 1
            return usual(self)

        monkeypatch.setattr(signature, name, property(counted))
    counts = []
    for layers in (2, 12):
        made.update(dict.fromkeys(made, 0))
        blocks = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(layers)]
        traced = trace(nn.Sequential(*blocks), torch.randn(2, 4))
        assert {str(value.name) for value in traced.model.graph.initializers.values()} >= {"0.0.weight", "1.1.bias"}
        counts.append(dict(made))
    assert counts[0] == counts[1]
