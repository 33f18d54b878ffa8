"""Equations over the unknowns of gauges: rows of expressions, the system, signs, and what follows from them."""
