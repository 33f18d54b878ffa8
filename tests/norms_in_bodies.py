"""Hand-written LayerNorms in the bodies of If, Loop and Scan, as ONNX text."""

from __future__ import annotations

N = 8
G = ",".join(f"{0.5 + 0.1 * i:.2f}" for i in range(N))
CONSTANTS = f"float[{N}] g = {{{G}}}, int64[1] last = {{-1}}, float two = {{2.0}}, float e = {{0.001}}"


def layer_norm(x: str, y: str) -> str:
    """Return a LayerNorm in nine operators; its constants are captured from around the body."""
    return f"""
        m_{y} = ReduceMean <keepdims = 1> ({x}, last)
        d_{y} = Sub ({x}, m_{y})
        q_{y} = Pow (d_{y}, two)
        v_{y} = ReduceMean <keepdims = 1> (q_{y}, last)
        w_{y} = Add (v_{y}, e)
        s_{y} = Sqrt (w_{y})
        z_{y} = Div (d_{y}, s_{y})
        {y} = Mul (z_{y}, g)
    """


BRANCHES = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[n, {N}] x, bool c) => (float[n, {N}] y)
    <{CONSTANTS}>
    {{
        h = Tanh (x)
        y = If (c) <
            then_branch = left () => (float[n, {N}] a) {{ {layer_norm("h", "a")} }},
            else_branch = right () => (float[n, {N}] b) {{ k = Relu (h) {layer_norm("k", "p")} b = Add (p, h) }}
        >
    }}
"""

STEPS = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[n, {N}] x, bool c) => (float[n, {N}] y, float[3, n, {N}] all)
    <{CONSTANTS}, int64 count = {{3}}>
    {{
        y, all = Loop (count, c, x) <
            body = step (int64 i, bool going, float[n, {N}] state) =>
                   (bool go, float[n, {N}] next, float[n, {N}] seen) {{
                go = Identity (going)
                {layer_norm("state", "a")}
                next = Add (a, x)
                {layer_norm("x", "seen")}
            }}
        >
    }}
"""

SCAN = f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[4, n, {N}] x, float[n, {N}] c) => (float[n, {N}] last_state, float[4, n, {N}] y)
    <{CONSTANTS}>
    {{
        last_state, y = Scan <num_scan_inputs = 1, body = step (float[n, {N}] state, float[n, {N}] item) =>
                   (float[n, {N}] next, float[n, {N}] out) {{
                both = Add (state, item)
                {layer_norm("both", "out")}
                next = Add (out, c)
            }}
        > (c, x)
    }}
"""
