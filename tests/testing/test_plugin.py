"""The plugin in a pytest run of its own: option, configuration, marker, fixture."""

from __future__ import annotations

import os
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch._dynamo  # noqa: F401 # a run takes out of sys.modules what it imports; torch registers this part only once
from onnx import helper, numpy_helper, parser

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]

PLUGIN = ("-p", "normdeploy.testing.plugin", "-p", "no:cacheprovider")
TEXT = """<ir_version: 10, opset_import: ["": 20]>
g (float[N,6] x) => (float[N,6] y) { y = LayerNormalization <axis = -1, epsilon = 1e-5> (x, s) }"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with a file, a wrong copy of it and nothing else."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # where normdeploy is installed, -p would load it twice
    proto = parser.parse_model(TEXT)
    proto.graph.initializer.append(numpy_helper.from_array(np.linspace(0.5, 2, 6, dtype=np.float32), "s"))
    onnx.save(proto, str(pytester.path / "right.onnx"))
    proto.graph.node[0].attribute[1].CopyFrom(helper.make_attribute("epsilon", 1e-3))
    onnx.save(proto, str(pytester.path / "wrong.onnx"))
    return pytester


def test_a_failing_test_shows_the_difference_and_not_the_plugins_code(project: pytest.Pytester):
    project.makepyfile("""
        def test_wrong(assert_equivalent):
            assert_equivalent("right.onnx", "wrong.onnx", level="quick")
    """)
    result = project.runpytest(*PLUGIN)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*wrong.onnx is not equivalent to right.onnx: FAIL",
            "E*output*'y' differs: * times the bound at *",
            "E*looks like*epsilon*",
        ]
    )
    result.stdout.no_fnmatch_line("*equivalence.py*raise AssertionError*")


MISTAKEN = {
    '"right.onnx", "nowhere.onnx"': "nowhere.onnx does not exist",
    '"right.onnx", "right.onnx", level="fast"': "level is 'fast'",
    '"right.onnx", "right.onnx", data=rows': "data for 'x' has shape (2, 5)",
}


def test_a_mistaken_call_shows_its_line_and_the_message(project: pytest.Pytester):
    tests = [
        f"def test_{number}(assert_equivalent):\n    assert_equivalent({call})\n"
        for number, call in enumerate(MISTAKEN)
    ]
    project.makepyfile("\n".join(["import numpy as np", 'rows = np.zeros((2, 5), "f")', *tests]))
    result = project.runpytest(*PLUGIN)
    result.assert_outcomes(failed=len(MISTAKEN))
    for call, told in MISTAKEN.items():
        result.stdout.fnmatch_lines([f">*assert_equivalent({call})", f"E*{told}*"])
    result.stdout.no_fnmatch_line("*raise*Error*")


LEVELS = """
    import pytest
    from normdeploy.testing import assert_equivalent as imported

    def test_fixture(assert_equivalent):
        assert assert_equivalent("right.onnx", "right.onnx").level == {plain!r}

    def test_imported():
        assert imported("right.onnx", "right.onnx").level == {plain!r}

    @pytest.mark.equivalence(level="quick")
    class TestMarked:
        def test_from_the_class(self, assert_equivalent):
            assert assert_equivalent("right.onnx", "right.onnx").level == "quick"

        @pytest.mark.equivalence(level="thorough")
        def test_the_nearest_wins(self, assert_equivalent):
            assert assert_equivalent("right.onnx", "right.onnx").level == "thorough"

        def test_the_call_wins(self, assert_equivalent):
            assert assert_equivalent("right.onnx", "right.onnx", level="default").level == "default"
