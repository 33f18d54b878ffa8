"""Files that are right at the sizes that are tried, and at no others; and sizes that data decide."""

from __future__ import annotations

from damaged_pairs import Pair, pair

_ONES = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] most = {9223372036854775807}, int64 n0 = {0}, int64 n1 = {1}"
_LENGTH = "s = Shape(x) l = Gather(s, n1) "
_MANY = (("T", 1200),)

SIZES: list[Pair] = [
    pair("Slice with an end", "float[N,T] x", "float[N,U] y", "y = Slice(x, zero, b, one)", "9223372036854775807",
         "1000",
         known=_ONES + ", int64[1] b = {@}", at=_MANY),
    pair("Slice with a start from the end", "float[N,T] x", "float[N,U] y", "y = Slice(x, b, most, one)",
         "-9223372036854775807", "-1000", known=_ONES + ", int64[1] b = {@}", at=_MANY),
    pair("Slice with an end behind a scale", "float[N,T] x", "float[N,U] y", "a = Mul(x, c) y = Slice(a, zero, b, one)",
         "9223372036854775807", "1000", known=_ONES + ", int64[1] b = {@}, float c = {2.0}", at=_MANY),
    pair("Slice left out", "float[N,T] x", "float[N,U] y", "@", "y = Slice(x, zero, b, one)", "y = Identity(x)",
         known=_ONES + ", int64[1] b = {1000}", at=_MANY),
    pair("Clip of indices", "float[N,T] x", "float[N,T] y",
         _LENGTH + "r = Range(n0, l, n1) k = @ f = Cast<to = 1>(k) y = Add(x, f)", "Identity(r)", "Min(r, b)",
         known=_ONES + ", int64 b = {1000}", at=_MANY),
    pair("Range limit", "float[N,T] x", "float[N,T] y",
         _LENGTH + "k = Min(l, b) r = Range(n0, @, n1) f = Cast<to = 1>(r) d = ReduceSum(f) y = Add(x, d)", "l", "k",
         known=_ONES + ", int64 b = {1000}", at=_MANY),
    pair("a choice by size", "float[N,T] x", "float[N,T] y",
         _LENGTH + "c = Less(l, b) k = Where(c, l, @) f = Cast<to = 1>(k) y = Add(x, f)", "n0", "n1",
         known=_ONES + ", int64 b = {1000}", at=_MANY),
    pair("a choice's bound", "float[N,T] x", "float[N,T] y",
         _LENGTH + "c = Less(l, b) k = Where(c, l, n0) f = Cast<to = 1>(k) y = Add(x, f)", "1000", "1100",
         known=_ONES + ", int64 b = {@}", at=(("T", 1050),)),
    pair("a choice as a number", "float[N,T] x", "float[N,T] y",
         _LENGTH + "c = Greater(l, b) k = Cast<to = 1>(c) m = Mul(k, f) y = Add(x, m)", "1.0", "2.0",
         known=_ONES + ", int64 b = {1000}, float f = {@}", at=_MANY),
    pair("a quotient by size", "float[N,T] x", "float[N,T] y",
         _LENGTH + "k = Div(l, b) f = Cast<to = 1>(k) y = Add(x, f)", "1000", "900", known=_ONES + ", int64 b = {@}",
         at=(("T", 950),)),
    pair("a rest by size", "float[N,T] x", "float[N,T] y",
         _LENGTH + "k = @ f = Cast<to = 1>(k) y = Add(x, f)", "Identity(l)", "Mod(l, b)",
         known=_ONES + ", int64 b = {1000}", at=_MANY),
    pair("rounding by size", "float[N,T] x", "float[N,T] y",
         _LENGTH + "g = Cast<to = 1>(l) h = Mul(g, f) k = Floor(h) y = Add(x, k)", "0.001", "0.0011",
         known=_ONES + ", float f = {@}", at=(("T", 950),)),
    pair("rounding by size, repeated", "float[N,T] x", "float[N,T] y",
         _LENGTH + "g = Cast<to = 1>(l) h = Mul(g, f) e = Expand(h, s) k = Floor(e) y = @", "Add(x, k)", "Identity(x)",
         known=_ONES + ", float f = {0.001}", at=_MANY),
    pair("a repeat by size", "float[N,T] x", "float[N,U] y",
         _LENGTH + "k = Div(l, b) m = Add(k, one) e = Concat<axis = 0>(one, m) y = Tile(x, e)", "1000", "1100",
         known=_ONES + ", int64[1] b = {@}", at=(("T", 1050),)),
    pair("Pad by size", "float[N,T] x", "float[N,U] y",
         _LENGTH + "k = Max(l, b) w = Sub(@, b) p = Concat<axis = 0>(zero, zero, zero, w) y = Pad(x, p)", "b", "k",
         known=_ONES + ", int64[1] b = {1000}", at=_MANY),
    pair("Expand by size", "float[N,T,1] x", "float[N,T,U] y",
         _LENGTH + "k = Div(l, b) m = Add(k, one) e = Concat<axis = 0>(one, one, m) y = @", "Identity(x)", "Expand(x, "
         "e)",
         known=_ONES + ", int64[1] b = {1000}", at=_MANY),
    pair("a mask's diagonal", "float[T,T] x", "float[T,T] y", "l = Shape<start = 0, end = 1>(x) "
         "e = Concat<axis = 0>(l, l) o = Expand(f, e) m = @ y = Mul(x, m)", "Identity(o)", "Trilu<upper = 0>(o, b)",
         known="float f = {1.0}, int64 b = {1000}", at=_MANY),
    pair("the largest of sizes", "float[N,T] x", "float[N,T] y", "s = Shape(x) l = Gather(s, one) "
         "c = Concat<axis = 0>(l, b) k = ReduceMin<keepdims = 1>(c) f = Cast<to = 1>(@) y = Add(x, f)", "l", "k",
         known=_ONES + ", int64[1] b = {1000}", at=_MANY),
    pair("a part that is empty at few", "float[N,T] x", "float[N,U] y", "r = Relu(x) e = Slice(x, b, n, one) y = @",
         "Concat<axis = 1>(r, e)", "Identity(r)", at=_MANY,
         known=_ONES + ", int64[1] b = {1000}, int64[1] n = {9223372036854775807}"),
    pair("an output of sizes", "float[N,T] x", "int64 y", _LENGTH + "k = Min(l, b) y = Identity(@)", "l", "k",
         known=_ONES + ", int64 b = {1000}", at=_MANY),
    # sizes that data decide
    pair("parts of what is found", "float[N,4] x", "int64[A,B] y", "i = NonZero(x) t = Transpose(i) y = Slice(t, a, "
         "b, c)",
         "0}, int64[1] b = {1", "1}, int64[1] b = {2", known="int64[1] c = {1}, int64[1] a = {@}"),
    pair("how many are found", "float[N,4] x", "float[N,4] y",
         "i = NonZero(x) s = Shape(i) n = Gather(s, n1) f = Cast<to = 1>(n) g = Mul(f, e) y = Add(x, g)", "1.0", "2.0",
         known=_ONES + ", float e = {@}"),
    pair("moves of what is found", "float[N,4] x", "int64[A] y", "i = NonZero(x) t = @ y = Reshape(t, m)",
         "Transpose(i)",
         "Identity(i)", known="int64[1] m = {-1}"),
    pair("what is chosen and scaled", "float[8] x, bool[8] c", "float[A] y", "a = Compress(x, c) y = Mul(a, f)", "2.0",
         "3.0", known="float f = {@}"),
    pair("an end that is fed", "float[N,4] x, int64[1] z", "float[A,B] y", "y = Slice(x, z, b, c)", "4", "3",
         known="int64[1] b = {@}, int64[1] c = {1}"),
    pair("a repeat that is fed", "float[N,4] x, int64[2] z", "float[A,B] y", "a = @ y = Tile(a, z)", "Tanh(x)",
         "Sin(x)"),
]  # fmt: skip
"""Pairs that agree at small sizes, or at no data."""
