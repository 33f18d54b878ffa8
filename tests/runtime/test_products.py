"""Exact products of 8 bits are asked for where the processor needs it, and never where that breaks the file."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

import normdeploy as nd
from normdeploy.onnxfile.outline import read_outline
from normdeploy.ort import byte_products
from normdeploy.ort.byte_products import EXACT_PRODUCTS, WHOLE_OPERANDS, can_be_asked, product_entries
from normdeploy.verification import verify
from normdeploy.verification.sides.sessions import Setting

CHANNELS = 6
INTERFACE = "g (float[1, 6, 8, 8] x) => (float[1, 6, 4, 4] y)"
CONVOLUTIONS = "c = Conv (x, f)  y = Conv (c, h)"
INNER = f"{INTERFACE} {{ y = If (yes) <then_branch = t () => (float[1, 6, 4, 4] a) {{ BODY }}, else_branch = e () => "
INNER += "(float[1, 6, 4, 4] b) { b = MaxPool <kernel_shape = [5, 5]> (x) }> }"
PER_CHANNEL = "f = DequantizeLinear <axis = 0> (w, steps{}) h = DequantizeLinear <axis = 0> (v, steps{}) "
ADDED = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 30)  # onnxruntime adds a zero point that is left out
FORMS = {
    "a zero point of its own": (PER_CHANNEL.format(", zero", ", other"), True),
    "no zero point": (PER_CHANNEL.format("", ""), False),
    "one zero point left out": (PER_CHANNEL.format(", zero", ""), False),
    "one zero point for both": (PER_CHANNEL.format(", zero", ", zero"), False),
    "zero points computed": (
        "k = Cast <to = 3> (wide) l = Cast <to = 3> (wide) " + PER_CHANNEL.format(", k", ", l"),
        False,
    ),
    "one step": ("f = DequantizeLinear (w, step) h = DequantizeLinear (v, step) ", ADDED),
    "one step, one zero point": (
        "f = DequantizeLinear (w, step, nought) h = DequantizeLinear (v, step, nought) ",
        False,
    ),
    "a quantized activation": (
        "q = QuantizeLinear (x, step, nought) r = DequantizeLinear (q, step, nought) "
        "f = DequantizeLinear (w, step) h = DequantizeLinear (v, step) ",
        ADDED,
    ),
}


@pytest.fixture
def write(tmp_path):
    """Write a graph's text with what it may read; return the file."""

    def written(text):
        model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> {text}')
        weight = (np.arange(CHANNELS * 54) % 250 - 125).astype(np.int8).reshape(CHANNELS, 6, 3, 3)
        kept = {
            "w": weight,
            "v": weight,
            "step": np.array(0.01, np.float32),
            "steps": np.full(CHANNELS, 0.01, np.float32),
            "zero": np.zeros(CHANNELS, np.int8),
            "other": np.zeros(CHANNELS, np.int8),
            "wide": np.zeros(CHANNELS, np.int64),
            "nought": np.array(0, np.int8),
            "yes": np.array(True),
        }
        model.graph.initializer.extend(
            numpy_helper.from_array(array, name) for name, array in kept.items() if name in text
        )
        onnx.save(model, tmp_path / "net.onnx")
        return tmp_path / "net.onnx"

    return written


def runs(path, entries):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": np.ones((1, 6, 8, 8), np.float32)})[0].shape == (1, 6, 4, 4)
    except Exception:  # onnxruntime raises classes of its own, none of them public
        return False


@pytest.mark.parametrize("form", FORMS)
def test_what_can_be_asked_runs(write, form):
    text, fine = FORMS[form]
    path = write(f"{INTERFACE} {{ {text} {CONVOLUTIONS} }}")
    assert can_be_asked(read_outline(path).proto) == fine
    assert runs(path, {})
    assert not fine or runs(path, dict([EXACT_PRODUCTS]))


@pytest.mark.parametrize("form", ["no zero point", "one zero point for both"])
def test_what_cannot_be_asked_fails_where_it_is(write, form):
    """Here the runtime is at fault; once it no longer is, there is nothing to look at (docs/upstream)."""
    path = write(f"{INTERFACE} {{ {FORMS[form][0]} {CONVOLUTIONS} }}")
    if ort.__version__ != "1.31.1":
        pytest.skip(f"written for onnxruntime 1.31.1; this is {ort.__version__}: look again")
    assert not runs(path, dict([EXACT_PRODUCTS]))


@pytest.mark.parametrize("version", ["1.28.0", "1.29.1", "1.30.0", "1.100.0.dev2"])
@pytest.mark.parametrize("form", FORMS)
def test_before_1_30_every_zero_point_is_stored(write, form, version, monkeypatch):
    """Such a file ends the process there (normdeploy/ort/byte_products.py): no session of ours may ask."""
    path = write(f"{INTERFACE} {{ {FORMS[form][0]} {CONVOLUTIONS} }}")
    monkeypatch.setattr(ort, "__version__", version)
    fine = form == "a zero point of its own" or (
        form in ("one step", "a quantized activation") and version not in ("1.28.0", "1.29.1")
    )
    assert can_be_asked(read_outline(path).proto) == fine


@pytest.mark.parametrize("form", ["a zero point of its own", "no zero point"])
def test_bodies_are_looked_into(write, form):
    text, fine = FORMS[form]
    path = write(INNER.replace("BODY", f"{text} {CONVOLUTIONS.replace('y =', 'a =')}"))
    assert can_be_asked(read_outline(path).proto) == fine


@pytest.mark.parametrize("needed", [True, False])
def test_the_processor_decides_whether_to_ask(write, needed, monkeypatch):
    monkeypatch.setattr(byte_products, "saturates", lambda _: needed)
    asked = dict([EXACT_PRODUCTS]) if needed else {}
    stored = dict([WHOLE_OPERANDS])
    fine = write(f"{INTERFACE} {{ {FORMS['a zero point of its own'][0]} {CONVOLUTIONS} }}")
    assert product_entries(fine) == product_entries(fine.read_bytes()) == asked | stored
    plain = write(f"{INTERFACE} {{ y = MaxPool <kernel_shape = [5, 5]> (x) }}")
    assert product_entries(plain) == asked  # no weight of its is touched
    broken = write(f"{INTERFACE} {{ {FORMS['no zero point'][0]} {CONVOLUTIONS} }}")
    assert product_entries(broken) == stored


@pytest.mark.parametrize("product", ["MatMul", "Gemm"])
def test_floats_are_not_rounded_where_weights_are_integers(tmp_path, product):
    """A default session of onnxruntime 1.31 rounds x to 8 bits here: 0.2 % of the result."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[n, 8] x) => (float[n, 6] y) <float s = {{0.01}}> {{
        d = DequantizeLinear(w, s) y = {product}(x, d) }}"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    weight, x = rng.integers(-127, 128, (8, 6)).astype(np.int8), rng.normal(size=(5, 8)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    want = x.astype(np.float64) @ (weight * np.float64(np.float32(0.01)))
    assert np.abs(nd.load(path)(x) - want).max() < 1e-5 * np.abs(want).max()
    verdict = verify(path, path, level="quick")
    assert verdict.status == "pass", verdict.summary()
    assert any("=".join(WHOLE_OPERANDS) in note for note in verdict.not_checked)
    rounded = Setting(config=((WHOLE_OPERANDS[0], "4"),))
    verdict = verify(path, path, level="quick", settings=[rounded])
    assert verdict.status == "fail", verdict.summary()
    assert verdict.localization is not None
    assert verdict.localization.optimizers