"""


@pytest.mark.parametrize(
    ("ini", "arguments", "plain"),
    [
        ("", (), "default"),
        ("[pytest]\nnormdeploy_level = quick", (), "quick"),
        ("[pytest]\nnormdeploy_level = thorough", ("--normdeploy-level=quick",), "quick"),
    ],
)
def test_where_the_level_comes_from(project: pytest.Pytester, ini: str, arguments: tuple[str, ...], plain: str):
    project.makeini(ini)
    project.makepyfile(LEVELS.format(plain=plain))
    project.runpytest(*PLUGIN, *arguments).assert_outcomes(passed=5)


def test_nothing_of_a_run_is_left_behind(project: pytest.Pytester):
    from normdeploy.testing.default_options import in_force

    project.makepyfile("def test_nothing(): pass")
    project.runpytest(*PLUGIN, "--normdeploy-level=thorough").assert_outcomes(passed=1)
    assert in_force() == {}


def test_a_marker_allows_a_status_in_its_test_alone(project: pytest.Pytester):
    project.makepyfile("""
        import pytest

        @pytest.mark.equivalence(allow={"fail"}, level="quick")
        def test_allowed(assert_equivalent):
            assert assert_equivalent("right.onnx", "wrong.onnx").status == "fail"

        def test_not_allowed(assert_equivalent):
            assert_equivalent("right.onnx", "wrong.onnx", level="quick")
    """)
    project.runpytest(*PLUGIN).assert_outcomes(passed=1, failed=1)


@pytest.mark.parametrize("arguments", ["'quick'", "levle='quick'"])
def test_a_marker_that_would_mean_nothing_is_refused(project: pytest.Pytester, arguments: str):
    project.makepyfile(f"""
        import pytest

        @pytest.mark.equivalence({arguments})
        def test_marked():
            pass
    """)
    result = project.runpytest(*PLUGIN)
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*marker equivalence has *expected allow, budget, level, seed by name*"])


def test_an_unknown_level_is_refused_before_any_test_runs(project: pytest.Pytester):
    project.makepyfile("def test_nothing(): pass")
    result = project.runpytest(*PLUGIN, "--normdeploy-level=fast")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--normdeploy-level: invalid choice: 'fast'*"])
    project.makeini("[pytest]\nnormdeploy_level = fast")
    result = project.runpytest(*PLUGIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*normdeploy_level is 'fast'; expected one of default, quick, thorough*"])


def test_what_was_found_is_kept_with_the_tests_result(project: pytest.Pytester):
    project.makepyfile("""
        def test_right(assert_equivalent):
            assert_equivalent("right.onnx", "right.onnx", level="quick")

        def test_wrong(assert_equivalent):
            assert_equivalent("right.onnx", "wrong.onnx", level="quick")
    """)
    project.runpytest(*PLUGIN, "--junit-xml=result.xml")
    properties = [item.get("value") for item in ElementTree.parse(project.path / "result.xml").iter("property")]
    expected = ["right.onnx: pass (level quick)", "wrong.onnx is not equivalent to right.onnx: FAIL"]
    assert properties == expected


def test_the_marker_is_known_and_described(project: pytest.Pytester):
    result = project.runpytest(*PLUGIN, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.equivalence(*): options of assert_equivalent in this test"])
    result = project.runpytest(*PLUGIN, "--strict-markers", "--help")
    result.stdout.fnmatch_lines(["*--normdeploy-level*"])


def test_installed_it_is_there_and_nothing_heavy_is_loaded(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, place)] = metadata["entry-points"]["pytest11"].items()
    folder = project.path / "site" / "normdeploy-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: normdeploy\nVersion: 0\n", encoding="utf-8")
    (folder / "entry_points.txt").write_text(f"[pytest11]\n{name} = {place}\n", encoding="utf-8")
    project.makepyfile("""
        import sys

        def test_there_and_light(assert_equivalent, request):
            assert callable(assert_equivalent)
            assert request.config.getoption("--normdeploy-level") == "quick"
            assert not {"torch", "numpy", "onnx", "onnxruntime"} & set(sys.modules)
    """)
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder.parent), str(ROOT)]))
    run = project.runpytest_subprocess(
        "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--normdeploy-level=quick"
    )
    run.assert_outcomes(passed=1)
