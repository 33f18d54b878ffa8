"""Quantizers as integer functions of the accumulators in front of them; docs/quantization.md has the algebra."""

from normdeploy.rewrite.integer.integer_pass import OnIntegers, sums_integers

__all__ = ["OnIntegers", "sums_integers"]
