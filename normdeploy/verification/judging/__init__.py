"""A run's outputs held against a case: structure, logic, rounding, flips on quantized grids."""
