"""Damaged bodies, and damaged operators of com.microsoft."""

from __future__ import annotations

from damaged_pairs import Pair, pair

ROWS = "float[N,4] x"
_IF = """y = If(c) < then_branch = t () => (float[N,4] a) { a = @ },
                    else_branch = e () => (float[N,4] b) { b = Tanh(x) } >"""
_LOOP = """y = Loop(count, c, x) < body = b (int64 i, bool go, float[N,4] s) => (bool on, float[N,4] t) {
           on = Identity(go) t = @ } >"""
_SCAN = """a, b = Scan<num_scan_inputs = 1, @body = b (float[4] s, float[4] p) => (float[4] t, float[4] q) {
           t = Add(s, p) q = Mul(s, p) }>(z, x) y = Concat<axis = 0>(b, b)"""
_ATTENTION = "float[N,T,8] x, float[N,T,8] k, float[N,T,8] v"

BODIES: list[Pair] = [
    pair("an If's branch", ROWS + ", bool c", "float[N,4] y", _IF, "Sin(x)", "Cos(x)", "Tanh(x)"),
    pair("an If's condition", ROWS + ", bool c", "float[N,4] y", "d = Not(c) " + _IF.replace("(c)", "(@)").replace(
        "{ a = @ }", "{ a = Sin(x) }"), "c", "d"),
    pair("a Loop's body", ROWS, "float[N,4] y", _LOOP, "Sin(s)", "Cos(s)", "Sin(x)", known="int64 count = {3}, bool c "
         "= {1}"),
    pair("a Loop's count", ROWS, "float[N,4] y", _LOOP.replace("@", "Sin(s)"), "3", "4",
         known="int64 count = {@}, bool c = {1}"),
    pair("a Scan's direction", "float[L,4] x, float[4] z", "float[M,4] y", _SCAN, "", "scan_input_directions = [1], ",
         "scan_output_directions = [1], "),
    # com.microsoft
    pair("FusedMatMul alpha", "float[4,4] x, float[4,4] z", "float[4,4] y",
         "y = com.microsoft.FusedMatMul<@>(x, z)", "alpha = 0.5", "alpha = 0.25", "alpha = 0.5, transB = 1",
         "alpha = 0.5, transA = 1"),
    pair("SkipLayerNormalization epsilon", "float[N,3,4] x, float[N,3,4] z", "float[N,3,4] y",
         "y = com.microsoft.SkipLayerNormalization<epsilon = @>(x, z, g, h)", "0.001", "0.01",
         known="float[4] g = {1.0, 0.5, 2.0, 1.5}, float[4] h = {0.1, 0.2, -0.3, 0.4}"),
    pair("MultiHeadAttention", _ATTENTION, "float[N,T,8] y",
         "y = com.microsoft.MultiHeadAttention<@>(x, k, v)", "num_heads = 2, scale = 0.5",
         "num_heads = 2, scale = 0.25", "num_heads = 4, scale = 0.5", "num_heads = 2, scale = 0.5, unidirectional = 1"),
    pair("MultiHeadAttention's operands", _ATTENTION, "float[N,T,8] y",
         "y = com.microsoft.MultiHeadAttention<num_heads = 2>(@)", "x, k, v", "k, x, v", "x, v, k"),
    pair("Attention's scale", "float[N,3,4] x", "float[N,3,4] y",
         "y = com.microsoft.Attention<num_heads = 2, scale = @>(x, w, b)", "0.5", "0.6",
         known="float[4,12] w = {" + ", ".join(f"{(7 * i) % 11 - 5}.0" for i in range(48)) + "}, float[12] b = {"
         + ", ".join(f"0.{i % 7}" for i in range(12)) + "}"),
    pair("RotaryEmbedding", "float[1,4,8] x", "float[1,4,8] y",
         "y = com.microsoft.RotaryEmbedding<@>(x, p, c, s)", "interleaved = 0, num_heads = 2",
         "interleaved = 1, num_heads = 2", "interleaved = 0, num_heads = 1, rotary_embedding_dim = 4",
         known="int64[1,4] p = {0, 1, 2, 3}, float[4,2] c = {1.0, 1.0, 0.5, 0.9, -0.4, 0.8, -0.9, 0.7}, "
         "float[4,2] s = {0.0, 0.0, 0.8, 0.1, 0.9, 0.2, 0.1, 0.3}"),
    pair("RotaryEmbedding's positions", "float[1,4,8] x", "float[1,4,8] y",
         "y = com.microsoft.RotaryEmbedding<num_heads = 2>(x, p, c, s)", "0, 1, 2, 3", "1, 2, 3, 0",
         known="int64[1,4] p = {@}, float[4,2] c = {1.0, 1.0, 0.5, 0.9, -0.4, 0.8, -0.9, 0.7}, "
         "float[4,2] s = {0.0, 0.0, 0.8, 0.1, 0.9, 0.2, 0.1, 0.3}"),
    pair("FusedConv's activation", "float[N,4,H,W] x", "float[N,4,H,W] y",
         "y = com.microsoft.FusedConv<@>(x, w)", 'activation = "Relu"', 'activation = "Tanh"',
         'activation = "LeakyRelu", activation_params = [0.1]',
         known="float[4,4,1,1] w = {" + ", ".join(f"{(7 * i) % 11 - 5}.0" for i in range(16)) + "}"),
    pair("BiasGelu's operands", "float[N,4] x", "float[N,4] y", "y = com.microsoft.BiasGelu(x, b)", "0.5", "0.6",
         known="float[4] b = {0.1, 0.2, 0.3, @}"),
    pair("QuickGelu alpha", "float[N,4] x", "float[N,4] y", "y = com.microsoft.QuickGelu<alpha = @>(x)", "1.702",
         "1.5"),
    # recurrent
    pair("LSTM direction", "float[L,N,2] x", "float[L,1,N,1] y", 'y = LSTM<hidden_size = 1, direction = "@">(x, w, r)',
         "forward", "reverse", known="float[1,4,2] w = {1.0, 2.0, 0.5, -1.0, 1.0, 0.3, 0.2, 0.7}, "
         "float[1,4,1] r = {0.5, -0.5, 1.0, 0.3}"),
    pair("GRU reset", "float[L,N,2] x", "float[L,1,N,1] y", "y = GRU<hidden_size = 1, linear_before_reset = @>(x, w, "
         "r, b)",
         "0", "1", known="float[1,3,2] w = {1.0, 2.0, 0.5, -1.0, 1.0, 0.3}, float[1,3,1] r = {0.5, -0.5, 1.0}, "
         "float[1,6] b = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}"),
]  # fmt: skip
"""Pairs of operators with bodies and of onnxruntime's own."""
